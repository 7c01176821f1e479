"""CXL memory devices and regions, and device-dax memory with its state, from /sys/bus/cxl and /sys/bus/dax."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from iobench.topology import limits, pci
from iobench.topology.graph import Link, Topology
from iobench.topology.sysfs import Tree, positive

_CXL = "sys/bus/cxl/devices"
_DAX = "sys/bus/dax/devices"
_NODE = "sys/devices/system/node"
_MEMORY = "sys/devices/system/memory"


def add(tree: Tree, graph: Topology) -> None:
    """Add ``cxl:memN``, ``cxl:regionN`` and ``dax:`` nodes, and give CXL-backed NUMA nodes their link's limit."""
    names = tree.names(_CXL)
    for name in names:
        if re.fullmatch(r"mem[0-9]+", name):
            _add_memory_device(tree, graph, name)
    for name in names:
        if re.fullmatch(r"region[0-9]+", name):
            _add_region(tree, graph, name)
    for name in tree.names(_DAX):
        if re.fullmatch(r"dax[0-9]+\.[0-9]+", name):
            _add_dax(tree, graph, name)
    _limit_memory(graph)
    _mark_unmapped(graph)


def _add_memory_device(tree: Tree, graph: Topology, name: str) -> None:
    device = pci.ancestor(graph, tree.real(_CXL, name))
    node = graph.add(
        f"cxl:{name}",
        "cxl",
        type="memory device",
        volatile_bytes=positive(tree.number(_CXL, name, "ram/size")),
        persistent_bytes=positive(tree.number(_CXL, name, "pmem/size")),
        pci=device.id if device else None,
        device_numa=_known_node(graph, tree.number(_CXL, name, "numa_node")),  # where the device sits, not its memory
    )
    if device is not None:
        graph.link(node.id, device.id, "function", source="the same device")


def _add_region(tree: Tree, graph: Topology, name: str) -> None:
    ways = positive(tree.number(_CXL, name, "interleave_ways"))
    targets = [_memory_device(tree, tree.text(_CXL, name, f"target{place}")) for place in range(min(ways or 0, 64))]
    node = graph.add(
        f"cxl:{name}",
        "cxl",
        type="region",
        nbytes=positive(tree.number(_CXL, name, "size")),
        mode=tree.text(_CXL, name, "mode"),
        interleave_ways=ways,
        interleave_nbytes=positive(tree.number(_CXL, name, "interleave_granularity")),
        committed=None if (commit := tree.number(_CXL, name, "commit")) is None else commit == 1,
    )
    for target in targets:
        if target is not None and f"cxl:{target}" in graph.nodes:
            graph.link(node.id, f"cxl:{target}", "interleave", source="no limit of its own")


def _memory_device(tree: Tree, decoder: str | None) -> str | None:
    """Return the memory device of an endpoint's decoder: its port's ``uport`` links to it."""
    place = tree.real(_CXL, decoder) if decoder and re.fullmatch(r"decoder[0-9.]+", decoder) else None
    return tree.target(place.rpartition("/")[0], "uport") if place else None


def _add_dax(tree: Tree, graph: Topology, name: str) -> None:
    driver = tree.target(_DAX, name, "driver")
    target = tree.number(_DAX, name, "target_node")
    ram = driver == "kmem"
    region = _region_of(tree, name)
    node = graph.add(
        f"dax:{name}",
        "dax",
        nbytes=positive(tree.number(_DAX, name, "size")),
        mode={"kmem": "system-ram", "device_dax": "devdax"}.get(driver or ""),
        target_numa=target,
        device_numa=_known_node(graph, tree.number(_DAX, name, "numa_node")),
        align_nbytes=positive(tree.number(_DAX, name, "align")),
        region=f"cxl:{region}" if region else None,
        **(_online(tree, target) if ram and target is not None else {}),
    )
    if region and f"cxl:{region}" in graph.nodes:
        graph.link(node.id, f"cxl:{region}", "maps", source="no limit of its own")


def _region_of(tree: Tree, name: str) -> str | None:
    """Return the CXL region that holds a dax device: by its path, or (persistent memory) by its addresses."""
    place = (tree.real(_DAX, name) or "").split("/")
    if any(part.startswith("dax_region") for part in place):
        return next((part for part in place if re.fullmatch(r"region[0-9]+", part)), None)
    address = tree.number(_DAX, name, "resource")  # readable by root only
    for region in tree.names(_CXL) if address is not None else []:
        start, nbytes = (tree.number(_CXL, region, field) for field in ("resource", "size"))
        if start is not None and nbytes and address is not None and start <= address < start + nbytes:
            return region
    return None


def _online(tree: Tree, number: int) -> dict[str, Any]:
    """Return how much of a node's memory blocks is online: all, none or a part."""
    blocks = [name for name in tree.names(_NODE, f"node{number}") if re.fullmatch(r"memory[0-9]+", name)]
    states = [tree.text(_MEMORY, name, "state") or tree.text(_NODE, f"node{number}", name, "state") for name in blocks]
    online = states.count("online")
    if not states or None in states:
        return {}
    word = "online" if online == len(states) else "partly online" if online else "offline"
    return {"state": word, "memory_blocks": len(states), "memory_blocks_online": online}


def _limit_memory(graph: Topology) -> None:
    """Give the memory of nodes without CPUs the limit of the PCIe links that their regions interleave over."""
    regions: dict[int, list[str]] = {}
    for dax in graph.of("dax"):
        region = dax.get("region")
        if dax.get("mode") == "system-ram" and region in graph.nodes and dax.get("target_numa") is not None:
            regions.setdefault(dax.get("target_numa"), []).append(region)
    for place, link in enumerate(graph.links):
        number = graph.nodes[link.a].get("numa") if link.kind == "dram" else None
        if number in regions and not graph.nodes[f"numa:{number}"].get("has_cpu"):
            backing = sorted(set(regions[number]))
            graph.links[place] = _cxl_link(link, [hop for region in backing for hop in _hops(graph, region)], backing)


def _hops(graph: Topology, region: str) -> list[Link | None]:
    """Return the PCIe link of each device that a region interleaves over, None for one that is not known."""
    devices = [graph.nodes[there].get("pci") for there, link in graph.neighbours(region) if link.kind == "interleave"]
    return [
        next((link for link in graph.links if link.b == device and link.kind == "pcie"), None) for device in devices
    ]


def _cxl_link(link: Link, hops: list[Link | None], regions: list[str]) -> Link:
    rates = [hop.bytes_per_s if hop else None for hop in hops]
    total = sum(rate for rate in rates if rate is not None)
    attrs: dict[str, Any] = {"regions": regions}
    if not rates or None in rates:
        source = "unknown: the CXL device's link"
        return replace(link, kind="cxl", bytes_per_s=None, duplex=True, source=source, attrs=attrs)
    attrs["warn_bytes_per_s"] = limits.cxl_warning(total)
    source = f"{len(hops)} CXL links; {hops[0].source if hops[0] else ''}"
    return replace(link, kind="cxl", bytes_per_s=total, duplex=True, source=source, attrs=attrs)


def _mark_unmapped(graph: Topology) -> None:
    """Say of each memory device without a region that it is there but not usable."""
    for node in graph.of("cxl"):
        if node.get("type") == "memory device":
            mapped = any(link.kind == "interleave" for _, link in graph.neighbours(node.id))
            graph.add(node.id, "cxl", state="mapped" if mapped else "present, not mapped")


def _known_node(graph: Topology, number: int | None) -> int | None:
    return number if f"numa:{number}" in graph.nodes else None
