"""NUMA nodes from ``numactl --hardware``. Its "MB" are MiB; a node of 0 MB has no memory, one without CPUs none."""

from __future__ import annotations

import re
from itertools import combinations

from iobench.topology.graph import Topology
from iobench.topology.logs.text import finding
from iobench.topology.sysfs import cpu_list
from iobench.units import MIB

_CPUS = re.compile(r"^[ \t]{0,40}node ([0-9]{1,4}) cpus:[ \t]*([0-9 \t,-]*)$", re.MULTILINE)
_SIZE = re.compile(r"^[ \t]{0,40}node ([0-9]{1,4}) size: ([0-9]{1,12}) MB[ \t]*$", re.MULTILINE)
_DISTANCES = re.compile(r"^[ \t]{0,40}node distances:\s*\n[ \t]{0,40}node((?:[ \t]+[0-9]+)+)[ \t]*\n((?:[ \t]*[0-9]+:(?:[ \t]+[0-9]+)+[ \t]*\n?)+)", re.MULTILINE)  # fmt: skip  # noqa: E501
_AVAILABLE = re.compile(r"^[ \t]{0,40}available: [0-9]{1,4} nodes \(", re.MULTILINE)
_NONE = re.compile(r"^No NUMA (?:support )?available on this system", re.MULTILINE)


def add(text: str, graph: Topology) -> bool:
    """Add ``numa:N``, ``mem:N`` and the CPUs; say whether the text is of numactl."""
    if _NONE.search(text):
        finding(graph, "numactl: no NUMA on this system; one node is assumed")
        add_node(graph, 0, None, None)
        graph.add("numa:0", "numa", assumed=True)
        return True
    text = _one_machine(text, graph)
    cpus = {int(match[1]): cpu_list(",".join(match[2].split())) for match in _CPUS.finditer(text)}
    sizes = {int(match[1]): int(match[2]) * MIB for match in _SIZE.finditer(text)}
    for number in sorted({*cpus, *sizes}):
        ids = cpus.get(number)
        add_node(graph, number, None if ids is None else list(ids), sizes.get(number))
    _add_distances(text, graph)
    return bool(cpus or sizes)


def _one_machine(text: str, graph: Topology) -> str:
    """Return the part of the first machine: in notes, outputs of several stand one below the other."""
    starts = [match.start() for match in _AVAILABLE.finditer(text)]
    parts = [text[start:stop] for start, stop in zip(starts, [*starts[1:], len(text)], strict=False)]
    if not parts:
        return text
    told = [(_CPUS.findall(part), _SIZE.findall(part)) for part in parts]
    if any(other != told[0] for other in told[1:] if any(other)):
        finding(graph, f"numactl: the log shows {len(parts)} machines or states, the first is taken")
    elif _SIZE.search(text[: starts[0]]):
        finding(graph, "numactl: what stands above the first whole output is left out")
    return next((part for part, has in zip(parts, told, strict=True) if any(has)), text)


def add_node(graph: Topology, number: int, cpus: list[int] | None, nbytes: int | None) -> None:
    """Add one NUMA node with what is known of it; the memory's limit is not in such a log."""
    new = f"numa:{number}" not in graph.nodes
    node = graph.add(
        f"numa:{number}",
        "numa",
        cpus=cpus,
        has_cpu=None if cpus is None else bool(cpus),
        has_memory=None if nbytes is None else nbytes > 0,
        memory_bytes=nbytes,
        sockets=[],
    )
    if new:
        graph.link("machine", node.id, "contains")
    for cpu in cpus or ():
        if f"cpu:{cpu}" not in graph.nodes:
            graph.add(f"cpu:{cpu}", "cpu", numa=number)
            graph.link(node.id, f"cpu:{cpu}", "local")
    if node.get("has_memory") is not False and f"mem:{number}" not in graph.nodes:
        graph.add(f"mem:{number}", "mem", numa=number, memory_bytes=nbytes)
        graph.link(f"mem:{number}", node.id, "dram", duplex=False, source="unknown: the log does not name the memory")


def _add_distances(text: str, graph: Topology) -> None:
    match = _DISTANCES.search(text)
    if match is None:
        if "node distances:" in text:
            finding(graph, "numactl: the table of distances can't be read")
        return
    order = [int(word) for word in match[1].split()]
    rows: dict[int, list[int]] = {}
    for line in match[2].splitlines():
        name, _, values = line.partition(":")
        rows[int(name)] = [int(word) for word in values.split()]
    if any(len(row) != len(order) for row in rows.values()) or set(rows) != set(order):
        finding(graph, "numactl: the table of distances is not square and was left out")
        return
    for number, row in rows.items():
        if f"numa:{number}" in graph.nodes:
            graph.add(f"numa:{number}", "numa", distance=row)
    joined = {frozenset((link.a, link.b)) for link in graph.links if link.kind == "interconnect"}
    for a, b in combinations(order, 2):
        ends = (f"numa:{a}", f"numa:{b}")
        if frozenset(ends) not in joined and all(end in graph.nodes for end in ends):
            attrs = {"distance": rows[a][order.index(b)]}
            graph.link(*ends, "interconnect", source="unknown: the log names no processor", attrs=attrs)
