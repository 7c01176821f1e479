"""The PCIe probe without a GPU: which points, on which machine, and what the axes leave."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from iobench import probe as probes
from iobench import topology
from iobench.errors import Unavailable, UserError
from iobench.paths import data_dir
from iobench.topology.graph import Topology
from iobench.units import GIB, KIB, MIB

PCIE = probes.load("pcie")
ONE, TWO, EIGHT = (
    topology.load(data_dir("topologies") / f"{name}.json") for name in ("1x-h200", "2x-h200", "hgx-8x-h100")
)


def points(graph: Topology, *assignments: str) -> list[dict[str, Any]]:
    return list(PCIE.points(graph, probes.narrow(PCIE, assignments)))


def way(point: dict[str, Any]) -> tuple[str, ...]:
    return tuple(point[name] for name in ("direction", "traffic", "engine", "memory", "mode"))


def test_the_default_sweep_of_one_gpu() -> None:
    found = points(ONE)
    assert len(found) <= 110  # 120 s are for this and hbm together
    assert {point["gpus"] for point in found} == {"0"}
    copies = [point for point in found if point["op"] == "copy"]
    for direction in ("h2d", "d2h"):
        sizes = [p["nbytes"] for p in copies if way(p) == (direction, "one", "ce", "pinned", "events")]
        assert (sizes[0], sizes[-1], len(sizes)) == (4, GIB, 15)
        for traffic, engine, memory, mode in (
            ("both", "ce", "pinned", "events"),
            ("one", "sm", "pinned", "events"),
            ("one", "sm", "pinned", "kernel-loop"),
            ("one", "ce", "pageable", "host-call"),
            ("one", "ce", "pinned", "host-call"),
            ("one", "ce", "pinned", "graph"),
        ):
            assert any(way(p) == (direction, traffic, engine, memory, mode) for p in copies)
    chases = {(point["pattern"], point["nbytes"]) for point in found if point["op"] == "chase"}
    assert {("random", 2 * MIB), ("stride", 2 * MIB), ("random", GIB)} <= chases


def test_more_gpus_come_in_brief_and_all_at_once() -> None:
    found = Counter(point["gpus"] for point in points(TWO))
    assert found["0"] == len(points(ONE))
    assert 0 < found["1"] < 10
    assert found["all"] == 8
    assert set(Counter(point["gpus"] for point in points(EIGHT))) == {*map(str, range(8)), "all"}
    assert {p["mode"] for p in points(EIGHT) if p["gpus"] == "all"} == {"events"}


def test_a_gpu_that_is_asked_for_gets_the_whole_sweep() -> None:
    assert len(points(TWO, "gpus=1")) == len(points(ONE))


def test_pageable_memory_is_timed_by_the_host_only() -> None:
    for graph in (ONE, EIGHT):
        found = [point for point in points(graph) if point.get("memory") == "pageable"]
        assert {(point["mode"], point["engine"], point["traffic"]) for point in found} == {("host-call", "ce", "one")}
    assert points(ONE, "memory=pageable", "mode=events") == []
    assert points(ONE, "memory=pageable", "engine=sm") == []


def test_ways_beyond_the_plan_are_measured_when_asked_for() -> None:
    found = points(ONE, "engine=sm", "mode=graph")
    assert {way(point)[1:] for point in found} == {("one", "sm", "pinned", "graph")}
    assert {point["nbytes"] for point in points(ONE, "mode=kernel-loop", "nbytes=4,1M")} == {MIB}
    assert points(ONE, "engine=ce", "mode=kernel-loop") == []
    assert points(TWO, "gpus=all", "engine=sm") == []


def test_the_user_narrows() -> None:
    assert {point["nbytes"] for point in points(ONE, "nbytes=5000")} == {5000}
    assert {point["op"] for point in points(ONE, "pattern=stride")} == {"chase"}
    assert all(point["op"] == "copy" for point in points(ONE, "direction=h2d"))
    assert [point["nbytes"] for point in points(ONE, "op=chase", "pattern=random", "nbytes=4,64K")] == [64 * KIB]
    with pytest.raises(UserError):
        points(ONE, "nbytes=2")


def test_what_the_machine_lacks_is_said() -> None:
    with pytest.raises(Unavailable, match="NVIDIA GPU"):
        points(Topology("empty"))
    with pytest.raises(Unavailable, match="GPU 3"):
        points(ONE, "gpus=3")
    with pytest.raises(Unavailable, match="GPU all"):
        points(ONE, "gpus=all")


def test_series_of_the_model_do_not_mix_modes() -> None:
    """A point holds its mode, so no two modes are one series."""
    assert all("mode" in point for point in points(EIGHT) if point["op"] == "copy")
    assert all(model["where"] == {"op": "copy"} for model in PCIE.models)
