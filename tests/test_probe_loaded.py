"""The probe of latency under load: which points, what a point returns."""

from __future__ import annotations

import os
from typing import Any

import pytest
from iobench import probe as probes
from iobench.errors import Unavailable
from iobench.fit import fit_run
from iobench.timing.sampler import Sampler
from iobench.topology.graph import Topology
from iobench.units import KIB, MIB
from tests.make_run import lines, run_of

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


def test_one_cpu_on_a_node_is_too_few() -> None:
    for nodes in ({0: 1}, {0: 1, 1: 7}):
        with pytest.raises(Unavailable, match="needs two CPUs of one NUMA node"):
            points(machine(nodes))
    with pytest.raises(Unavailable, match="needs 5 CPUs"):
        points(machine({0: 4}), "threads=4")


@needs_two
def test_a_point_tells_what_was_achieved() -> None:
    result = measure(mix="2:1", delay=64, sample="mean")
    assert result.quantity == "latency"
    assert result.verified is True
    assert result.evidence["load_nbytes"] > 0
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
def test_a_tail_has_enough_single_loads() -> None:
    result = measure(mix="read", delay=0, sample="one")
    assert result.timed.ops == 1
    assert len(result.timed.seconds[0]) >= 1000
    assert 0 < result.evidence["clock_seconds"] < 10e-6
    assert result.mode != measure(mix="read", delay=0, sample="mean").mode
