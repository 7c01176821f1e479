"""The NUMA probe: the right plan on machines of every shape, and nothing that pretends to be bound."""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from iobench import hostmem, mempolicy, topology
from iobench import probe as probes
from iobench.errors import Unavailable
from iobench.mempolicy import Placed
from iobench.paths import data_dir
from iobench.timing.sampler import Sampler
from iobench.topology.graph import Topology
from iobench.units import KIB, MIB
from tests.machines import AMD_MILAN, Machine
from tests.test_topology_odd import plant

pytestmark = pytest.mark.usefixtures("roomy")
NUMA = probes.load("numa")
Shape = Sequence[tuple[int, str, float]]
CPUS = len(os.sched_getaffinity(0))


@functools.cache
def home() -> int:
    """Return the NUMA node of the first CPU that this process may use, 0 where the kernel shows none."""
    cpu = topology.discover().node(f"cpu:{min(os.sched_getaffinity(0))}")
    node = cpu.get("numa") if cpu else None
    return 0 if node is None else int(node)


@pytest.fixture
def machine(tmp_path: Path) -> Callable[..., Topology]:
    def build(nodes: Shape, cpus: int = 16, mems: str = "0-15", may: str = "") -> Topology:
        """Discover a machine of (node, its CPUs, its GiB); ``mems`` and ``may`` are what the cgroup allows."""
        box = Machine(tmp_path)
        box.cpus(cpus, 1, AMD_MILAN, "512K", "32768K", 8)
        for number, listed, gib in nodes:
            box.node(number, listed, gib, " ".join("10" if number == other else "20" for other, _, _ in nodes))
        box.file("proc/self/status", f"Cpus_allowed_list:\t{may or f'0-{cpus - 1}'}\nMems_allowed_list:\t{mems}")
        return topology.discover(tmp_path)

    return build


def points(graph: Topology, *assignments: str) -> list[dict[str, Any]]:
    return list(NUMA.points(graph, probes.narrow(NUMA, assignments)))


def pairs(found: Sequence[dict[str, Any]]) -> list[tuple[Any, Any]]:
    return list(dict.fromkeys((point["mem"], point["cpu"]) for point in found))


def measure(**point: Any) -> probes.Samples:
    sampler = Sampler(budget=0.02)
    try:
        return NUMA.measure({"mem": home(), "cpu": home(), "pages": "base", "nbytes": 64 * KIB, **point}, sampler)
    finally:
        sampler.close()


def even(count: int, cpus: int = 16) -> Shape:
    each = cpus // count
    return [(node, f"{node * each}-{(node + 1) * each - 1}", 64) for node in range(count)]


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_every_pair_of_nodes_and_the_unbound_one(machine: Callable[..., Topology], count: int) -> None:
    found = points(machine(even(count)))
    bound = [(mem, cpu) for mem in range(count) for cpu in range(count)]
    assert pairs(found) == [*bound, ("unbound", "unbound")]
    assert Counter(point["op"] for point in found) == dict.fromkeys(("chase", "read", "copy"), len(bound) + 1)
    assert {point["nbytes"] for point in found if point["op"] == "chase"} == {128 * MIB}


def test_a_node_without_cpus_is_a_target_and_one_without_memory_an_initiator(machine: Callable[..., Topology]) -> None:
    # numactl#165: CPUs and 0 MB; #127: memory and a blank CPU list
    found = points(machine([(0, "0-7", 64), (1, "8-15", 0), (2, "", 1)]))
    assert pairs(found) == [(0, 0), (0, 1), (2, 0), (2, 1), ("unbound", "unbound")]


def test_ids_with_gaps_are_kept(machine: Callable[..., Topology]) -> None:
    found = points(machine([(0, "0-7", 64), (3, "", 32), (8, "8-15", 64)]))
    assert pairs(found)[:-1] == [(mem, cpu) for mem in (0, 3, 8) for cpu in (0, 8)]


def test_forbidden_memory_is_one_point_that_will_say_so(machine: Callable[..., Topology]) -> None:
    # numactl#223: Mems_allowed_list 1 while node 0 was asked for
    graph = machine(even(2), mems="1")
    assert pairs(points(graph)) == [(1, 0), (1, 1), (0, 0), ("unbound", "unbound")]


def test_cpus_that_are_forbidden_are_one_point_that_will_say_so(machine: Callable[..., Topology]) -> None:
    graph = machine(even(2), may="0-7")
    assert pairs(points(graph)) == [(0, 0), (1, 0), (0, 1), ("unbound", "unbound")]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("no-numa-folder", [("unbound", "unbound")]),  # gvisor#12876: nothing to bind to
        ("node-with-cpus-and-no-memory", None),
        ("node-ids-with-gaps-cpulist-blank", None),
        ("no-sysfs-only-cpuinfo", [("unbound", "unbound")]),
    ],
)
def test_odd_machines_have_a_plan(name: str, wanted: list[Any] | None, tmp_path: Path) -> None:
    graph = topology.discover(plant(name, tmp_path))
    found = pairs(points(graph))
    assert found == wanted if wanted else found[-1] == ("unbound", "unbound")
    memory = {node.get("numa") for node in graph.of("mem")}
    assert {mem for mem, _ in found} - {"unbound"} <= memory


def test_a_machine_without_anything_says_what_is_needed() -> None:
    with pytest.raises(Unavailable, match="needs a NUMA node with CPUs"):
        points(Topology("empty"))


