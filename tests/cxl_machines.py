"""Machines with CXL memory, made up, and what the probe plans on them."""

from __future__ import annotations

import pytest
from iobench import probe as probes
from iobench.errors import Unavailable
from iobench.topology.graph import Topology
from iobench.units import GIB

PROBE = probes.load("cxl")


def machine(*nodes: tuple[int, int, int], distance: dict[tuple[int, int], int] | None = None) -> Topology:
    """Return a machine of (node id, CPUs, GiB) with the distances that are given."""
    graph = Topology("made")
    graph.add("machine", "machine")
    number = 0
    for node, cpus, gib in nodes:
        own = list(range(number, number + cpus))
        number += cpus
        graph.add(f"numa:{node}", "numa", cpus=own, has_cpu=bool(cpus), has_memory=gib > 0, memory_bytes=gib * GIB)
        if gib:
            graph.add(f"mem:{node}", "mem", numa=node)
            graph.link(f"mem:{node}", f"numa:{node}", "dram")
        for cpu in own:
            graph.add(f"cpu:{cpu}", "cpu", numa=node, allowed=True)
    for (a, b), value in (distance or {}).items():
        graph.link(f"numa:{a}", f"numa:{b}", "interconnect", attrs={"distance": value})
    return graph


def plan(graph: Topology, *assignments: str) -> list[dict[str, object]]:
    return list(PROBE.points(graph, probes.narrow(PROBE, assignments)))


def reason(graph: Topology, *assignments: str) -> str:
    with pytest.raises(Unavailable) as caught:
        plan(graph, *assignments)
    return str(caught.value)
