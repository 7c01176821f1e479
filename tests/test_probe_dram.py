"""The memory probe: which points, what a point returns, what is caught."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import numpy as np
import pytest
from iobench import hostmem, mempolicy, pageplaces, topology
from iobench import probe as probes
from iobench.errors import Unavailable, WrongData
from iobench.kernels import chase, stream
from iobench.timing.sampler import Sampler
from iobench.topology.graph import Topology
from iobench.units import GIB, KIB, MIB

pytestmark = pytest.mark.usefixtures("roomy")
DRAM = probes.load("dram")
CPUS = len(os.sched_getaffinity(0))


def machine(cpus: int = 2, caches: tuple[int, ...] = (32 * MIB,), allowed: int | None = None) -> Topology:
    graph = Topology("made-up")
    for cpu in range(cpus):
        graph.add(f"cpu:{cpu}", "cpu", allowed=None if allowed is None else cpu < allowed)
        graph.add(f"cache:L1d:{cpu}", "cache", level=1, nbytes=32 * KIB, cpus=[cpu])
    for number, nbytes in enumerate(caches):
        graph.add(f"cache:L3:{number}", "cache", level=3, nbytes=nbytes, cpus=[number])
    return graph


def points(graph: Topology, *assignments: str) -> list[dict[str, Any]]:
    return list(DRAM.points(graph, probes.narrow(DRAM, assignments)))


def measure(**point: Any) -> probes.Samples:
    sampler = Sampler(budget=0.02)
    try:
        return DRAM.measure(point, sampler)
    finally:
        sampler.close()


def test_default_points_of_a_small_machine() -> None:
    found = points(machine())
    walks = [(point["block"], point["prefetch"]) for point in found if point["kernel"] == "walk"]
    assert walks == [(block, lines) for block in (2 * KIB, 32 * KIB) for lines in (0, 8, 32)]
    streams = [point for point in found if point["kernel"] not in ("chase", "walk")]
    assert len(streams) == 11 * 2
    assert {point["nbytes"] for point in streams} == {128 * MIB}
    assert {(point["kernel"], point["stores"]) for point in streams if point["kernel"] == "read"} == {("read", "plain")}
    sizes = [point["nbytes"] for point in found if point["kernel"] == "chase" and point["pages"] == "huge"]
    assert sizes[:4] == [4 * KIB, 6 * KIB, 8 * KIB, 12 * KIB]
    assert sizes[-1] == 128 * MIB
    assert len(sizes) == 31
    small = [point["nbytes"] for point in found if point["kernel"] == "chase" and point["pages"] == "base"]
    assert small == [4 * KIB << n for n in range(16)]
    assert len(found) == 22 + 6 + 31 + 16


def test_threads_double_up_to_all_allowed_cpus() -> None:
    found = points(machine(cpus=12), "kernel=read")
    assert [point["threads"] for point in found] == [1, 2, 4, 8, 12]
    found = points(machine(cpus=12, allowed=3), "kernel=read")
    assert [point["threads"] for point in found] == [1, 2, 3]


def test_streams_exceed_all_caches_and_the_chase_its_own() -> None:
    found = points(machine(caches=(32 * MIB,) * 8))
    assert {point["nbytes"] for point in found if point["kernel"] == "copy"} == {GIB}
    assert max(point["nbytes"] for point in found if point["kernel"] == "chase") == 128 * MIB


def test_unknown_caches_have_a_fallback() -> None:
    graph = Topology("no-caches")
    graph.add("cpu:0", "cpu")
    assert {point["nbytes"] for point in points(graph, "kernel=copy")} == {128 * MIB}


def test_the_user_narrows() -> None:
    found = points(machine(), "nbytes=1M,3M", "pages=huge", "threads=2", "stores=nt")
    assert {point["nbytes"] for point in found} == {MIB, 3 * MIB}
    assert {point["pages"] for point in found} == {"huge"}
    assert {point["kernel"] for point in found} == {"copy", "scale", "add", "triad", "write"}


def test_what_the_machine_lacks_is_said() -> None:
    with pytest.raises(Unavailable, match="needs 8 CPUs"):
        points(machine(), "threads=8,16")
    with pytest.raises(Unavailable, match="CPU"):
        points(Topology("empty"))
    assert [point["threads"] for point in points(machine(), "threads=2,16", "kernel=read")] == [2]


@pytest.mark.parametrize("stores", ["plain", "nt"])
@pytest.mark.parametrize("kernel", [kernel for kernel in stream.CODES if kernel != "read"])
def test_a_stream_point(kernel: str, stores: str) -> None:
    result = measure(kernel=kernel, stores=stores, threads=min(2, CPUS), pages="base", nbytes=768 * KIB)
    assert result.quantity == "bandwidth"
    assert result.verified is True
    assert result.moved == 768 * KIB
    assert result.evidence["bus_nbytes"] == result.moved + (
        result.evidence["stored_nbytes"] if stores == "plain" else 0
    )
    assert "not counted" in result.moved_rule
    assert result.timed.ops == result.evidence["repeats"]
    assert np.array(result.timed.seconds).shape[0] == 1
    assert len(result.timed.seconds[0]) >= 5
    assert result.evidence["pinned"] is True
    assert len(result.evidence["cpus"]) == min(2, CPUS)


def test_a_chase_point() -> None:
    result = measure(kernel="chase", pages="base", nbytes=64 * KIB)
    assert result.quantity == "latency"
    assert result.evidence["nodes_in_cycle"] == 1024
    assert float(np.min(result.timed.seconds)) / result.timed.ops > 0.1e-9, (
        "no load is as fast, however long others take"
    )
    assert result.timed.ops == result.evidence["loads_per_sample"]


def test_a_chase_s_seconds_are_those_of_its_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock of which each load takes 5 ns."""
    whole = chase.drive

    def drive(start: Any, loads: int, starts: Any, ends: Any, places: Any) -> None:
        whole(start, loads, starts, ends, places)
        ends[:] = starts + 5 * loads

    monkeypatch.setattr(chase, "drive", drive)
    result = measure(kernel="chase", pages="base", nbytes=64 * KIB)
    assert result.timed.ops == result.evidence["loads_per_sample"] == (1 << 17) + 1
    assert np.array(result.timed.seconds) / result.timed.ops == pytest.approx(5e-9)


