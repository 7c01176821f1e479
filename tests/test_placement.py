"""Placement: proven only where read back, and legs that state the least that crossed each way."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from iobench.hostmem import Pages
from iobench.placement import Placement
from iobench.topology.graph import Topology
from iobench.units import KIB, MIB


@pytest.fixture
def machine() -> Topology:
    graph = Topology("two-nodes")
    for cpu in (0, 1):
        graph.add(f"cpu:{cpu}", "cpu")
        graph.add(f"cache:L1d:{cpu}", "cache", level=1, type="Data", nbytes=32 * KIB, cpus=[cpu])
        graph.add(f"cache:L3:{cpu}", "cache", level=3, type="Unified", nbytes=MIB - 32 * KIB, cpus=[cpu])
    return graph


def placement(machine: Topology, **changes: Any) -> Placement:
    facts: dict[str, Any] = {
        "topology": machine,
        "cpus": (0, 1),
        "affinity": [[0], [1]],
        "pages": Pages(4096, 0.0),
        "places": [Counter({0: 10}), Counter({1: 5, 0: 5})],
        "wanted": "base",
    }
    return Placement(**{**facts, **changes})


def test_proven_needs_threads_pages_and_nodes(machine: Topology) -> None:
    assert placement(machine).proven
    assert not placement(machine, affinity=[[0], [0, 1]]).proven
    assert not placement(machine, affinity=[[1], [0]]).proven
    assert not placement(machine, pages=Pages(4096, None)).proven
    assert not placement(machine, wanted="huge").proven
    assert not placement(machine, places=[Counter({0: 10}), None]).proven


def test_path_and_evidence_name_what_was_read_back(machine: Topology) -> None:
    found = placement(machine)
    assert found.path == "memory of node 0,1, 4 KiB pages, CPU 0,1"
    assert found.evidence["pages_on_node"] == {"0": 15, "1": 5}
    assert found.evidence["pinned"] is True
    assert "node unknown" in placement(machine, places=[None, None]).path


def test_memory_is_charged_with_what_the_caches_cannot_keep(machine: Topology) -> None:
    core, near, far = placement(machine).legs(8 * MIB, 8 * MIB)
    assert (core.src, core.dst, core.count, core.moved) == ("cache:L1d:0", "cpu:0", 2, 8 * MIB)
    assert (near.src, near.dst, near.moved) == ("mem:0", "cpu:0", int(6 * MIB * 0.75))
    assert (far.src, far.dst, far.moved) == ("mem:1", "cpu:1", int(6 * MIB * 0.25))


def test_a_working_set_in_the_caches_has_no_memory_leg(machine: Topology) -> None:
    assert [leg.src for leg in placement(machine).legs(MIB, 2 * MIB)] == ["cache:L1d:0"]


def test_unknown_caches_or_nodes_claim_no_memory_leg(machine: Topology) -> None:
    assert [leg.src for leg in placement(machine, places=[None, None]).legs(MIB, 64 * MIB)] == ["cache:L1d:0"]
    assert placement(Topology("bare")).legs(MIB, 64 * MIB) == []
