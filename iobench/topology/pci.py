"""The PCI tree: host bridges, bridges and the devices that move data, with each hop's link.

A hop's limit comes from the lower maximum of its two ends, not from the current state: idle links fall back to
generation 1. The current speed and width stand beside it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from iobench.topology import limits
from iobench.topology.graph import Node, Topology
from iobench.topology.sysfs import Tree

_DEVICES = "sys/bus/pci/devices"
_FUNCTION = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_HOST_BRIDGE = re.compile(r"pci([0-9a-f]{4,8}:[0-9a-f]{2})")
_SPEED = re.compile(r"([0-9]+(?:\.[0-9]+)?) GT/s.*")
_WIDTHS = {1, 2, 4, 8, 12, 16, 32}
_BRIDGE = "0x0604"
# storage, network, display, accelerators, and memory of the CXL kind: what moves data worth measuring
_KEPT = re.compile(r"0x(01|02|03|12|0502|0680)")
# virtio, QEMU, VMware, Hyper-V, VirtualBox: the links that their devices show are not physical
_EMULATED_VENDORS = {"0x1af4", "0x1b36", "0x1234", "0x15ad", "0x1414", "0x80ee"}
_EMULATED_DEVICES = {("0x8086", "0x7075"), ("0x8086", "0x5845")}  # QEMU's CXL root port and its old NVMe


@dataclass(frozen=True)
class End:
    """What one end of a link can do: PCIe generation and lanes, None where unknown."""

    generation: int | None
    width: int | None


def add(tree: Tree, graph: Topology) -> None:
    """Add host bridges, bridges and devices with the links between them, and join host bridges to NUMA nodes."""
    places = {name: tree.real(_DEVICES, name) or "" for name in tree.names(_DEVICES) if _FUNCTION.fullmatch(name)}
    left_out = 0
    for name, place in places.items():
        if _KEPT.match(tree.text(_DEVICES, name, "class") or "") and not _useless(tree, name):
            _add_chain(tree, graph, chain(place) or [name])
        elif not (tree.text(_DEVICES, name, "class") or "").startswith(_BRIDGE):
            left_out += 1
    if left_out:
        graph.facts["pci_devices_left_out"] = left_out
    for node in list(graph.of("pci")):
        if node.get("host_bridge"):
            _link_host_bridge(graph, node)


def chain(place: str) -> list[str]:
    """Return the host bridge and the functions on the way to a sysfs path, from the top down."""
    names = []
    for part in place.split("/"):
        bridge = _HOST_BRIDGE.fullmatch(part)
        if bridge or _FUNCTION.fullmatch(part):
            names.append(bridge[1] if bridge else part)
    return names


def ancestor(graph: Topology, place: str | None) -> Node | None:
    """Return the PCI device in the graph that a sysfs path lies below."""
    found = [graph.node(f"pci:{name}") for name in chain(place or "")]
    return next((node for node in reversed(found) if node and not node.get("host_bridge")), None)


def speed(text: str | None) -> int | None:
    """Return the generation of a link speed ("16.0 GT/s PCIe", "16 GT/s"), None for an unknown one."""
    match = _SPEED.fullmatch(text or "")
    return limits.pcie_generation(float(match[1])) if match else None


def width(text: str | None) -> int | None:
    """Return the lanes of a link, None for 0, 255 and anything else that no link has."""
    return int(text) if text and text.isascii() and text.isdigit() and int(text) in _WIDTHS else None


def _useless(tree: Tree, name: str) -> bool:
    """Tell whether this is a virtual function that nothing drives: there may be hundreds."""
    return tree.exists(_DEVICES, name, "physfn") and not tree.exists(_DEVICES, name, "driver")


def _add_chain(tree: Tree, graph: Topology, names: list[str]) -> None:
    parent: str | None = None
    bridges = 0
    for part in names:
        known = f"pci:{part}" in graph.nodes
        if not known:
            graph.add(f"pci:{part}", "pci", **_attrs(tree, graph, part))
            if parent is not None:
                _link(tree, graph, parent, part, bridges)
        bridges = 0 if graph.nodes[f"pci:{part}"].get("host_bridge") else bridges + 1
        parent = part


def _attrs(tree: Tree, graph: Topology, name: str) -> dict[str, Any]:
    if not _FUNCTION.fullmatch(name):
        return {"host_bridge": True}
    number = tree.number(_DEVICES, name, "numa_node")
    kind = tree.text(_DEVICES, name, "class")
    return {
        "class": kind,
        "bridge": True if (kind or "").startswith(_BRIDGE) else None,
        "vendor": tree.text(_DEVICES, name, "vendor"),
        "device": tree.text(_DEVICES, name, "device"),
        "driver": tree.target(_DEVICES, name, "driver"),
        "emulated": _emulated(tree, name) or None,
        "numa": number if f"numa:{number}" in graph.nodes else None,
    }


def _emulated(tree: Tree, name: str) -> bool:
    ids = [tree.text(_DEVICES, name, field) for field in ("vendor", "device", "subsystem_vendor")]
    return bool({ids[0], ids[2]} & _EMULATED_VENDORS) or (ids[0], ids[1]) in _EMULATED_DEVICES


def _link(tree: Tree, graph: Topology, parent: str, name: str, bridges: int) -> None:
    """Link a function to what is above it. ``bridges``: how many bridges lie above, below the host bridge.

    A root port's and a switch's downstream port's attributes are about the link below them; what is above them is
    inside the root complex or the switch.
    """
    bridge = graph.nodes[f"pci:{name}"].get("bridge")
    if bridge and bridges % 2 == 0:
        graph.link(
            f"pci:{parent}", f"pci:{name}", "internal", source="inside the root complex or a switch: no limit known"
        )
        return
    ends = [_end(tree, end, "max") for end in (name, parent) if not graph.nodes[f"pci:{end}"].get("emulated")]
    now = _end(tree, name, "current")
    limit, attrs = _narrowest(ends), _link_attrs(ends, now)
    emulated = graph.nodes[f"pci:{name}"].get("emulated")
    if limit is None or emulated:
        reason = (
            "an emulated device's link is not physical" if emulated else "unknown: sysfs shows no link speed and width"
        )
        graph.link(f"pci:{parent}", f"pci:{name}", "pcie", source=reason, attrs=attrs)
        return
    attrs["warn_bytes_per_s"] = limit.warn_bytes_per_s
    graph.link(f"pci:{parent}", f"pci:{name}", "pcie", limit.bytes_per_s, source=limit.source, attrs=attrs)


def _end(tree: Tree, name: str, which: str) -> End:
    fields = (tree.text(_DEVICES, name, f"{which}_link_{field}") for field in ("speed", "width"))
    return End(speed(next(fields)), width(next(fields)))


def _lowest(ends: list[End]) -> End:
    generations = [end.generation for end in ends if end.generation is not None]
    widths = [end.width for end in ends if end.width is not None]
    return End(min(generations, default=None), min(widths, default=None))


def _narrowest(ends: list[End]) -> limits.Limit | None:
    end = _lowest(ends)
    return limits.pcie(end.generation, end.width)


def _link_attrs(ends: list[End], now: End) -> dict[str, Any]:
    most = _lowest(ends)
    attrs = {
        "max_generation": most.generation,
        "max_width": most.width,
        "current_generation": now.generation,
        "current_width": now.width,
    }
    current = limits.pcie(now.generation, now.width)
    attrs["current_bytes_per_s"] = current.bytes_per_s if current else None  # type: ignore[assignment]
    return {name: value for name, value in attrs.items() if value is not None}


def _link_host_bridge(graph: Topology, bridge: Node) -> None:
    """Join a host bridge to the NUMA node of the devices below it; to every node with CPUs where none says."""
    if any(link.b == bridge.id for link in graph.links):
        return  # below another one, as a volume management device's is
    numbers = {node.get("numa") for node in _below(graph, bridge.id) if node.get("numa") is not None}
    nodes = [f"numa:{number}" for number in sorted(numbers)] if len(numbers) == 1 else []
    known = bool(nodes)
    for node in nodes or _initiators(graph):
        attrs = {} if known else {"assumed": True}
        reason = "numa_node" if known else "numa_node is unknown"
        graph.link(bridge.id, node, "host bridge", source=f"sysfs: {reason}; no limit known", attrs=attrs)
    graph.nodes[bridge.id] = replace(bridge, attrs={**bridge.attrs, **({"numa": numbers.pop()} if known else {})})


def _initiators(graph: Topology) -> list[str]:
    """Return the NUMA nodes that a device may sit at: those with CPUs, all where none has."""
    nodes = graph.of("numa")
    return [node.id for node in nodes if node.get("has_cpu")] or [node.id for node in nodes]


def _below(graph: Topology, top: str) -> list[Node]:
    """Return the PCI nodes below one; links were made with the upper end first."""
    found, todo = [], [top]
    while todo:
        here = todo.pop()
        under = [link.b for link in graph.links if link.a == here and link.kind in {"pcie", "internal"}]
        found += [graph.nodes[name] for name in under]
        todo += under
    return found
