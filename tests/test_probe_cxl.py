"""CXL memory: the plan on every kind of machine, what is said where there is none, and the data of a real run."""

from __future__ import annotations

from pathlib import Path

import pytest
from iobench.cxl import forms, legs
from iobench.topology import discover
from iobench.topology.graph import Topology
from iobench.units import GIB, KIB, MIB

from cxl_machines import machine, plan, reason
from machines import BUILT, built, captured

# --- the plan ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "far"),
    [
        ([(0, 4, 64)], []),  # one node
        ([(0, 4, 64), (1, 4, 64)], []),  # two sockets
        ([(0, 4, 64), (1, 0, 128)], [1]),  # a node without CPUs
        ([(0, 4, 64), (1, 4, 0)], []),  # a node without memory
        ([(0, 4, 64), (1, 4, 64), (2, 0, 256), (3, 0, 256)], [2, 3]),
        ([(0, 2, 64), (7, 2, 64), (42, 0, 128)], [42]),  # ids with gaps
        ([(n, 2, 32) for n in range(6)] + [(6, 0, 64), (7, 0, 64)], [6, 7]),  # eight
        ([(0, 4, 0), (1, 0, 64)], [1]),  # all memory far: nothing local to compare with
        ([(0, 4, 64), (1, 0, 0)], []),  # neither
    ],
)
def test_far_nodes_are_those_with_memory_and_without_cpus(nodes: list[tuple[int, int, int]], far: list[int]) -> None:
    graph = machine(*nodes)
    if not far:
        assert "needs CXL memory" in reason(graph)
        return
    points = plan(graph)
    assert sorted({point["node"] for point in points if point["form"] == "node"}) == far
    local = {point["node"] for point in points if point["form"] == "local"}
    assert local == ({0} if nodes[0][2] else set())
    turns = {(point["node"], point["turns"]) for point in points if point["form"] == "interleave"}
    assert turns == ({(node, how) for node in far for how in ("equal", "weighted")} if local else set())


def test_the_nearest_cpus_are_by_hmat_then_by_distance() -> None:
    nodes = ((0, 2, 64), (1, 2, 64), (2, 0, 128))
    by_distance = machine(*nodes, distance={(0, 2): 28, (1, 2): 17})
    assert [form.near for form in forms.forms(by_distance) if form.kind == "node"] == [1]
    by_distance.add("numa:2", "numa", initiators=[0])
    assert [form.cpus for form in forms.forms(by_distance) if form.kind == "node"] == [(0, 1)]


def test_forbidden_nodes_and_cpus_are_left_alone_and_named() -> None:
    graph = machine((0, 2, 64), (1, 2, 64), (2, 0, 128), (3, 0, 128), distance={(0, 2): 17, (1, 2): 28})
    graph.add("numa:3", "numa", allowed=False)
    for cpu in (0, 1):
        graph.add(f"cpu:{cpu}", "cpu", allowed=False)
    found = [form for form in forms.forms(graph) if form.kind == "node"]
    assert [(form.node, form.near) for form in found] == [(2, 1)]
    assert any("NUMA node 3 is not this process's" in text for text in forms.obstacles(graph))


def test_memory_of_a_gpu_is_no_cxl_memory() -> None:
    graph = machine((0, 2, 64), (1, 0, 96))
    graph.add("gpu:0", "gpu", memory_numa=1)
    assert "needs CXL memory" in reason(graph)


def test_an_assumed_node_offers_nothing() -> None:
    graph = machine((0, 2, 64), (1, 0, 64))
    graph.add("numa:1", "numa", assumed=True)
    assert reason(graph)


def test_stand_in_only_when_asked_and_labelled() -> None:
    graph = machine((0, 2, 64), (1, 2, 64))
    assert reason(graph)
    points = plan(graph, "form=stand-in,local")
    assert {(point["form"], point["node"]) for point in points} == {("local", 0), ("stand-in", 1)}
    (form,) = [form for form in forms.stand_ins(graph) if form.kind == "stand-in"]
    assert "not CXL" in form.label
    assert "second NUMA node" in reason(machine((0, 2, 64)), "form=stand-in")


