"""NCCL's topology file (NCCL_TOPO_DUMP_FILE): CPUs by NUMA node, the PCI tree, GPUs with NVLinks, network ports.

An attribute that is empty, "Unknown", -1, or a width of 255 is unknown: NCCL itself puts defaults in their place.
"""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

from iobench.topology import limits
from iobench.topology.graph import Topology
from iobench.topology.logs.lspci import _WIDTHS as WIDTHS
from iobench.topology.logs.numactl import add_node
from iobench.topology.logs.nvidia_smi import add_gpu
from iobench.topology.logs.text import address, finding, whole
from iobench.units import from_megabits

_DOCUMENT = re.compile(r"<system\b[^<>]*>.*?</system>", re.DOTALL)
_SPEED = re.compile(r"([0-9]{1,3}(?:\.[0-9]+)?) ?GT/s")
_MOST_DEPTH = 32
_MOST_ELEMENTS = 20000


def add(text: str, graph: Topology) -> bool:
    """Add every topology file in the text; one with a document type or entities is not read."""
    found = False
    for match in _DOCUMENT.finditer(text):
        if "<!" in match[0] and re.search(r"<!(?!--)", match[0]):
            finding(graph, "NCCL's topology file holds declarations that NCCL never writes and was left out")
            continue
        try:
            root = ElementTree.fromstring(match[0])
        except ElementTree.ParseError as error:
            finding(graph, f"NCCL's topology file is damaged (line {error.position[0]}) and was left out")
            continue
        if sum(1 for _ in root.iter()) <= _MOST_ELEMENTS:
            for cpu in _one_host(graph, root):
                _add_cpu(graph, cpu)
            _add_unnamed(graph, root)
            _add_nvlinks(graph, root)
            found = True
    return found


def generation(element: ElementTree.Element) -> tuple[int | None, int | None]:
    """Return generation and lanes of a pci element's link."""
    speed = _SPEED.match(element.get("link_speed", ""))
    lanes = whole(element.get("link_width"))
    return limits.pcie_generation(float(speed[1])) if speed else None, lanes if lanes in WIDTHS else None


def _one_host(graph: Topology, root: ElementTree.Element) -> list[ElementTree.Element]:
    """Return the CPUs of the first host: with multi-node NVLink a file holds several hosts."""
    cpus = list(root.iter("cpu"))
    hosts = list(dict.fromkeys(cpu.get("host_hash") for cpu in cpus))
    if len(hosts) > 1:
        finding(graph, f"NCCL's topology file shows {len(hosts)} hosts; only the first is in this graph")
    return [cpu for cpu in cpus if cpu.get("host_hash") == hosts[0]]


def _add_cpu(graph: Topology, cpu: ElementTree.Element) -> None:
    number = whole(cpu.get("numaid"))
    if number is not None and f"numa:{number}" not in graph.nodes:
        add_node(graph, number, _affinity(cpu.get("affinity", "")), None)
    for pci in cpu.findall("pci"):
        where = address(pci.get("busid"))
        if where is None:
            continue
        root = _bridge(graph, where, number)
        if root not in graph.nodes:
            graph.add(root, "pci", host_bridge=True, numa=number)
            if number is not None:
                source = "NCCL's topology file: numaid; no limit known"
                graph.link(root, f"numa:{number}", "host bridge", source=source)
        _add_pci(graph, root, pci, number, _MOST_DEPTH)
    for nic in cpu.findall("nic"):
        _add_nets(graph, nic, None, number)


def _bridge(graph: Topology, where: str, numa: int | None) -> str:
    """Return the host bridge's name; files of clouds hang the switches of every CPU below one made-up bus."""
    root = f"pci:{where[:7]}"
    known = graph.node(root)
    other = known is not None and numa is not None and known.get("numa") not in {None, numa}
    return f"{root}@numa{numa}" if other else root


def _affinity(text: str) -> list[int] | None:
    """Return the CPUs of a mask as the kernel writes it ("00000000,0000ffff"), None where it has none."""
    if not re.fullmatch(r"[0-9a-fA-F,]{1,2300}", text):
        return None
    bits = int("".join(word.rjust(8, "0") for word in text.split(",")), 16)
    return [number for number in range(bits.bit_length()) if bits >> number & 1] or None


def _add_pci(graph: Topology, above: str, pci: ElementTree.Element, numa: int | None, depth: int) -> None:
    where = address(pci.get("busid"))
    if where is None or depth == 0:
        return
    node = f"pci:{where}"
    bridge = (pci.get("class") or "").startswith("0x0604") or None
    graph.add(node, "pci", **{"class": pci.get("class")}, bridge=bridge, numa=numa)
    if not any(link.b == node for link in graph.links):
        which, lanes = generation(pci)
        limit = limits.pcie(which, lanes)
        attrs: dict[str, Any] = {name: value for name, value in (("max_generation", which), ("max_width", lanes)) if value}  # fmt: skip  # noqa: E501
        source = limit.source if limit else "unknown: NCCL's topology file has no link speed and width"
        if limit:
            attrs["warn_bytes_per_s"] = limit.warn_bytes_per_s
        graph.link(above, node, "pcie", limit.bytes_per_s if limit else None, source=source, attrs=attrs)
    for child in pci:
        if child.tag == "pci":
            _add_pci(graph, node, child, numa, depth - 1)
        elif child.tag == "gpu":
            _add_gpu(graph, child, where, numa)
        elif child.tag == "nic":
            _add_nets(graph, child, node, numa)