def test_gpus_take_the_place_of_the_hosts_matrix() -> None:
    graph = topology.load(data_dir("topologies") / "hgx-8x-h100.json")
    found = points(graph)
    assert {point["op"] for point in found} == {"h2d", "d2h"}
    assert {point["gpus"] for point in found} == {*map(str, range(8)), "socket0", "socket1"}
    assert pairs(found) == [(0, 0), (0, 1), (1, 0), (1, 1), ("unbound", "unbound")]
    # every memory node x CPU node x GPU (or all GPUs of a socket), both ways, a small message and a large one
    single = [point for point in found if point["gpus"].isdigit()]
    assert len(single) == 5 * 8 * 2 * 2
    assert len(found) - len(single) == 5 * 2 * 2 * 2
    assert {point["nbytes"] for point in found} == {4 * KIB, 64 * MIB}
    assert {point["op"] for point in points(graph, "op=chase")} == {"chase"}


def test_a_gpu_of_unknown_node_belongs_to_no_socket(tmp_path: Path) -> None:
    # tensorflow#58428: numa_node -1 is unknown, never node 0
    graph = topology.discover(plant("pci-numa-node-minus-one-of-two", tmp_path))
    assert graph.nodes["gpu:0"].get("numa") is None
    assert {point["gpus"] for point in points(graph)} == {"0"}
    assert {point["mem"] for point in points(graph)} >= {0, "unbound"}


def test_one_end_can_be_bound_alone(machine: Callable[..., Topology]) -> None:
    graph = machine(even(2))
    assert pairs(points(graph, "mem=unbound", "cpu=1")) == [("unbound", 1)]
    assert pairs(points(graph, "mem=0", "cpu=0,1")) == [(0, 0), (0, 1)]
    with pytest.raises(Unavailable, match="memory is on"):
        points(graph, "mem=7")
    with pytest.raises(Unavailable, match="GPU"):
        points(graph, "op=h2d")


def test_small_footprints_can_be_asked_for(machine: Callable[..., Topology]) -> None:
    found = points(machine(even(2)), "nbytes=2M", "pages=base", "op=chase,read")
    assert {point["nbytes"] for point in found} == {2 * MIB}
    assert len(found) == 2 * 5


@pytest.fixture
def bindable() -> None:
    try:
        with hostmem.buffer(4096, policy=mempolicy.Policy((home(),))) as area:
            area.data[:] = 1
    except Unavailable as reason:
        pytest.skip(f"memory can't be bound here: {reason}")


@pytest.mark.usefixtures("bindable")
@pytest.mark.parametrize("op", ["chase", "read", "copy", "write"])
def test_a_bound_point_shows_every_page(op: str) -> None:
    for _ in range(20):  # the kernel may just move or swap a page when it is asked
        result = measure(op=op)
        if not result.evidence["pages_unknown"]:
            break
    assert result.verified is True
    assert set(result.evidence["pages_on_node"]) == {str(home())}
    assert result.evidence["pages_unknown"] == 0
    assert result.evidence["pages_on_node"][str(home())] >= 64 * KIB // os.sysconf("SC_PAGE_SIZE")
    assert result.evidence["pinned"] is True
    assert len(result.timed.seconds[0]) >= 34


def test_an_unbound_point_is_not_called_bound() -> None:
    result = measure(op="chase", mem="unbound", cpu="unbound")
    assert "unbound" in result.path
    assert "bound to node" not in result.path
    assert result.evidence["pinned"] is False or CPUS == 1


def test_an_unbound_stream_has_the_memory_s_limit() -> None:
    graph = topology.discover()
    try:
        result = measure(op="read", mem="unbound", cpu="unbound", nbytes=64 * MIB)
    except Unavailable as reason:
        pytest.skip(f"too little memory: {reason}")
    assert all(leg.src.startswith("mem:") and leg.dst.startswith("numa:") for leg in result.legs)
    assert all(graph.path(leg.src, leg.dst) is not None for leg in result.legs)
    if sum(node.get("nbytes") or 0 for node in graph.of("cache")) < 60 * MIB and result.evidence["pages_on_node"]:
        assert result.legs


def test_one_node_proves_nothing_and_says_so() -> None:
    result = measure(op="read", mem="unbound", cpu="unbound")
    single = len(topology.discover().of("mem")) == 1
    assert any("proves nothing about NUMA" in note for note in result.notes) is single


@pytest.mark.usefixtures("bindable")
@pytest.mark.parametrize("op", ["chase", "read"])
def test_memory_that_came_to_lie_elsewhere_is_no_result(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # a kernel that accepts mbind and does nothing (gVisor), a pin that moves pages out of movable memory
    monkeypatch.setattr(mempolicy, "placed", lambda data: Placed(Counter({home(): 3, home() + 1: 1}), 0, "move_pages"))
    with pytest.raises(Unavailable, match="came to lie elsewhere"):
        measure(op=op)


@pytest.mark.usefixtures("bindable")
def test_memory_of_unknown_place_is_unproven(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mempolicy, "placed", lambda data: Placed(Counter(), 16, ""))
    assert measure(op="chase").proven is False


def test_what_is_forbidden_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mempolicy, "_mbind", lambda *arguments: 1)
    if (Path("/sys/devices/system/node/node0")).exists():
        with pytest.raises(Unavailable, match="seccomp"):
            measure(op="chase")
    with pytest.raises(Unavailable, match=r"no NUMA node 77|no NUMA nodes"):
        measure(op="chase", mem=77)
    with pytest.raises(Unavailable, match="no NUMA node 78"):
        measure(op="chase", mem="unbound", cpu=78)
