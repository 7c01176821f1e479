"""The roofline: arithmetic against the memory and arithmetic roofs that the same run measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from iobench import report
from iobench.check import judge
from iobench.record import Leg, Line, Run
from iobench.report.roofline import memory_roof, rooflines_of
from iobench.topology.graph import Topology
from tests.make_run import lines, run_of

LINK = ("vram:0", "gpu:0")


def card() -> Topology:
    graph = Topology("card")
    graph.add("gpu:0", "gpu")
    graph.add("vram:0", "vram")
    graph.link("vram:0", "gpu:0", "hbm", 4.8e12, source="test", duplex=False)
    return graph


def stream(rate: float, nbytes: int = 1 << 30, crossed: int | None = None, **fields: Any) -> list[Line]:
    return lines("mem", {"nbytes": nbytes}, nbytes / rate, legs=[Leg("vram:0", "gpu:0", moved=crossed)], **fields)


def product(tokens: int, flops: float, moved: int, seconds: float, dtype: str = "fp16", **fields: Any) -> list[Line]:
    base: dict[str, Any] = {"quantity": "latency", "moved": moved, "evidence": {"flops": flops}, "noise": 0.0}
    base |= {"legs": [Leg("vram:0", "gpu:0", moved=moved)]} | fields
    return lines("mm", {"dtype": dtype, "tokens": tokens}, seconds, **base)


def run(*parts: list[Line]) -> Run:
    return run_of([line for part in parts for line in part], topology=card())


def test_few_rows_are_bound_by_memory_and_many_by_arithmetic() -> None:
    decode = product(1, 2e8, 200_000_000, 50e-6)  # 1 FLOP per byte at 4 TB/s: 4 TFLOP/s
    prefill = product(4096, 8e11, 400_000_000, 1e-3)  # 2,000 FLOP per byte: 800 TFLOP/s
    made = run(stream(4.5e12, noise=0.0), decode, prefill)
    (view,) = rooflines_of(made, "mm", judge(made))
    assert "4500 GB/s" in view.title
    low, high = view.rows
    assert low[1:] == ("4.00 TFLOP/s", "1", "4000 GB/s", "memory", "89 %")
    assert high[1:] == ("800 TFLOP/s", "2e+03", "400 GB/s", "arithmetic", "100 %")


def test_formats_have_roofs_of_their_own() -> None:
    made = run(
        stream(4.5e12), product(8, 8e11, 1000, 1e-3), product(8, 4e11, 1000, 1e-3), product(8, 16e11, 1000, 1e-3, "fp8")
    )
    (view,) = rooflines_of(made, "mm", judge(made))
    assert [row[-1] for row in view.rows] == ["100 %", "100 %"]


def test_the_memory_roof_counts_what_surely_crossed() -> None:
    cached = stream(9e12, nbytes=1 << 20, crossed=1 << 18)
    made = run(cached, stream(4.4e12, noise=0.0))
    assert memory_roof(made, LINK, judge(made)) == pytest.approx(4.4e12)


def test_wrong_and_impossible_points_are_no_roof() -> None:
    made = run(stream(9e12), stream(3e12, nbytes=1 << 29, verified=False), stream(2e12, nbytes=1 << 28, noise=0.0))
    assert memory_roof(made, LINK, judge(made)) == pytest.approx(2e12)


def test_without_a_measured_roof_the_place_is_unknown() -> None:
    made = run(product(1, 2e8, 200_000_000, 50e-6))
    (view,) = rooflines_of(made, "mm", judge(made))
    assert view.rows[0][-2:] == ("-", "-")
    assert "no memory roof" in view.title


def test_points_that_count_no_arithmetic_have_no_roofline(tmp_path: Path) -> None:
    made = run(stream(4e12))
    assert rooflines_of(made, "mem", judge(made)) == []
    with_products = run(stream(4e12), product(1, 2e8, 200_000_000, 50e-6))
    plain, page = report.write(with_products, tmp_path)
    assert "Roofline, vram:0 to gpu:0" in plain.read_text()
    assert "TFLOP/s" in page.read_text()
