"""The probe of latency under load: which points, what a point returns."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import numpy as np
import pytest
from iobench import probe as probes
from iobench.errors import Unavailable
from iobench.fit import fit_run
from iobench.kernels import chase, load
from iobench.kernels.loading import Loading
from iobench.timing.sampler import Sampler
from iobench.topology import discover
from iobench.topology.graph import Topology
from iobench.units import KIB, MIB
from tests.make_run import lines, run_of

pytestmark = pytest.mark.usefixtures("roomy")
LOADED = probes.load("loaded")
needs_two = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs: one chases, one loads")


def machine(nodes: dict[int, int]) -> Topology:
    """Return a machine with so many CPUs on each NUMA node."""
    graph, number = Topology("made-up"), 0
    for node, cpus in nodes.items():
        for _ in range(cpus):
            graph.add(f"cpu:{number}", "cpu", numa=node)
            number += 1
    graph.add("cache:L3:0", "cache", level=3, nbytes=32 * MIB, cpus=[0])
    return graph


def points(graph: Topology, *assignments: str) -> list[dict[str, Any]]:
    return list(LOADED.points(graph, probes.narrow(LOADED, assignments)))


def measure(**point: Any) -> probes.Samples:
    sampler = Sampler(budget=0.02)
    try:
        return LOADED.measure({"threads": 1, "pages": "base", "nbytes": 64 * KIB, **point}, sampler)
    except Unavailable as reason:
        if "clock" in str(reason):
            pytest.skip(str(reason))
        raise
    finally:
        sampler.close()


def test_all_other_cpus_of_the_node_make_the_load() -> None:
    assert {point["threads"] for point in points(machine({0: 2}))} == {1}
    assert {point["threads"] for point in points(machine({0: 8, 1: 8}))} == {7}
    assert {point["threads"] for point in points(machine({0: 8}), "threads=1,4,20")} == {1, 4}


def test_default_points_are_few() -> None:
    found = points(machine({0: 2}))
    assert len(found) <= 32
    assert {point["nbytes"] for point in found} == {128 * MIB}
    tails = [(point["mix"], point["delay"]) for point in found if point["sample"] == "one"]
    assert tails == [("read", 0), ("read", 65536)]


def test_a_node_of_one_cpu_is_loaded_from_the_others() -> None:
    found = points(machine({0: 1, 1: 7}))
    assert {(point["threads"], point["loaders"]) for point in found} == {(7, "far")}
    assert {point["threads"] for point in points(machine({0: 1, 3: 1, 8: 2}), "threads=1,2,3,4")} == {1, 2, 3}


def test_where_the_load_runs_is_a_points_word_only_where_it_is_far() -> None:
    assert all("loaders" not in point for point in points(machine({0: 2, 1: 2})))
    found = points(machine({0: 3, 1: 4}), "loaders=far")
    assert {(point["threads"], point["loaders"]) for point in found} == {(4, "far")}


def test_too_few_cpus_are_said() -> None:
    with pytest.raises(Unavailable, match="needs two CPUs"):
        points(machine({0: 1}))
    with pytest.raises(
        Unavailable, match=r"needs 4 CPUs for the load.*may use 3 of the same NUMA node and 0 of others"
    ):
        points(machine({0: 4}), "threads=4")
    with pytest.raises(Unavailable, match="0 of others"):
        points(machine({0: 4}), "loaders=far")
    with pytest.raises(Unavailable, match="may use 0 of the same"):
        points(machine({0: 1, 1: 7}), "loaders=near")
    with pytest.raises(Unavailable, match="needs two CPUs"):
        points(Topology("empty"))


def test_forbidden_cpus_load_nothing() -> None:
    graph = machine({0: 4, 1: 4})
    for cpu in (0, 1, 2):
        graph.add(f"cpu:{cpu}", "cpu", allowed=False)
    assert {(point["threads"], point["loaders"]) for point in points(graph)} == {(4, "far")}


@needs_two
def test_a_point_tells_what_was_achieved() -> None:
    result = measure(mix="2:1", delay=64, sample="mean")
    assert result.quantity == "latency"
    assert result.verified is True
    assert result.evidence["load_nbytes"] >= 0  # 0 where the load's thread was kept from its CPU all the time
    assert result.evidence["load_seconds"] >= sum(result.timed.seconds[0])
    assert result.evidence["load_bytes_per_s"] == result.evidence["load_nbytes"] / result.evidence["load_seconds"]
    assert result.timed.ops == result.evidence["loads_per_sample"] > 1
    assert len(result.evidence["cpus"]) == 2


def test_the_curve_is_fitted_over_what_was_achieved() -> None:
    mixes = {}
    for mix, top in (("read", 20e9), ("1:1", 15e9)):
        for delay, used in ((0, 0.97), (16, 0.96), (64, 0.8), (128, 0.5), (256, 0.2), (65536, 0.001)):
            point = {"mix": mix, "delay": delay, "sample": "mean", "threads": 1}
            seconds = 100e-9 + 10e-9 * used / (1 - used)
            mixes[mix, delay] = lines("loaded", point, seconds, evidence={"load_bytes_per_s": top * used})
    run = run_of(
        [line for each in mixes.values() for line in each], models={"loaded": [dict(m) for m in LOADED.models]}
    )
    fitted = fit_run(run)
    assert [one.kind for one in fitted] == ["loaded", "loaded"]
    for one, top in zip(fitted, (20e9, 15e9), strict=True):
        assert one.model is not None, one.reason
        assert one.model.parameters["L0"].value == pytest.approx(100e-9, rel=0.03)
        assert one.model.parameters["Bmax"].value == pytest.approx(top, rel=0.05)


@needs_two
def test_a_load_that_got_no_cpu_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Loading, "moved_during", lambda self, samples: (0, 0.1))
    (note,) = measure(mix="read", delay=0, sample="mean").notes
    assert "no point of the curve" in note


@needs_two
def test_a_tail_has_enough_single_loads() -> None:
    result = measure(mix="read", delay=0, sample="one")
    assert result.timed.ops == 1
    assert len(result.timed.seconds[0]) >= 1000
    assert result.evidence["clock_seconds"] >= 0
    assert result.mode != measure(mix="read", delay=0, sample="mean").mode


@needs_two
def test_the_load_is_compiled_before_anybody_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call compiles it: that one finds the stop sign, the others go on."""
    whole, stops = load.drive, []

    def drive(words: Any, every: int, delay: int, stop: Any, *rest: Any) -> None:
        stops.append(ctypes.c_int64.from_address(int(stop)).value)
        whole(words, every, delay, stop, *rest)

    monkeypatch.setattr(load, "drive", drive)
    measure(mix="3:1", delay=4, sample="mean")
    assert stops[0] == 1
    assert set(stops[1:]) == {0}


