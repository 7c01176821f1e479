"""GPUs: where they sit (sysfs), what joins them (NVLink, from NVML) and their own memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from iobench.topology import limits, nvml
from iobench.topology.graph import Node, Topology
from iobench.topology.sysfs import Tree, natural

_PROC = "proc/driver/nvidia/gpus"
_NVIDIA, _AMD, _INTEL = "0x10de", "0x1002", "0x8086"


def add(tree: Tree, graph: Topology, told: Sequence[nvml.Gpu] | None = None) -> None:
    """Add ``gpu:N`` in order of PCI address, its memory ``vram:N`` and the NVLinks.

    ``told`` takes the place of what NVML says (a captured machine); NVML is asked on the live machine only.
    """
    if told is not None:
        graph.facts["nvml"] = "captured"
    elif tree.live:
        told, graph.facts["nvml"] = nvml.read()
    else:
        graph.facts["nvml"] = "not used: a captured tree"
    by_address = {gpu.pci: gpu for gpu in told or ()}
    devices = {node.id[4:]: node for node in graph.of("pci") if _is_gpu(node)}
    for number, address in enumerate(sorted({*devices, *by_address}, key=natural)):
        _add_gpu(tree, graph, number, address, devices.get(address), by_address.get(address))
    if by_address:
        _link_gpus(graph, by_address)


def _is_gpu(node: Node) -> bool:
    """Tell a GPU that computes from a console's display adapter."""
    kind, vendor = str(node.get("class")), node.get("vendor")
    if vendor == _NVIDIA:
        return kind.startswith(("0x0300", "0x0302"))
    return vendor in {_AMD, _INTEL} and kind.startswith(("0x0380", "0x1200"))


def _add_gpu(tree: Tree, graph: Topology, number: int, address: str, device: Node | None, gpu: nvml.Gpu | None) -> None:
    vendor = device.get("vendor") if device else _NVIDIA
    known = gpu.name if gpu and gpu.name else _model(tree, address)
    name = known or limits.gpu_product(vendor, device.get("device") if device else None)
    numa = device.get("numa") if device else None
    if numa is None and gpu and f"numa:{gpu.numa}" in graph.nodes:
        numa = gpu.numa
    node = graph.add(
        f"gpu:{number}",
        "gpu",
        vendor={_NVIDIA: "NVIDIA", _AMD: "AMD", _INTEL: "Intel"}.get(vendor),
        model_name=name,
        pci=device.id if device else None,
        address=address,
        numa=numa,
        memory_bytes=gpu.memory_bytes if gpu else None,
        peers=_peers(gpu, graph) if gpu else None,
    )
    if device is not None:
        graph.link(node.id, device.id, "function", source="the same device")
    limit, source = _memory_limit(gpu, name)
    graph.add(f"vram:{number}", "vram", gpu=node.id, memory_bytes=gpu.memory_bytes if gpu else None)
    graph.link(f"vram:{number}", node.id, "hbm", limit, duplex=False, source=source)


def _model(tree: Tree, address: str) -> str | None:
    """Return the product name that the driver shows in procfs."""
    for line in (tree.text(_PROC, address, "information") or "").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "Model" and value.strip() not in {"", "Unknown"}:
            return value.strip()
    return None


def _peers(gpu: nvml.Gpu, graph: Topology) -> dict[str, bool] | None:
    return {f"pci:{address}": works for address, works in gpu.peers.items() if f"pci:{address}" in graph.nodes} or None


def _memory_limit(gpu: nvml.Gpu | None, name: str | None) -> tuple[float | None, str]:
    """Return the memory's limit: 2 * clock * bus width / 8 where NVML tells both, else the product's row."""
    if gpu and gpu.memory_hz and gpu.bus_bits:
        return 2 * gpu.memory_hz * gpu.bus_bits / 8, "NVML: 2 * highest memory clock * bus width / 8"
    limit = limits.gpu_memory(name)
    return (limit.bytes_per_s, limit.source) if limit else (None, "unknown: limits.toml has no row for this product")


def _link_gpus(graph: Topology, told: dict[str, nvml.Gpu]) -> None:
    ids = {node.get("address"): node.id for node in graph.of("gpu")}
    counts: Counter[tuple[str, str]] = Counter()
    for address, gpu in told.items():
        for remote, links in _by_remote(gpu, ids).items():
            counts[ids[address], remote] = len(links)
            _add_nvlink(graph, ids[address], remote, links, gpu.links_inactive)
    _check_symmetry(graph, counts)


def _by_remote(gpu: nvml.Gpu, ids: dict[Any, str]) -> dict[str, list[nvml.NvLink]]:
    """Return the links by the node they lead to: another GPU, or the switches, which are one node together.

    NVML shows no remote end in a virtual machine. With more links than any direct wiring gives one pair they can
    only lead to switches; the node is marked as assumed.
    """
    found: dict[str, list[nvml.NvLink]] = {}
    for link in gpu.links:
        found.setdefault(ids.get(link.remote, "nvswitch:0"), []).append(link)
    return found


def _add_nvlink(graph: Topology, gpu: str, remote: str, links: list[nvml.NvLink], inactive: int) -> None:
    if remote == "nvswitch:0":
        assumed = any(link.remote != "switch" for link in links) or None
        graph.add(remote, "nvswitch", assumed=assumed)
    elif natural(remote) < natural(gpu):
        return  # the other end has added it
    generations = {link.version for link in links}
    generation = generations.pop() if len(generations) == 1 else None
    limit = limits.nvlink(generation, len(links))
    attrs: dict[str, Any] = {"links": len(links), "generation": generation, "links_inactive": inactive or None}
    attrs = {name: value for name, value in attrs.items() if value is not None}
    source = f"NVML: {len(links)} active links; {limit.source}" if limit else "unknown: NVML shows no NVLink version"
    graph.link(gpu, remote, "nvlink", limit.bytes_per_s if limit else None, source=source, attrs=attrs)


def _check_symmetry(graph: Topology, counts: Counter[tuple[str, str]]) -> None:
    """Record links that only one end shows, and GPUs with fewer links to the switches than others have."""
    findings = graph.facts.setdefault("findings", [])
    for (gpu, remote), count in counts.items():
        if remote != "nvswitch:0" and counts[remote, gpu] != count and natural(gpu) < natural(remote):
            findings.append(f"{gpu} shows {count} NVLinks to {remote}, which shows {counts[remote, gpu]} back")
    to_switch = {gpu: count for (gpu, remote), count in counts.items() if remote == "nvswitch:0"}
    most = max(to_switch.values(), default=0)
    findings += [
        f"{gpu} has {count} active NVLinks, others have {most}" for gpu, count in to_switch.items() if count < most
    ]
    if not findings:
        del graph.facts["findings"]
