"""The PCI tree from ``lspci -vv``: bridges by their bus numbers, each link by what both ends can do (LnkCap).

Only the verbose form has links and buses; without root lspci shows no capabilities, and the links stay unknown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from iobench.topology import limits
from iobench.topology.graph import Topology
from iobench.topology.logs.nvidia_smi import add_gpu
from iobench.topology.logs.text import address, finding, one_node
from iobench.topology.sysfs import natural

_HEAD = re.compile(r"^((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) ([^:\n]{2,80}): (.+)$")
_LINK = re.compile(r"Speed ([0-9]{1,4}(?:\.[0-9]{1,3})? ?GT/s|unknown)(?: \([a-z]+\))?, Width (x[0-9]+|unknown)")
_BUSES = re.compile(r"Bus: primary=([0-9a-f]{2}), secondary=([0-9a-f]{2})")
_EMULATED = re.compile(r"\b(Virtio|QEMU|Red Hat|VMware|Hyper-V|VirtualBox|Bochs)\b", re.IGNORECASE)
_ID = re.compile(r" \[([0-9a-f]{4})\]$")
_MOST_DEVICES = 20000
_WIDTHS = {1, 2, 4, 8, 12, 16, 32}
_KEPT = re.compile(
    r"bridge|3D controller|VGA|Display|Processing accelerators|Ethernet|Infiniband|Network|"
    r"Non-Volatile|SATA|SCSI|RAID|Mass storage|CXL|Fabric controller",
    re.IGNORECASE,
)


@dataclass
class Device:
    """One function as lspci shows it; ``cap`` and ``sta`` are (generation, lanes), None where unknown."""

    address: str
    kind: str
    name: str
    numa: int | None = None
    driver: str | None = None
    secondary: str | None = None
    cap: tuple[int | None, int | None] = (None, None)
    sta: tuple[int | None, int | None] = (None, None)
    acs: bool | None = None
    fields: list[str] = field(default_factory=list)

    @property
    def bridge(self) -> bool:
        return "bridge" in self.kind.lower() and "host" not in self.kind.lower()

    @property
    def emulated(self) -> bool:
        return bool(_EMULATED.search(self.name))


def add(text: str, graph: Topology) -> bool:
    """Add the tree of every device that moves data; say whether the text is of lspci."""
    devices = list({device.address: device for device in reversed(parse(text))}.values())[::-1]  # the first of each
    if not devices:
        if re.search(r"^[ \t]*Lnk(?:Cap|Sta):", text, re.MULTILINE) and _LINK.search(text):
            finding(graph, "lspci: lines of a link (LnkCap, LnkSta) without the line of their device")
        return False
    by_bus = {(device.address[:4], device.secondary): device for device in devices if device.secondary}
    for device in devices:
        if _KEPT.search(device.kind) and not device.bridge and "bridge" not in device.kind.lower():
            _add_chain(graph, device, by_bus)
    _add_gpus(graph, devices)
    _find_acs(graph, devices)
    return True


def parse(text: str) -> list[Device]:
    """Return the devices in the text's order; those of another tool's lines are none."""
    devices: list[Device] = []
    current: Device | None = None
    for line in text.split("\n"):
        head = _HEAD.match(line)
        where = address(head[1]) if head else None
        if head and where:
            current = Device(where, _ID.sub("", head[2]).strip(), head[3])
            devices.append(current)
        elif current is not None and line[:1] in "\t ":
            _attribute(current, line.strip())
        elif line.strip():
            current = None
        if len(devices) > _MOST_DEVICES:
            break
    return devices


def _attribute(device: Device, line: str) -> None:
    if line.startswith("NUMA node:"):
        device.numa = one_node(line.partition(":")[2])
    elif line.startswith("Kernel driver in use:"):
        device.driver = line.partition(":")[2].strip() or None
    elif line.startswith("Bus: primary") and (match := _BUSES.match(line)):
        device.secondary = match[2] if match[2] != "00" else None
    elif line.startswith("LnkCap:"):
        device.cap = link_of(line)
    elif line.startswith("LnkSta:"):
        device.sta = link_of(line)
    elif line.startswith("ACSCtl:"):
        device.acs = "SrcValid+" in line or "ReqRedir+" in line


def link_of(line: str) -> tuple[int | None, int | None]:
    """Return generation and lanes of a LnkCap or LnkSta line; unknown, x0 and x255 are None."""
    match = _LINK.search(line)
    if not match:
        return None, None
    speed = re.match(r"[0-9.]{1,8}", match[1])
    lanes = int(match[2][1:]) if match[2][1:].isdigit() else 0
    return limits.pcie_generation(float(speed[0])) if speed else None, lanes if lanes in _WIDTHS else None


def _add_chain(graph: Topology, device: Device, by_bus: dict[tuple[str, str], Device]) -> None:
    """Add a device and every bridge above it, up to the host bridge."""
    chain = [device]
    while (above := by_bus.get((chain[-1].address[:4], chain[-1].address[5:7]))) is not None and above not in chain:
        chain.append(above)
    root = f"pci:{chain[-1].address[:7]}"
    if root not in graph.nodes:
        graph.add(root, "pci", host_bridge=True)
    parent: Device | None = None
    for depth, part in enumerate(reversed(chain)):
        if f"pci:{part.address}" not in graph.nodes:
            _add_device(graph, part)
            _link(graph, root, parent, part, depth)
        parent = part


def _add_device(graph: Topology, device: Device) -> None:
    graph.add(
        f"pci:{device.address}",
        "pci",
        bridge=True if device.bridge else None,
        name=device.name[:120],
        driver=device.driver,
        emulated=device.emulated or None,
        numa=device.numa,
    )


def _link(graph: Topology, root: str, parent: Device | None, device: Device, depth: int) -> None:
    """Link a device to what is above it, as the sysfs reader does: odd bridges sit inside a root complex or switch."""
    above = f"pci:{parent.address}" if parent else root
    if device.bridge and depth % 2 == 0:
        source = "inside the root complex or a switch: no limit known"
        graph.link(above, f"pci:{device.address}", "internal", source=source)
        return
    ends = [end.cap for end in (device, parent) if end is not None and not end.emulated]
    generation = min((end[0] for end in ends if end[0]), default=None)
    lanes = min((end[1] for end in ends if end[1]), default=None)
    limit = limits.pcie(generation, lanes) if not device.emulated else None
    attrs: dict[str, Any] = {
        "max_generation": generation, "max_width": lanes,
        "current_generation": device.sta[0], "current_width": device.sta[1],
    }  # fmt: skip
    attrs = {name: value for name, value in attrs.items() if value is not None}
    if limit is None:
        source = "an emulated device's link is not physical" if device.emulated else "unknown: lspci shows no LnkCap"
        graph.link(above, f"pci:{device.address}", "pcie", source=source, attrs=attrs)
        return
    attrs["warn_bytes_per_s"] = limit.warn_bytes_per_s
    source = f"lspci: LnkCap; {limit.source}"
    graph.link(above, f"pci:{device.address}", "pcie", limit.bytes_per_s, source=source, attrs=attrs)


def _add_gpus(graph: Topology, devices: list[Device]) -> None:
    found = sorted((device for device in devices if _vendor(device)), key=lambda device: natural(device.address))
    known = graph.of("gpu")
    by_address = {node.get("address"): node for node in known if node.get("address")}
    nameless = [node for node in known if not node.get("address")]
    in_order = nameless if len(nameless) == len(found) and not by_address else []
    for place, device in enumerate(found):
        node = by_address.get(device.address) or (in_order[place] if in_order else None)
        number = int(node.id.partition(":")[2]) if node else len(graph.of("gpu"))
        product = re.search(r"\[([^\]]+)\]", device.name)
        name = product[1] if product and _vendor(device) == "NVIDIA" else None
        more = {} if node and node.get("model_name") else {"model_name": name}
        add_gpu(graph, number, vendor=_vendor(device), address=device.address, numa=device.numa, **more)


def _vendor(device: Device) -> str | None:
    """Return the maker of a GPU that computes, None for a console's display adapter and everything else."""
    if "NVIDIA" in device.name and re.search(r"3D|VGA", device.kind):
        return "NVIDIA"
    if "Processing accelerators" in device.kind:
        return "AMD" if "AMD" in device.name else None  # of Intel's these are FPGAs, and what hashes and compresses
    if "Display" in device.kind:
        return "AMD" if "AMD" in device.name else "Intel" if "Intel" in device.name else None
    return None


def _find_acs(graph: Topology, devices: list[Device]) -> None:
    on = [device.address for device in devices if device.bridge and device.acs]
    if on and graph.of("gpu"):
        finding(graph, f"access control (ACS) is on at {len(on)} PCI bridges: copies between GPUs may go by the CPU")
