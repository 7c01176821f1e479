"""NUMA nodes, their memory and what joins them, from /sys/devices/system/node."""

from __future__ import annotations

import re
from itertools import combinations
from typing import Any

from iobench.topology import dimms, limits
from iobench.topology.cpu import row_of, status_list
from iobench.topology.graph import Node, Topology
from iobench.topology.sysfs import Tree, integer, positive
from iobench.units import KIB, MB, NS

_NODE = "sys/devices/system/node"
_MOST_JOINED = 64  # every pair of nodes gets a link: beyond this the graph would be all links
_MOST_SHARES = 4  # no processor splits its memory channels into more NUMA nodes than this


def add(tree: Tree, graph: Topology) -> None:
    """Add NUMA nodes, ``mem:N`` of those with memory, and the links between memory, nodes, CPUs and sockets."""
    numbers = [integer(name[4:]) for name in tree.names(_NODE) if re.fullmatch(r"node[0-9]+", name)]
    allowed = status_list(tree, "Mems_allowed_list")
    for number in (number for number in numbers if number is not None):
        may = None if allowed is None else number in allowed
        graph.add(f"numa:{number}", "numa", allowed=may, **_attrs(tree, number))
    if not graph.of("numa"):
        _assume_one(tree, graph)
    _correct_one(tree, graph)
    for node in graph.of("numa"):
        _link_cpus(graph, node)
    for node in graph.of("numa"):
        _link_memory(tree, graph, node)
    _link_nodes(graph)


def number_of(node: Node) -> int:
    """Return N of ``numa:N``."""
    return int(node.id.partition(":")[2])


def _attrs(tree: Tree, number: int) -> dict[str, Any]:
    folder = f"{_NODE}/node{number}"
    cpus = tree.cpus(folder, "cpulist")
    nbytes = _memory(tree.text(folder, "meminfo"), f"Node {number} MemTotal:")
    distance = [integer(word) for word in (tree.text(folder, "distance") or "").split()]
    initiators = [integer(name[4:]) for name in tree.names(folder, "access0/initiators") if name.startswith("node")]
    bandwidth = positive(tree.number(folder, "access0/initiators/read_bandwidth"))
    latency = positive(tree.number(folder, "access0/initiators/read_latency"))
    return {
        "cpus": None if cpus is None else list(cpus),
        "has_cpu": None if cpus is None else bool(cpus),
        "has_memory": None if nbytes is None else nbytes > 0,
        "memory_bytes": nbytes,
        "distance": distance if distance and None not in distance else None,
        "initiators": [node for node in initiators if node is not None] or None,
        "firmware_read_bytes_per_s": bandwidth * MB if bandwidth else None,
        "firmware_read_seconds": round(latency * NS, 12) if latency else None,
    }


def _memory(text: str | None, label: str) -> int | None:
    """Return the bytes of one line of a meminfo file."""
    match = re.search(re.escape(label) + r"\s*([0-9]+) kB", text or "")
    return int(match[1]) * KIB if match else None


def _assume_one(tree: Tree, graph: Topology) -> None:
    """Add one node with all CPUs and all memory where the kernel shows none (no NUMA support, gVisor)."""
    cpus = [int(cpu.id.partition(":")[2]) for cpu in graph.of("cpu")]
    nbytes = _memory(tree.text("proc/meminfo"), "MemTotal:")
    graph.add("numa:0", "numa", cpus=cpus, has_cpu=bool(cpus), has_memory=True, memory_bytes=nbytes, assumed=True)
    graph.facts.setdefault("assumptions", []).append("the kernel shows no NUMA nodes: one is assumed")


def _correct_one(tree: Tree, graph: Topology) -> None:
    """Take all memory as the one node's: in virtual machines a node's own figure may lag behind what was added."""
    nodes = [node for node in graph.of("numa") if node.get("has_memory")]
    total = _memory(tree.text("proc/meminfo"), "MemTotal:")
    if len(nodes) == 1 and total:
        graph.add(nodes[0].id, "numa", memory_bytes=max(total, nodes[0].get("memory_bytes")))


def _link_cpus(graph: Topology, node: Node) -> None:
    sockets: set[int] = set()
    for number in node.get("cpus") or ():
        cpu = graph.node(f"cpu:{number}")
        if cpu is None or cpu.get("numa") is not None:
            continue
        graph.add(cpu.id, "cpu", numa=number_of(node))
        graph.link(node.id, cpu.id, "local")
        if cpu.get("socket") is not None:
            sockets.add(cpu.get("socket"))
    for socket in sorted(sockets):
        graph.link(f"socket:{socket}", node.id, "contains")
    graph.add(node.id, "numa", sockets=sorted(sockets))
    if not sockets:
        graph.link("machine", node.id, "contains")