def test_blocks_and_threads_that_do_not_fit_are_left_out() -> None:
    graph = machine((0, 4, 64), (1, 0, 64))
    points = plan(graph, "form=node", "kernel=gather,chase", "nbytes=64K", "threads=1,4,9")
    assert {(point["block"], point["threads"]) for point in points if point["kernel"] == "gather"} == {
        (18 * KIB, 1),
        (32 * KIB, 1),
        (64 * KIB, 1),
    }
    assert [point for point in points if point["kernel"] == "chase"] == [
        {"form": "node", "node": 1, "kernel": "chase", "to": "cpu", "pages": "base", "nbytes": 64 * KIB}
    ]


def test_on_to_a_gpu_only_where_there_is_one() -> None:
    graph = machine((0, 4, 64), (1, 0, 64))
    assert {point["to"] for point in plan(graph)} == {"cpu"}
    assert "needs an NVIDIA GPU" in reason(graph, "to=gpu")
    for number in (0, 1):
        graph.add(f"gpu:{number}", "gpu", vendor="NVIDIA")
    points = [point for point in plan(graph) if point["to"] == "gpu"]
    assert {(point["kernel"], point["gpu"]) for point in points} == {("gather", 0)}
    assert {point["gpu"] for point in plan(graph, "to=gpu", "gpu=1")} == {1}
    assert "needs an NVIDIA GPU" in reason(graph, "to=gpu", "gpu=7")


def test_a_small_node_gets_a_small_working_set() -> None:
    graph = machine((0, 4, 64), (1, 0, 1))
    assert max(point["nbytes"] for point in plan(graph)) <= GIB // 8


@pytest.mark.parametrize("name", sorted(BUILT))
def test_plans_of_whole_machines(name: str, tmp_path: Path) -> None:
    graph = built(name, tmp_path)
    if name == "cxl-host":
        assert {point["node"] for point in plan(graph, "form=node")} == {2}
        (form,) = [form for form in forms.forms(graph) if form.kind == "node"]
        assert "region0" in form.label
        assert any("partly online" in note for note in form.notes)
    else:
        assert "needs CXL memory" in reason(graph)


@pytest.mark.parametrize(
    ("state", "node", "device", "said"),
    [
        ("not-mapped", False, False, "mem0 is present, not mapped: cxl create-region -m -t pmem"),
        ("devdax", False, True, "dax0.0 is a devdax device"),
        ("system-ram", True, False, ""),
        ("partly-online", True, False, "dax0.0 is partly online (2 of 3 blocks): daxctl online-memory dax0.0"),
        ("offline", False, False, "dax0.0 is offline (0 of 3 blocks): daxctl online-memory dax0.0"),
    ],
)
def test_each_state_of_the_emulated_lab(state: str, node: bool, device: bool, said: str, tmp_path: Path) -> None:
    graph = captured(f"lab-four-nodes-cxl-{state}", tmp_path)
    found = forms.forms(graph)
    assert ("CXL memory (region0) as NUMA node 4 without CPUs" in [form.label for form in found]) is node
    assert [form.device for form in found if form.kind == "devdax"] == (["dax0.0"] if device else [])
    near = {form.node: form.near for form in found if form.kind == "node"}
    assert near == {2: 0, 3: 1, **({4: 0} if node else {})}
    told = {form.node: form.declared.get("read_seconds") for form in found if form.kind == "node"}
    assert told == {2: 250e-9, 3: 250e-9, **({4: None} if node else {})}  # a hot-added node has no HMAT
    notes = [note for form in found if form.kind == "local" and form.node == 0 for note in form.notes]
    assert (said in notes[0]) if said else notes == []
    assert {point["form"] for point in plan(graph)} == {"local", "node", "interleave"}


def test_missing_sysfs_is_a_reason_not_a_crash(tmp_path: Path) -> None:
    assert "needs CXL memory" in reason(discover(tmp_path, told=[]))


# --- what is there and not usable -------------------------------------------------------------------------


def cxl(**attrs: object) -> Topology:
    graph = machine((0, 2, 64))
    graph.add("cxl:mem0", "cxl", type="memory device", volatile_bytes=GIB, **attrs)
    return graph