def two_nodes() -> Topology:
    graph = machine()
    for node in (0, 1):
        graph.add(f"numa:{node}", "numa", cpus=[node])
        graph.add(f"mem:{node}", "mem", numa=node)
    return graph


def test_pages_are_spread_where_there_are_nodes_to_spread_them_over() -> None:
    found = [point for point in points(two_nodes()) if "policy" in point]
    assert [(point["kernel"], point["threads"], point["policy"]) for point in found] == [
        ("read", 2, "interleave"),
        ("read", 2, "weighted"),
    ]
    assert not [point for point in points(machine()) if "policy" in point]
    graph = two_nodes()
    graph.add("numa:1", "numa", allowed=False)
    assert not [point for point in points(graph) if "policy" in point]


@pytest.mark.parametrize("policy", ["interleave", "weighted"])
def test_a_spread_point_shows_where_its_pages_lie(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    point = {"kernel": "read", "stores": "plain", "threads": 1, "pages": "base", "nbytes": 64 * KIB, "policy": policy}
    nodes = {f"mem:{node.get('numa')}" for node in topology.discover().of("mem")}
    try:
        result = measure(**point)
    except Unavailable as reason:
        pytest.skip(str(reason))
    assert policy in result.evidence["policy"]
    assert len(result.evidence["weights"]) in (len(nodes), 0)
    monkeypatch.setattr(mempolicy, "placed", lambda data: mempolicy.Placed(Counter({0: 9, 99: 1}), 0, "move_pages"))
    with pytest.raises(Unavailable, match="came to lie elsewhere"):
        measure(**point)


def test_a_walk_point() -> None:
    result = measure(kernel="walk", threads=1, pages="base", nbytes=256 * KIB, block=2 * KIB, prefetch=8)
    assert result.quantity == "bandwidth"
    assert result.verified is True
    assert result.moved == 256 * KIB
    assert result.evidence["blocks"] == 128


def test_walks_that_do_not_fit_are_left_out() -> None:
    found = points(machine(), "kernel=walk", "block=512,700,64M", "prefetch=8,9", "nbytes=1M")
    assert [(point["block"], point["prefetch"]) for point in found] == [(512, 8)]


def test_the_path_is_proven_where_the_kernel_tells() -> None:
    with hostmem.buffer(4096) as area:
        area.data[:] = 1
        tells = hostmem.inspect(area).kind() is not None and pageplaces.nodes(area.data) is not None
    result = measure(kernel="read", stores="plain", threads=1, pages="base", nbytes=64 * KIB)
    assert result.proven is tells


def test_legs_join_nodes_of_the_graph() -> None:
    graph = topology.discover()
    result = measure(kernel="copy", stores="plain", threads=1, pages="base", nbytes=64 * KIB)
    if graph.of("cache"):
        assert result.legs
    for leg in result.legs:
        assert graph.path(leg.src, leg.dst) is not None


@pytest.mark.parametrize("kernel", stream.CODES)
def test_a_kernel_that_skips_its_tail_is_wrong_data(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = stream.drive

    def skips_tail(code: int, nt: int, target: Any, a: Any, b: Any, *rest: Any) -> None:
        whole(code, nt, target[:-8], a[:-8], b[:-8], *rest)

    monkeypatch.setattr(stream, "drive", skips_tail)
    with pytest.raises(WrongData):
        measure(kernel=kernel, stores="plain", threads=min(2, CPUS), pages="base", nbytes=96 * KIB)


def test_a_chase_that_skips_loads_is_wrong_data(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = chase.drive
    monkeypatch.setattr(chase, "drive", lambda start, loads, *out: whole(start, loads // 2, *out))
    with pytest.raises(WrongData):
        measure(kernel="chase", pages="base", nbytes=64 * KIB)


def test_more_threads_than_cpus_and_more_bytes_than_memory_are_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unavailable, match="CPUs"):
        measure(kernel="read", stores="plain", threads=100_000, pages="base", nbytes=4096)
    monkeypatch.setattr(hostmem, "available_nbytes", lambda root: 100 * KIB)
    with pytest.raises(Unavailable, match="memory available"):
        measure(kernel="chase", pages="base", nbytes=64 * KIB)


def test_a_machine_without_huge_pages_skips_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hostmem, "inspect", lambda area: hostmem.Pages(4096, 0.0))
    with pytest.raises(Unavailable, match="huge pages"):
        measure(kernel="chase", pages="huge", nbytes=64 * KIB)