@needs_two
def test_single_loads_that_a_clock_of_coarse_steps_cannot_time_are_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = chase.drive

    def drive(start: Any, loads: int, starts: Any, ends: Any, places: Any) -> None:
        whole(start, loads, starts, ends, places)
        ends[:] = starts + (40 * np.arange(len(starts)) % 80 if loads == 1 else 40 * loads)

    monkeypatch.setattr(chase, "drive", drive)
    with pytest.raises(Unavailable, match="sample=mean"):
        LOADED.measure(
            {"threads": 1, "pages": "base", "nbytes": 64 * KIB, "mix": "read", "delay": 0, "sample": "one"},
            Sampler(budget=0.02),
        )
    assert min(measure(mix="read", delay=0, sample="mean").timed.seconds[0]) >= 40e-9


@needs_two
def test_a_load_from_another_node_is_bound_and_said() -> None:
    """The second CPU is told to be another node's: the memory is bound to the first one's, where all pages lie."""
    first, second = sorted(os.sched_getaffinity(0))[:2]
    graph = discover()
    home = graph.nodes[f"cpu:{first}"].get("numa")
    graph.add(f"cpu:{second}", "cpu", numa=99)
    sampler = Sampler(budget=0.02)
    sampler.__dict__["topology"] = graph
    point = {"mix": "read", "delay": 0, "sample": "mean", "threads": 1, "loaders": "far", "pages": "base"}
    try:
        result = LOADED.measure({**point, "nbytes": 64 * KIB}, sampler)
    except Unavailable as reason:
        pytest.skip(f"memory can't be bound here: {reason}")
    finally:
        sampler.close()
    assert result.evidence["cpus"] == [first, second]
    assert set(result.evidence["pages_on_node"]) == {str(home)}
    assert f"the load from CPUs of other nodes than CPU {first}'s" in result.path
    assert result.verified is True