def with_dax(**attrs: object) -> Topology:
    graph = machine((0, 2, 64))
    graph.add("dax:dax0.0", "dax", nbytes=GIB, **attrs)
    return graph


def with_region(mode: str) -> Topology:
    graph = machine((0, 2, 64))
    graph.add("cxl:region0", "cxl", type="region", mode=mode)
    return graph


@pytest.mark.parametrize(
    ("graph", "state", "command"),
    [
        (
            cxl(state="present, not mapped"),
            "present, not mapped",
            "cxl create-region -m -t ram -d decoder0.0 -w 1 mem0",
        ),
        (with_region("ram"), "nothing uses it", "daxctl create-device -r region0"),
        (with_region("pmem"), "nothing uses it", "ndctl create-namespace -m devdax -r region0"),
        (with_dax(), "no driver", "daxctl reconfigure-device --mode=devdax dax0.0"),
        (with_dax(mode="devdax"), "overwrites", "-a form=devdax"),
        (
            with_dax(mode="system-ram", state="offline", memory_blocks=4, memory_blocks_online=0),
            "offline (0 of 4 blocks)",
            "daxctl online-memory dax0.0",
        ),
        (
            with_dax(mode="system-ram", state="partly online", memory_blocks=4, memory_blocks_online=1),
            "partly online (1 of 4 blocks)",
            "daxctl online-memory dax0.0",
        ),
    ],
)
def test_memory_that_is_there_is_named_with_its_command(graph: Topology, state: str, command: str) -> None:
    text = reason(graph)
    assert state in text
    assert command in text


def test_devdax_is_never_overwritten_unasked() -> None:
    graph = with_dax(mode="devdax", region="cxl:region0")
    graph.add("numa:1", "numa", has_cpu=False, has_memory=True, cpus=[])
    graph.add("mem:1", "mem")
    assert "devdax" not in {point["form"] for point in plan(graph)}
    assert {point["device"] for point in plan(graph, "form=devdax")} == {"dax0.0"}
    assert reason(graph, "form=devdax", "device=dax9.9")


# --- limits -----------------------------------------------------------------------------------------------


def test_reads_and_writes_are_legs_of_their_own() -> None:
    graph = machine((0, 2, 64), (1, 0, 64))
    graph.add("cache:L3:0", "cache", nbytes=32 * MIB, level=3, type="Unified", cpus=[0, 1])
    found = legs.legs(graph, {"mem:0": 0.25, "mem:1": 0.75}, [0, 1], 80, 40, 64 * MIB)
    assert [(leg.src, leg.dst, leg.moved) for leg in found] == [
        ("mem:0", "cpu:0", 10),
        ("mem:1", "cpu:0", 30),
        ("cpu:0", "mem:0", 5),
        ("cpu:0", "mem:1", 15),
    ]
    assert legs.legs(graph, {"mem:1": 1.0}, [0], 80, 40, 32 * MIB) == []


def test_loads_have_the_cpus_that_do_not_chase() -> None:
    points = plan(machine((0, 4, 64), (1, 0, 64)), "form=node", "kernel=loaded")
    assert {point["threads"] for point in points} == {3}
    assert {point["mix"] for point in points} == {"read", "2:1", "1:1"}
    assert reason(machine((0, 1, 64), (1, 0, 64)), "form=node", "kernel=loaded")
    assert all("loaders" not in point for point in points)


def test_a_node_of_one_cpu_is_loaded_from_other_nodes() -> None:
    graph = machine((0, 1, 64), (1, 2, 64), (2, 0, 64))
    points = plan(graph, "form=node", "kernel=loaded")
    assert {(point["threads"], point["loaders"]) for point in points} == {(2, "far")}
    assert {point["threads"] for point in plan(graph, "form=node", "kernel=loaded", "threads=1,3")} == {1}
    assert reason(graph, "form=node", "kernel=loaded", "loaders=near")
    (form,) = [form for form in forms.forms(graph) if form.kind == "node"]
    assert forms.loaders(graph, form) == ((1, 2), True)
