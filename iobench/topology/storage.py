"""Block devices and what they lie on: partitions, device mapper, RAID, loop, multipath, down to the PCI device."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Any

from iobench.topology import pci
from iobench.topology.graph import Node, Topology
from iobench.topology.sysfs import Tree

_BLOCK = "sys/class/block"
_SECTOR_NBYTES = 512  # the unit of /sys/class/block/*/size, whatever the device's sector is
_KINDS = {"dm-": "device mapper", "md": "RAID", "loop": "loop", "zram": "memory", "ram": "memory", "nbd": "network"}


def add(tree: Tree, graph: Topology) -> None:
    """Add one ``block:`` per device and partition that holds something, linked to what it lies on."""
    folder = _BLOCK if tree.names(_BLOCK) else "sys/block"
    names = [name for name in tree.names(folder) if _holds_something(tree, folder, name)]
    for name in names:
        graph.add(f"block:{name}", "block", **_attrs(tree, folder, name, graph.facts.get("virtual") is True))
    for name in names:
        _link_down(tree, graph, folder, name)


def device_numbers(tree: Tree) -> dict[str, str]:
    """Return "major:minor" -> block device name."""
    folder = _BLOCK if tree.names(_BLOCK) else "sys/block"
    numbers = {tree.text(folder, name, "dev"): name for name in tree.names(folder)}
    return {number: name for number, name in numbers.items() if number}


def mapper_names(tree: Tree) -> dict[str, str]:
    """Return the device mapper's names (/dev/mapper/NAME) -> block device name."""
    names = [name for name in tree.names(_BLOCK) or tree.names("sys/block") if name.startswith("dm-")]
    shown = {name: tree.text(_BLOCK, name, "dm/name") or tree.text("sys/block", name, "dm/name") for name in names}
    return {mapper: name for name, mapper in shown.items() if mapper}


def _holds_something(tree: Tree, folder: str, name: str) -> bool:
    """Tell whether a device is in use: an unbound loop device or an empty drive has no sectors."""
    return tree.number(folder, name, "size") != 0 and tree.text(folder, name, "hidden") != "1"


def _attrs(tree: Tree, folder: str, name: str, virtual: bool) -> dict[str, Any]:
    sectors = tree.number(folder, name, "size")
    rotational = tree.number(folder, name, "queue/rotational")
    partition = tree.exists(folder, name, "partition")
    kinds = (kind for prefix, kind in _KINDS.items() if re.fullmatch(rf"{prefix}[0-9].*", name))
    return {
        "type": "partition" if partition else next(kinds, "disk"),
        "nbytes": sectors * _SECTOR_NBYTES if sectors else None,
        "sector_nbytes": tree.number(folder, name, "queue/logical_block_size") or None,
        "rotational": None if rotational is None or virtual else bool(rotational),  # virtio says 1 of anything
        "transport": tree.text(folder, name, "device/transport"),
    }


def _link_down(tree: Tree, graph: Topology, folder: str, name: str) -> None:
    here, place = f"block:{name}", tree.real(folder, name)
    below = [f"block:{slave}" for slave in tree.names(folder, name, "slaves") if f"block:{slave}" in graph.nodes]
    if graph.nodes[here].get("type") == "partition" and place:
        disk = f"block:{PurePosixPath(place).parent.name}"
        below = [disk] if disk in graph.nodes else []
    for other in below:
        graph.link(here, other, "part", source="no limit of its own")
    if below:
        return
    if graph.nodes[here].get("type") == "memory":
        _link_memory(graph, here)
    for device in _devices(tree, graph, place):
        graph.link(here, device.id, "disk", source="unknown: the device's own rate")
        graph.add(here, "block", pci=device.id, numa=device.get("numa"))


def _devices(tree: Tree, graph: Topology, place: str | None) -> list[Node]:
    """Return the PCI devices that lead to a disk: several for NVMe multipath, whose disk is a virtual device."""
    places = [place]
    if place and "/nvme-subsystem/" in place:
        subsystem = place.rpartition("/")[0]
        controllers = [part for part in tree.names(subsystem) if re.fullmatch(r"nvme[0-9]+", part)]
        places = [tree.real(subsystem, part) for part in controllers]
    found = [pci.ancestor(graph, path) for path in places]
    return list({node.id: node for node in found if node is not None}.values())


def _link_memory(graph: Topology, name: str) -> None:
    for node in graph.of("numa"):
        if node.get("has_memory") is not False:
            graph.link(name, node.id, "memory", source="a device in memory: the memory's limit holds")
