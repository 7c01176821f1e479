"""Limits of machines known only by name: no real curve is called impossible, and what physics forbids is."""

from __future__ import annotations

import pytest
from iobench import published
from iobench.check import judge
from iobench.check.collective import network_cap, nvlink_cap
from iobench.record import Line
from iobench.units import GB, GIB

from make_run import run_of


def reduced(busbw: float, ranks: int, *, name: str = "8 x NVIDIA H100 80GB HBM3", nodes: int = 1, environment=None,
            op: str = "all_reduce", notes=(), **point):  # fmt: skip
    """Return the verdict on one imported figure."""
    axes = {"op": op, "ranks": ranks, "nodes": nodes, "nbytes": 8 * GIB, **point}
    moved = int(8 * GIB * 2 * (ranks - 1) / ranks)
    line = Line("allreduce", "s", axes, nbytes=8 * GIB, moved=moved, seconds=[[moved / busbw]], notes=list(notes))
    run = run_of([line], topology={}, name=name)
    run.header.environment = environment or {}
    return next(iter(judge(run).values()))


@pytest.mark.parametrize(("busbw", "ranks", "more", "possible"), [
    (480, 8, {}, True),  # NVLS: what 8 x H100 show
    (701, 8, {}, False),
    (480, 2, {}, False),
    (480, 4, {}, False),
    (480, 4, {"algo": "NVLS"}, True),
    (541, 4, {"algo": "NVLS"}, False),
    (480, 8, {"algo": "RING"}, False),
    (480, 8, {"environment": {"NCCL_NVLS_ENABLE": "0"}}, False),
    (480, 8, {"environment": {"NCCL_ALGO": "Ring"}}, False),
    (480, 8, {"notes": ["NVLS off in this run"]}, False),
    (480, 8, {"transport": "nvlink"}, True),
    (480, 8, {"op": "all_gather"}, False),
    (361, 8, {"op": "all_gather"}, True),
    (301, 8, {"name": "A100-SXM4-80GB"}, False),  # its switches don't add up
    (845, 8, {"name": "B200"}, True),
    (850, 72, {"name": "GB200", "nodes": 18, "transport": "nvlink"}, True),
    (500, 16, {"nodes": 2, "transport": "ib", "name": "H100 NDR"}, True),  # above 8 ports of 50 GB/s: summed once
    (751, 16, {"nodes": 2, "transport": "ib", "name": "H100 NDR"}, False),
    (300, 32, {"nodes": 4, "transport": "ib", "name": "H100 NDR"}, True),
    (530, 32, {"nodes": 4, "transport": "ib", "name": "H100 NDR", "algo": "RING"}, False),
])  # fmt: skip
def test_collectives_are_judged_by_their_algorithm(busbw, ranks, more, possible):
    found = reduced(busbw * GB, ranks, **more)
    assert (found.status == "impossible") is not possible, found.sentence
    assert found.limit_source


def test_the_caps_are_those_of_the_formulas():
    assert nvlink_cap("all_reduce", 8, 450.0).bytes_per_s == pytest.approx(700.0)
    assert nvlink_cap("all_reduce", 2, 450.0, "NVLS").bytes_per_s == 450.0
    assert nvlink_cap("all_reduce", 8, 450.0, "ring").bytes_per_s == 450.0
    assert network_cap("all_reduce", 16, 2, 50.0, "tree").bytes_per_s == pytest.approx(750.0)
    assert network_cap("all_reduce", 64, 8, 50.0, "ring").bytes_per_s == pytest.approx(450.0)
    assert network_cap("all_to_all", 16, 2, 50.0).bytes_per_s == pytest.approx(93.75)


def test_an_unknown_machine_has_no_limit():
    found = reduced(1e15, 8, name="somebox")
    assert (found.limit_bytes_per_s, found.status) == (None, "unproven")
    assert "no limit of the path is known" in found.sentence
    assert reduced(1e15, 16, nodes=2, transport="ib").limit_bytes_per_s is None  # GPUs known, ports not


@pytest.mark.parametrize("name", published.names())
def test_no_published_curve_is_called_impossible(name):
    run = published.load(name)
    assert {found.status for found in judge(run).values()} <= {"ok", "unproven"}


def test_a_collective_whose_way_is_not_proven_has_no_share_of_nvlink():
    slow = reduced(3.4 * GB, 2)
    assert (slow.fraction, slow.limit_bytes_per_s) == (None, None)
    assert "no limit" in slow.sentence
    assert reduced(3.4 * GB, 2, transport="nvlink").fraction == pytest.approx(3.4 / 450)
    fast = reduced(300 * GB, 2)  # no host link of this class carries that: it was NVLink
    assert fast.fraction == pytest.approx(300 / 450)


@pytest.mark.parametrize(("crossed", "status"), [(0, "ok"), (8 << 20, "impossible")])
def test_what_stays_in_the_l2_is_not_measured_against_the_memory(crossed: int, status: str):
    """A read of 8 MiB again and again: an H200 shows 9 TB/s, twice its memory's rate."""
    point = {"kernel": "read", "buffers": "one", "nbytes": 8 << 20}
    line = Line("hbm", "s", point, nbytes=8 << 20, moved=8 << 20, seconds=[[(8 << 20) / 9.05e12]],
                quantity="bandwidth", proven=True, evidence={"memory_nbytes_at_least": crossed})  # fmt: skip
    run = run_of([line], topology={}, name="1 x NVIDIA H200")
    assert next(iter(judge(run).values())).status == status
