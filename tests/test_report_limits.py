"""Limits in figures: drawn where they are near the data, said where they are not."""

from __future__ import annotations

import pytest
from iobench.check import judge
from iobench.record import Leg
from iobench.report import draw
from iobench.units import GB
from matplotlib.backends.backend_agg import FigureCanvasAgg
from tests.test_report_charts import charts, with_plots

from make_run import MEMORY_LIMIT, demo_run, lines


def test_the_limit_of_a_mark_is_the_verdicts() -> None:
    run = demo_run()
    verdicts = judge(run)
    for mark in charts(run, "dram")[0].marks:
        assert mark.limit == pytest.approx(verdicts[mark.record.key].limit_bytes_per_s)
        assert mark.limit == pytest.approx(MEMORY_LIMIT)
    assert all(mark.limit is None for mark in charts(run, "dram")[1].marks)  # a latency has no rate


def test_a_limit_far_above_is_said_and_not_drawn() -> None:
    out = [line for t in (1, 2, 3) for line in lines("dram", {"t": t}, 1.0, moved=GB, legs=[Leg("mem:0", "cpu:0")])]
    (chart,) = charts(with_plots(out, {"title": "T", "x": "t", "y": "bandwidth"}), "dram")
    assert draw.limit_text(chart) == "limit 51.2 GB/s (above this axis)"


def test_limits_of_which_some_are_far_above_have_no_line_to_them() -> None:
    """The end of a line to a limit beyond the axis would look like a mark of its own."""
    moved = 30 * GB
    out = [
        line
        for t, part in ((1, 10), (2, 10), (4, 1))  # of the first two a tenth of the bytes crosses the memory's bus
        for line in lines("dram", {"t": t}, 1.0, moved=moved, legs=[Leg("mem:0", "cpu:0", moved=moved // part)])
    ]
    (chart,) = charts(with_plots(out, {"title": "T", "x": "t", "y": "bandwidth"}), "dram")
    far, _, near = (mark.limit for mark in chart.marks)
    assert far == pytest.approx(10 * near)
    assert draw.limit_text(chart) == "limits, some above the axis"
    axes = draw.figure(chart).axes[0]
    top = axes.get_ylim()[1]
    drawn = [y for line in axes.lines for y in line.get_ydata()]
    assert near in drawn
    assert max(drawn) <= top < far


@pytest.mark.parametrize("names", [["256 KiB", "1 MiB", "4 MiB"], ["read", "write", "copy"], ["a" * 26, "b" * 26]])
def test_the_legend_with_its_limit_is_no_wider_than_the_figure(names: list[str]) -> None:
    out = [
        line
        for name in names
        for t in (1, 2)
        for line in lines("dram", {"t": t, "name": name}, 1.0, moved=GB, legs=[Leg("mem:0", "cpu:0")])
    ]
    (chart,) = charts(with_plots(out, {"title": "T", "x": "t", "y": "bandwidth", "series": ["name"]}), "dram")
    assert draw.limit_text(chart).endswith("(above this axis)")
    figure = draw.figure(chart)
    FigureCanvasAgg(figure).draw()
    (legend,) = figure.legends
    assert legend.get_window_extent().x1 <= figure.bbox.width
    assert len(legend.get_texts()) == len(names) + 1