def _add_gpu(graph: Topology, gpu: ElementTree.Element, where: str, numa: int | None) -> None:
    known = next((node for node in graph.of("gpu") if node.get("address") == where), None)
    number = whole(gpu.get("dev"))
    if known is not None:
        number = int(known.id.partition(":")[2])
    if number is None:
        return
    amd = gpu.get("gcn") is not None or gpu.find("xgmi") is not None  # RCCL writes the same file
    add_gpu(graph, number, vendor="AMD" if amd else "NVIDIA", address=where, numa=numa)
    if gpu.get("gdr") == "0":
        graph.add(f"gpu:{number}", "gpu", gpudirect_rdma=False)


def _add_unnamed(graph: Topology, root: ElementTree.Element) -> None:
    """Add the GPUs of files that clouds hand out (NCCL_TOPO_FILE): by class only, as NCCL itself numbers them later."""
    if next(root.iter("gpu"), None) is not None:
        return
    places = {address(pci.get("busid")) for pci in root.iter("pci") if _is_gpu(pci)}
    found = sorted(where for where in places if where and f"pci:{where}" in graph.nodes)
    for number, where in enumerate(found):
        if all(node.get("address") != where for node in graph.of("gpu")):
            add_gpu(graph, number, address=where, numa=graph.nodes[f"pci:{where}"].get("numa"))
    if found:
        finding(graph, f"NCCL's topology file names {len(found)} GPUs by class only: numbered here by PCI address")


def _is_gpu(pci: ElementTree.Element) -> bool:
    kind, vendor = pci.get("class") or "", pci.get("vendor") or "0x10de"
    return kind.startswith(("0x0302", "0x0300")) and vendor in {"0x10de", "0x1002"}


def _add_nets(graph: Topology, nic: ElementTree.Element, device: str | None, numa: int | None) -> None:
    for net in nic.findall("net"):
        name, port = net.get("name"), whole(net.get("port")) or 1
        megabits = whole(net.get("speed"))
        rate = from_megabits(megabits) if megabits and megabits < 10**7 else None
        if not name or not re.fullmatch(r"[\w.-]{1,64}", name):
            continue
        node = graph.add(f"port:{name}/{port}", "port", device=name, port=port, pci=device, numa=numa, line_bytes_per_s=rate)  # fmt: skip  # noqa: E501
        if device and not any(link.kind == "line" for _, link in graph.neighbours(node.id)):
            source = f"NCCL's topology file: speed {net.get('speed')}" if rate else "unknown: no speed"
            graph.link(node.id, device, "line", rate, source=source)


def _add_nvlinks(graph: Topology, root: ElementTree.Element) -> None:
    by_address = {node.get("address"): node.id for node in graph.of("gpu")}
    told: dict[tuple[str, str], int] = {}
    made: dict[str, int | None] = {}
    for pci in root.iter("pci"):
        here = by_address.get(address(pci.get("busid")))
        for gpu in pci.findall("gpu") if here else ():
            made[str(here)] = whole(gpu.get("sm"))
            to_switch = 0
            for link in gpu.findall("nvlink"):
                count = whole(link.get("count")) or 0
                there = by_address.get(address(link.get("target")))
                if there is None and (link.get("tclass") or "").startswith("0x0680"):
                    to_switch += count
                elif there is not None and count:
                    told.setdefault((str(here), there), count)
            if to_switch:
                graph.add("nvswitch:0", "nvswitch")
                _nvlink(graph, str(here), "nvswitch:0", to_switch, made[str(here)])
    for (here, there), count in told.items():
        back = told.get((there, here), count)
        if there > here:
            _nvlink(graph, here, there, min(count, back), made[here])
        if there > here and back != count:
            finding(graph, f"NCCL's topology file: {here} has {count} NVLinks to {there}, but {back} back")


def _nvlink(graph: Topology, a: str, b: str, count: int, sm: int | None) -> None:
    which = {60: 1, 70: 2, 80: 3, 86: 3, 90: 4, 100: 5, 103: 5}.get(sm or 0)
    limit = limits.nvlink(which, count)
    attrs: dict[str, Any] = {"links": count, **({"generation": which} if which else {})}
    source = f"NCCL's topology file: {count} NVLinks; " + (limit.source if limit else "unknown: version not known")
    if not any(link.kind == "nvlink" and {link.a, link.b} == {a, b} for link in graph.links):
        graph.link(a, b, "nvlink", limit.bytes_per_s if limit else None, source=source, attrs=attrs)
