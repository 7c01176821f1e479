"""Network interfaces with a device behind them, and the loopback, from /sys/class/net."""

from __future__ import annotations

import re

from iobench.topology import pci
from iobench.topology.graph import Node, Topology
from iobench.topology.sysfs import Tree
from iobench.units import from_megabits

_NET = "sys/class/net"
_NAMED_BY_MAC = re.compile(r"(enx|wlx|ibx)[0-9a-f]{12}.*")  # such a name would put a hardware address into the graph
_MOST_MEGABITS = 10**7  # -1 is shown as 4294967295 by old kernels


def add(tree: Tree, graph: Topology) -> None:
    """Add ``net:lo`` and one ``nic:`` per interface with a device, each with its rate where the link is up."""
    if tree.exists(_NET, "lo"):
        add_loopback(graph)
    for name in tree.names(_NET):
        place = tree.real(_NET, name, "device")
        if place is not None and name != "lo":
            _add_nic(tree, graph, name, pci.ancestor(graph, place))


def add_loopback(graph: Topology) -> None:
    """Add the loopback: it copies within memory, so the memory's limit is its limit."""
    graph.add("net:lo", "net", loopback=True)
    for node in graph.of("numa"):
        if node.get("has_memory") is not False:
            graph.link("net:lo", node.id, "loopback", source="a copy in memory: the memory's limit holds")


def rate(tree: Tree, name: str) -> float | None:
    """Return an interface's line rate in bytes/s, None where it is down or does not say (-1)."""
    megabits = tree.number(_NET, name, "speed")
    if not megabits or megabits > _MOST_MEGABITS or tree.text(_NET, name, "operstate") != "up":
        return None
    return from_megabits(megabits)


def _add_nic(tree: Tree, graph: Topology, name: str, device: Node | None) -> None:
    shown = name if not _NAMED_BY_MAC.fullmatch(name) else f"{name[:3]}-{len(graph.of('nic'))}"
    emulated = device.get("emulated") if device else None
    limit = None if emulated else rate(tree, name)
    graph.add(
        f"nic:{shown}",
        "nic",
        state=tree.text(_NET, name, "operstate"),
        driver=tree.target(_NET, name, "device/driver"),
        mtu_nbytes=tree.number(_NET, name, "mtu"),
        line_bytes_per_s=limit,
        pci=device.id if device else None,
        numa=device.get("numa") if device else None,
    )
    if device is None:
        return
    known = "sysfs speed" if limit else "unknown: no rate, or the link is down"
    source = "an emulated device's rate is not physical" if emulated else known
    graph.link(f"nic:{shown}", device.id, "line", limit, source=source)
