"""What the probes of host memory plan on machines of every shape: dram, loaded, numa and cxl on the same trees."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from iobench import probe as probes
from iobench import topology
from iobench.errors import Unavailable
from iobench.topology.graph import Topology
from tests.machines import AMD_MILAN, Machine
from tests.test_topology_odd import plant

PROBES = {name: probes.load(name) for name in ("dram", "loaded", "numa", "cxl")}
GIB = 64
Pairs = Sequence[tuple[int, int]]


@dataclasses.dataclass(frozen=True)
class Shape:
    """``nodes`` are (id, CPU list, GiB); what this process may use; and what each probe is to plan.

    ``spread``: whether dram has nodes to spread its pages over; ``load``: (loaders, threads) of the loaded latency,
    None where it can't run; ``bound``: numa's pairs of memory node and CPU node (those that will say that they are
    forbidden among them); ``far``: cxl's nodes, with the node whose CPUs are nearest.
    """

    nodes: Sequence[tuple[int, str, float]]
    spread: bool
    load: tuple[str, int] | None
    bound: Pairs
    far: dict[int, int] = dataclasses.field(default_factory=dict)
    mems: str = "0-15"
    cpus: str = "0-15"
    distance: dict[tuple[int, int], int] = dataclasses.field(default_factory=dict)


def even(count: int) -> list[tuple[int, str, float]]:
    each = 16 // count
    return [(node, f"{node * each}-{(node + 1) * each - 1}", GIB) for node in range(count)]


def every(memory: Sequence[int], cpus: Sequence[int]) -> Pairs:
    return [(mem, cpu) for mem in memory for cpu in cpus]


SHAPES = {
    "one node": Shape(even(1), False, ("near", 15), every([0], [0])),
    "two nodes": Shape(even(2), True, ("near", 7), every([0, 1], [0, 1])),
    "four nodes": Shape(even(4), True, ("near", 3), every(range(4), range(4))),
    "eight nodes": Shape(even(8), True, ("near", 1), every(range(8), range(8))),
    "a node without CPUs": Shape(
        [(0, "0-7", GIB), (1, "8-15", GIB), (2, "", 128)],
        True,
        ("near", 7),
        every([0, 1, 2], [0, 1]),
        {2: 1},
        distance={(0, 2): 30, (1, 2): 17},
    ),
    "a node without memory": Shape([(0, "0-7", GIB), (1, "8-15", 0)], False, ("near", 7), every([0], [0, 1])),
    "all memory on a node without CPUs": Shape([(0, "0-15", 0), (1, "", GIB)], False, ("near", 15), [(1, 0)], {1: 0}),
    "ids with gaps": Shape(
        [(0, "0-7", GIB), (3, "", 32), (8, "8-15", GIB)], True, ("near", 7), every([0, 3, 8], [0, 8]), {3: 0}
    ),
    "nodes of one CPU": Shape(
        [(0, "0", GIB), (1, "1-14", GIB), (2, "15", GIB)], True, ("far", 15), every([0, 1, 2], [0, 1, 2])
    ),
    "forbidden memory": Shape(even(2), False, ("near", 7), [(1, 0), (1, 1), (0, 0)], mems="1"),
    "forbidden CPUs": Shape(even(2), True, ("near", 7), [(0, 0), (1, 0), (0, 1)], cpus="0-7"),
    "one CPU is allowed": Shape(even(2), True, None, [(0, 0), (1, 0), (0, 1)], cpus="3"),
    "forbidden memory without CPUs": Shape(
        [(0, "0-15", GIB), (1, "", 128)], False, ("near", 15), [(0, 0), (1, 0)], mems="0"
    ),
}


@pytest.fixture(params=SHAPES)
def shape(request: pytest.FixtureRequest) -> Shape:
    return SHAPES[request.param]


@pytest.fixture
def graph(shape: Shape, tmp_path: Path) -> Topology:
    box = Machine(tmp_path)
    box.cpus(16, 1, AMD_MILAN, "512K", "32768K", 8)
    numbers = [number for number, _, _ in shape.nodes]
    for number, cpus, gib in shape.nodes:
        apart = (shape.distance.get((min(number, other), max(number, other)), 20) for other in numbers)
        box.node(
            number,
            cpus,
            gib,
            " ".join("10" if other == number else str(far) for other, far in zip(numbers, apart, strict=True)),
        )
    box.file("proc/self/status", f"Cpus_allowed_list:\t{shape.cpus}\nMems_allowed_list:\t{shape.mems}")
    return topology.discover(tmp_path)


def plan(name: str, graph: Topology, *assignments: str) -> list[dict[str, Any]]:
    return list(PROBES[name].points(graph, probes.narrow(PROBES[name], assignments)))


def test_dram(graph: Topology, shape: Shape) -> None:
    points = plan("dram", graph)
    spread = [point for point in points if "policy" in point]
    assert {point["policy"] for point in spread} == ({"interleave", "weighted"} if shape.spread else set())
    assert all(point["threads"] == max(each["threads"] for each in points if "threads" in each) for point in spread)
    assert {point["kernel"] for point in points} >= {"copy", "read", "chase", "walk"}


def test_loaded(graph: Topology, shape: Shape) -> None:
    if shape.load is None:
        with pytest.raises(Unavailable, match="needs two CPUs"):
            plan("loaded", graph)
        return
    assert {(point.get("loaders", "near"), point["threads"]) for point in plan("loaded", graph)} == {shape.load}


def test_numa(graph: Topology, shape: Shape) -> None:
    pairs = dict.fromkeys((point["mem"], point["cpu"]) for point in plan("numa", graph))
    assert list(pairs) == [*shape.bound, ("unbound", "unbound")]


def test_cxl(graph: Topology, shape: Shape) -> None:
    from iobench.cxl import forms

    if not shape.far:
        with pytest.raises(Unavailable, match="CXL memory"):
            plan("cxl", graph)
        return
    assert {point["node"] for point in plan("cxl", graph, "form=node")} == set(shape.far)
    assert {form.node: form.near for form in forms.forms(graph) if form.kind == "node"} == shape.far


@pytest.mark.parametrize("name", PROBES)
@pytest.mark.parametrize(
    "tree",
    ["no-numa-folder", "no-sysfs-only-cpuinfo", "empty", "node-ids-with-gaps-cpulist-blank",
     "node-with-cpus-and-no-memory", "cpus-allowed-is-a-part", "numa-fake-two-nodes-of-one-socket",
     "cache-size-empty-and-shared-list-empty"],
)  # fmt: skip
def test_trees_that_lack_something(name: str, tree: str, tmp_path: Path) -> None:
    """A plan whose points lie on nodes of the graph, or one sentence that says what is needed."""
    graph = topology.discover(plant(tree, tmp_path))
    try:
        points = plan(name, graph)
    except Unavailable as reason:
        points, says = [], str(reason)
    else:
        says = ""
    assert bool(points) is not bool(says)
    assert not says or "needs" in says or "no CXL memory" in says
    assert {point["mem"] for point in points if isinstance(point.get("mem"), int)} <= {
        node.get("numa") for node in graph.of("mem")
    }


@pytest.mark.parametrize("name", PROBES)
def test_nothing_at_all(name: str, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="needs"):
        plan(name, topology.discover(tmp_path, told=[]))
