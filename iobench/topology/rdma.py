"""RDMA ports with state and rate, from /sys/class/infiniband. The rate of a port that is down means nothing."""

from __future__ import annotations

import re

from iobench.topology import limits, pci
from iobench.topology.graph import Node, Topology
from iobench.topology.sysfs import Tree
from iobench.units import from_gigabits

_CLASS = "sys/class/infiniband"
_MOST_GIGABITS = 10**5
_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?) Gb/sec \(([0-9]+)X(?: ([A-Z0-9]+))?\)")


def add(tree: Tree, graph: Topology) -> None:
    """Add one ``port:device/N`` per RDMA port, linked to its PCI device or, for a software device, its interface."""
    for name in tree.names(_CLASS):
        device = pci.ancestor(graph, tree.real(_CLASS, name, "device") or tree.real(_CLASS, name))
        for port in tree.names(_CLASS, name, "ports"):
            if port.isascii() and port.isdigit():
                _add_port(tree, graph, name, port, device)


def data_rate(text: str | None, infiniband: bool) -> tuple[float | None, str]:
    """Return bytes/s per direction and the source of a rate file ("400 Gb/sec (4X NDR)").

    On InfiniBand the line code is taken off where the kernel shows the signalling rate (QDR and older, FDR);
    on Ethernet the names only stand for the rate.
    """
    match = _RATE.fullmatch(text or "")
    if not match or not 0 < float(match[1]) < _MOST_GIGABITS:
        return None, "unknown: no rate"
    limit = limits.infiniband(float(match[1]), match[3] or "SDR") if infiniband else None
    if limit:
        return limit.bytes_per_s, f"sysfs rate {text}; {limit.source}"
    return from_gigabits(float(match[1])), f"sysfs rate {text}"


def _add_port(tree: Tree, graph: Topology, name: str, port: str, device: Node | None) -> None:
    folder = f"{_CLASS}/{name}/ports/{port}"
    state = (tree.text(folder, "state") or "").rpartition(":")[2].strip() or None
    layer = tree.text(folder, "link_layer")
    real = device is not None and not device.get("emulated")
    limit, source = data_rate(tree.text(folder, "rate"), layer == "InfiniBand")
    if state != "ACTIVE":
        limit, source = None, f"unknown: the port is {(state or 'in an unknown state').lower()}"
    elif not real:
        limit, source = None, "a software or emulated device's rate is not physical"
    node = graph.add(
        f"port:{name}/{port}",
        "port",
        device=name,
        port=int(port),
        state=state,
        physical_state=(tree.text(folder, "phys_state") or "").rpartition(":")[2].strip() or None,
        link_layer=layer,
        line_bytes_per_s=limit,
        interfaces=_interfaces(tree, graph, name) or None,
        pci=device.id if device else None,
        numa=device.get("numa") if device else None,
        software=device is None or None,
    )
    for end in [device.id] if device else [f"nic:{nic}" for nic in _interfaces(tree, graph, name)]:
        graph.link(node.id, end, "line", limit, source=source)


def _interfaces(tree: Tree, graph: Topology, name: str) -> list[str]:
    """Return the network interfaces on an RDMA device: ``parent`` names a software device's one."""
    names = [*tree.names(_CLASS, name, "device/net"), tree.text(_CLASS, name, "parent") or ""]
    return [nic for nic in names if f"nic:{nic}" in graph.nodes]
