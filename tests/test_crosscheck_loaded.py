"""The crosscheck of the loaded-latency curve: both ends are judged, a bad end fails."""

from __future__ import annotations

import os

import pytest
from iobench.crosscheck import find, loaded
from iobench.crosscheck.dram import Row
from iobench.errors import Unavailable
from iobench.stats import Interval


def row(ratio: float, bar: loaded.Bar) -> Row:
    return Row("x", 1e-7, 1e-7, Interval(ratio, ratio, ratio, 9, 9), bar, 1)


@pytest.mark.parametrize(("ratio", "passed"), [(0.96, False), (0.98, True), (1.02, True), (1.04, False)])
@pytest.mark.parametrize("bar", [loaded.BANDWIDTH, loaded.LATENCY])
def test_both_bars_are_three_per_cent_to_either_side(ratio: float, passed: bool, bar: loaded.Bar) -> None:
    assert row(ratio, bar).passed is passed


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs: one chases, one loads")
def test_it_judges_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaded, "_QUICK_SECONDS", 0.05)
    said: list[str] = []
    ends: list[str] = []
    whole = loaded.in_turn

    def once(sides: object, seconds: float, bar: loaded.Bar) -> tuple[float, float, Interval]:
        ends.append(bar.quantity)
        ours, theirs, _ = whole(sides, 0.0, bar)  # type: ignore[arg-type]
        return ours, theirs, Interval(1.0 if bar is loaded.LATENCY else 0.5, 0.5, 1.0, 9, 9)

    monkeypatch.setattr(loaded, "in_turn", once)
    try:
        met = find("loaded")(said.append, True)
    except Unavailable as reason:  # the two CPUs are of two nodes, or there is no memory for a sweep beyond the caches
        pytest.skip(str(reason))
    assert met is False
    assert ends == ["latency", "bandwidth"]
    assert "PASS" in said[-2]
    assert "FAIL" in said[-1]