def _link_memory(tree: Tree, graph: Topology, node: Node) -> None:
    if node.get("has_memory") is False:
        return
    memory = graph.add(f"mem:{number_of(node)}", "mem", numa=number_of(node), memory_bytes=node.get("memory_bytes"))
    limit, reason = _dram(tree, graph, graph.nodes[node.id])
    graph.link(memory.id, node.id, "dram", limit, duplex=False, source=reason)


def _dram(tree: Tree, graph: Topology, node: Node) -> tuple[float | None, str]:
    """Return the limit of one node's memory: all channels of the sockets that its CPUs are of."""
    sockets: list[int] = node.get("sockets") or []
    if not sockets:
        return None, "unknown: no CPUs of a known socket share this node"
    total, sources = 0.0, []
    for socket in sockets:
        row = row_of(graph, socket)
        limit, found = limits.dram(row), dimms.socket_bound(graph)
        if found and (limit is None or found < limit.bytes_per_s):
            total += found
            sources.append("memory modules as found: configured speed times width, summed (SMBIOS)")
            continue
        threads = sum(cpu.get("socket") == socket for cpu in graph.of("cpu"))
        if row is None or limit is None:
            return None, "unknown: limits.toml has no memory figures for this processor"
        if threads > row["threads"]:
            return None, f"unknown: {threads} CPUs in one socket, its processor has {row['threads']} at most"
        total += limit.bytes_per_s
        sources.append(limit.source)
    shares = _shares(tree, graph, node)
    text = f"{sources[0]}; {len(sockets)} sockets" if len(sockets) > 1 else sources[0]
    return total / shares, f"{text}; one of {shares} equal parts of the socket" if shares > 1 else text


def _shares(tree: Tree, graph: Topology, node: Node) -> int:
    """Return into how many NUMA nodes the channels of the node's socket are split (SNC, NPS); 1 where in doubt.

    In a virtual machine, with emulated nodes, and where each node is just one last-level cache ("L3 as NUMA"),
    nodes say nothing of the channels.
    """
    peers = [other for other in graph.of("numa") if other.get("sockets") == node.get("sockets")]
    peers = [other for other in peers if other.get("has_memory")]
    if graph.facts.get("virtual") is not False or "numa=fake" in (tree.text("proc/cmdline") or ""):
        return 1
    even = len({len(other.get("cpus") or ()) for other in peers}) == 1
    own_cache = any(set(cache.get("cpus")) >= set(node.get("cpus") or ()) for cache in _last_caches(graph))
    amd = graph.nodes["machine"].get("vendor") == "AuthenticAMD"
    if len(node.get("sockets")) != 1 or not even or len(peers) > _MOST_SHARES or (amd and own_cache):
        return 1
    return len(peers)


def _last_caches(graph: Topology) -> list[Node]:
    caches = graph.of("cache")
    last = max((cache.get("level") for cache in caches), default=0)
    return [cache for cache in caches if cache.get("level") == last]


def _link_nodes(graph: Topology) -> None:
    """Link every pair of nodes, as the firmware's table of distances does."""
    nodes = [node for node in graph.of("numa") if node.get("has_cpu") or node.get("has_memory") is not False]
    if len(nodes) > _MOST_JOINED:
        graph.facts.setdefault("assumptions", []).append(f"{len(nodes)} NUMA nodes: links between them left out")
        return
    order = [number_of(node) for node in graph.of("numa")]
    for a, b in combinations(nodes, 2):
        limit, reason = _between(graph, a, b)
        distances = a.get("distance") or []
        place = order.index(number_of(b))  # the table has one column per node that is there, ids may have gaps
        attrs = {"distance": distances[place]} if place < len(distances) else {}
        graph.link(a.id, b.id, "interconnect", limit, source=reason, attrs=attrs)


def _between(graph: Topology, a: Node, b: Node) -> tuple[float | None, str]:
    ours, theirs = a.get("sockets") or [], b.get("sockets") or []
    if len(ours) != 1 or len(theirs) != 1:
        return None, "unknown: not between two known sockets"
    if ours == theirs:
        return None, "inside one socket: no limit known"
    if graph.facts.get("virtual") is not False:
        return None, "unknown: a virtual machine's sockets may lie on one real socket"
    limit = limits.socket_link(row_of(graph, ours[0]))
    return (limit.bytes_per_s, limit.source) if limit else (None, "unknown: limits.toml has no row for this processor")
