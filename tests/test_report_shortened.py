"""A run too long to be read: all of it is judged and counted, a part of it is shown, and the report says so."""

from __future__ import annotations

from collections import Counter

import pytest
from iobench.check import judge
from iobench.record import Line
from iobench.report import models, shortened
from iobench.report.shortened import MOST_POINTS, spaced
from iobench.report.view import view_of
from iobench.units import US

from make_run import demo_run, make_testbox, run_of

SIZES = [8 << step for step in range(10)]


def long_run(series: int, bad: int = 0):
    made = []
    for number in range(series):
        for nbytes in SIZES:
            wrong = {"status": "failed", "verified": False} if number < bad else {"verified": True, "proven": True}
            point = {"ranks": 2, "series": number, "nbytes": nbytes}
            made.append(Line("allreduce", "s", point, nbytes=nbytes, moved=nbytes, seconds=[[5 * US]], **wrong))
    return run_of(made)


def test_a_short_run_is_shown_whole():
    run = demo_run()
    part = shortened.shortened(run, judge(run))
    assert part is run
    assert shortened.sentences(run, part) == {}


def test_whole_series_and_the_odd_points_are_shown():
    run = long_run(MOST_POINTS // 10 + 200, bad=30)
    part = shortened.shortened(run, judge(run))
    assert len(part) < 1000
    per_series = Counter(record.point["series"] for record in part if not record.wrong_data)
    assert set(per_series.values()) == {len(SIZES)}
    assert sum(record.wrong_data for record in part) >= 200
    (sentence,) = shortened.sentences(run, part).values()
    assert f"{len(run)} points were measured and judged" in sentence
    assert f"show {len(part)} of them" in sentence


@pytest.fixture
def small(monkeypatch):
    """Shorten at a hundredth of the length, so that few series need fitting."""
    monkeypatch.setattr(shortened, "MOST_POINTS", 100)
    monkeypatch.setattr(shortened, "_SHOWN", 40)
    monkeypatch.setattr(models, "MOST_SERIES", 5)


def test_the_report_counts_all_points(small):
    run = long_run(14, bad=3)
    view = view_of(run)
    assert view.counts == {"ok": len(run) - 30, "wrong": 30}
    assert "points were measured and judged" in view.sections[0].title
    assert len(view.sections[0].table.rows) <= 40 + 30
    assert any("30 points delivered wrong data" in notice.text for notice in view.notices)


@pytest.mark.parametrize(("count", "most"), [(10, 3), (3, 10), (1000, 7), (1, 1)])
def test_spaced_items_start_with_the_first(count, most):
    found = spaced(range(count), most)
    assert len(found) == min(count, most)
    assert found[0] == 0
    assert found == sorted(set(found))


def test_models_are_counted_and_some_are_shown(small):
    run = long_run(14)
    view = view_of(run)
    assert len([row for row in view.models.rows if row[0]]) + len(view.models.missing) <= 5
    assert any("series were fitted" in sentence for _, sentence in view.models.findings)
    assert make_testbox().name in view.topology
