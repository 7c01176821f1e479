"""Draws a Chart as SVG with matplotlib; the same chart gives the same bytes every time.

Colours are Okabe and Ito's (2008), told apart by colour-blind readers; every curve has a marker and a
line style of its own as well, so that a grey print can be read.
"""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Callable
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from iobench.report import ticks
from iobench.report.charts import CROSSED, Chart, Curve, Mark, x_text
from iobench.report.names import is_rate
from iobench.units import format_rate, format_seconds

SOLID = ("ok", "unproven")  # every other verdict is drawn hollow
INK, MUTED, GRID, PAPER, ALARM = "#1b1f24", "#59636e", "#d8dde3", "#fefefe", "#c62828"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#4d4d4f", "#8c6d31")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.2, 1.2, 1.2)))
WIDTH = 5.0  # inches: 360 points, the width of a phone, so that text keeps its size there
_LEGEND_WIDTH, _LEGEND_HANDLE = 68, 7  # characters in a line of the legend, and those that an entry's line takes
_LIMIT_IN_VIEW = 2.5  # a limit further above the data than this is named, not drawn, on a linear axis
_CROWDED = 48  # more marks than this on one curve are drawn small
_STYLE: dict[str, Any] = {
    "svg.hashsalt": "iobench", "svg.fonttype": "none", "pdf.fonttype": 42, "text.parse_math": False,
    "axes.formatter.use_mathtext": False,
    "font.family": ["DejaVu Sans"], "font.size": 9.2, "text.color": INK, "axes.edgecolor": MUTED,
    "axes.labelcolor": INK, "xtick.color": MUTED, "ytick.color": MUTED, "xtick.labelcolor": INK,
    "ytick.labelcolor": INK, "axes.facecolor": PAPER, "figure.facecolor": PAPER, "savefig.facecolor": PAPER,
    "axes.linewidth": 0.7, "grid.color": GRID, "grid.linewidth": 0.6, "axes.axisbelow": True,
    "xtick.major.width": 0.7, "ytick.major.width": 0.7, "xtick.major.size": 3, "ytick.major.size": 3,
}  # fmt: skip


def svg(chart: Chart) -> str:
    """Return the chart as an SVG document with real text in it."""
    return svg_of(lambda: figure(chart))


def pdf(chart: Chart) -> bytes:
    """Return the chart as PDF, for a paper."""
    return pdf_of(lambda: figure(chart))


def png(chart: Chart, dpi: int = 160) -> bytes:
    """Return the chart as PNG, for tools that take no SVG."""
    return png_of(lambda: figure(chart), dpi)


def svg_of(build: Callable[[], Figure]) -> str:
    """Return the figure that ``build`` makes in this module's style as SVG; the same figure gives the same bytes."""
    buffer = io.StringIO()
    with mpl.rc_context(_STYLE):
        FigureCanvasSVG(build()).print_svg(buffer, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    return buffer.getvalue()


def pdf_of(build: Callable[[], Figure]) -> bytes:
    """Return the figure that ``build`` makes in this module's style as PDF with its fonts in it."""
    buffer = io.BytesIO()
    with mpl.rc_context(_STYLE):
        metadata = dict.fromkeys(("CreationDate", "Creator", "Producer"))
        build().savefig(buffer, format="pdf", metadata=metadata)
    return buffer.getvalue()


def png_of(build: Callable[[], Figure], dpi: int = 160) -> bytes:
    """Return the figure that ``build`` makes in this module's style as PNG."""
    buffer = io.BytesIO()
    with mpl.rc_context(_STYLE):
        build().savefig(buffer, format="png", dpi=dpi)
    return buffer.getvalue()


def figure(chart: Chart) -> Figure:
    """Return the chart as a figure, to be drawn by one of the functions above."""
    rows = _legend_rows(chart)
    bars = len(chart.marks)
    height = 0.75 + 0.2 * bars if chart.bars else 2.75
    made = Figure(figsize=(WIDTH, height + 0.22 * rows), layout="constrained")
    axes = made.add_subplot()
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if chart.bars:
        _draw_bars(axes, chart)
    else:
        _draw_curves(axes, chart)
        _legend(made, chart, rows)
    return made


def _draw_curves(axes: Any, chart: Chart) -> None:
    log = _log(chart)
    low, high = _y_view(chart, log)
    axes.grid(True)
    for number, curve in enumerate(chart.curves):
        _draw_curve(axes, curve, number)
    _draw_limits(axes, chart, high)
    _x_axis(axes, chart)
    if log:
        axes.set_yscale("log")
    axes.set_ylim(low, high)
    ticks.value_axis(axes.yaxis, chart.y, low, high, log)
    axes.set_ylim(low, high)
    axes.set_title(_y_title(chart), loc="left", fontsize=9.2, color=MUTED, pad=15 if chart.caches else 5)
    _name_crossed(axes, chart)
    _mark_caches(axes, chart)


def _log(chart: Chart) -> bool:
    return not chart.linear and ticks.wants_log([mark.y for mark in chart.marks])


def _y_title(chart: Chart) -> str:
    if chart.y != "bandwidth":
        return "time per operation"
    return f"{chart.title.lower()}, GB/s" if chart.linear else "GB/s"


def _draw_curve(axes: Any, curve: Curve, number: int) -> None:
    colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
    good = [mark for mark in curve.marks if mark.status not in CROSSED]
    dashes = DASHES[number % len(DASHES)]
    axes.plot([m.x for m in good], [m.y for m in good], color=colour, linestyle=dashes, linewidth=1.3, zorder=3)
    axes.fill_between(
        [m.x for m in good], [m.low for m in good], [m.high for m in good], color=colour, alpha=0.22, linewidth=0
    )
    for solid in (True, False):
        _draw_marks(axes, [mark for mark in curve.marks if (mark.status in SOLID) is solid], colour, marker, solid)
    crossed = [mark for mark in curve.marks if mark.status in CROSSED]
    axes.plot(
        [m.x for m in crossed], [m.y for m in crossed], linestyle="none", marker="x", color=ALARM, markersize=8,
        markeredgewidth=1.5, zorder=5,
    )  # fmt: skip


def _draw_marks(axes: Any, marks: list[Mark], colour: str, marker: str, solid: bool) -> None:
    if marks:
        whiskers = [[max(m.y - m.low, 0.0) for m in marks], [max(m.high - m.y, 0.0) for m in marks]]
        axes.errorbar(
            [m.x for m in marks], [m.y for m in marks], yerr=whiskers, fmt=marker, color=colour, zorder=4,
            markerfacecolor=colour if solid else PAPER, markeredgewidth=1.0, elinewidth=0.8,
            markersize=4.2 if len(marks) <= _CROWDED else 2.4,
        )  # fmt: skip


def _y_view(chart: Chart, log: bool) -> tuple[float, float]:
    """Return the y axis' ends: the data with its intervals, and the limits that are near."""
    low, high = min(mark.low for mark in chart.marks), max(mark.high for mark in chart.marks)
    if chart.y == "bandwidth":
        most = high * (10.0 if log else _LIMIT_IN_VIEW)
        high = max([high, *(mark.limit for mark in chart.marks if mark.limit and mark.limit <= most)])
    if log:
        room = (high / low) ** 0.06
        return low / room, high * room
    return 0.0, high * 1.08


def _draw_limits(axes: Any, chart: Chart, top: float) -> None:
    """Draw the limit once where all curves share it, else one for each, with its curve's colour and marker.

    Limits above ``top`` are not on the axis: the end of a line to one would look like a mark of its own.
    """
    per_curve = [[(m.x, m.limit) for m in curve.marks if m.limit and m.limit <= top] for curve in chart.curves]
    shared: dict[Any, set[str]] = {}
    for limits in per_curve:
        for x, limit in limits:
            shared.setdefault(x, set()).add(f"{limit:.3g}")
    if all(len(values) == 1 for values in shared.values()):
        together = sorted({x: limit for limits in per_curve for x, limit in limits}.items())
        _limit_line(axes, together, INK)
        return
    for number, limits in enumerate(per_curve):
        _limit_line(axes, sorted(limits), COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)])


def _limit_line(axes: Any, limits: list[tuple[Any, float]], colour: str, marker: str = "") -> None:
    if len(limits) == 1:
        axes.plot(*zip(*limits, strict=True), marker="_", color=colour, markersize=14, zorder=2)
    elif limits:
        axes.plot(
            *zip(*limits, strict=True), color=colour, linestyle=(0, (7, 3)), linewidth=0.9, zorder=2,
            marker=marker, markevery=[-1], markersize=4.2, markerfacecolor=PAPER, markeredgewidth=0.9,
        )  # fmt: skip


def _x_axis(axes: Any, chart: Chart) -> None:
    values = [float(mark.x) for mark in chart.marks]
    log = chart.log_x and min(values) > 0
    if log:
        axes.set_xscale("log", base=2)
    if is_rate(chart.x):
        ticks.value_axis(axes.xaxis, "bandwidth", min(values), max(values), log)
    elif chart.x_size and min(values) > 0 and log:
        axes.set_xticks(*ticks.size_ticks(values))
    elif chart.x_size:
        axes.set_xticks(sorted(set(values))[:: math.ceil(len(set(values)) / 6)])
        axes.xaxis.set_major_formatter(lambda value, _: x_text(chart, value))
    else:
        axes.set_xticks(*ticks.number_ticks(values))
    axes.minorticks_off()
    axes.set_xlabel(f"{chart.x_title}, GB/s" if is_rate(chart.x) else chart.x_title)


def _name_crossed(axes: Any, chart: Chart) -> None:
    """Write the verdict beside crossed points: once for neighbours on one curve, or the names would overlap."""
    for curve in chart.curves:
        last = ""
        for mark in curve.marks:
            if mark.status in CROSSED and mark.status != last:
                _name(axes, mark)
            last = mark.status


def _name(axes: Any, mark: Mark) -> None:
    along, _ = axes.transAxes.inverted().transform(axes.transData.transform((float(mark.x), mark.y)))
    side = -1 if along > 0.6 else 1
    axes.annotate(
        mark.status, (mark.x, mark.y), xytext=(7 * side, 5), textcoords="offset points", va="bottom",
        ha="right" if side < 0 else "left", color=ALARM, fontsize=8.7, zorder=6,
    )  # fmt: skip


def _mark_caches(axes: Any, chart: Chart) -> None:
    low, high = axes.get_xlim()
    for name, nbytes in chart.caches:
        if low < nbytes < high:
            axes.axvline(nbytes, color=MUTED, linewidth=0.9, linestyle=(0, (1, 2)), zorder=1)
            axes.annotate(
                f"{name} {x_text(chart, nbytes)}", (nbytes, 1.0), xycoords=("data", "axes fraction"),
                xytext=(0, 2), textcoords="offset points", ha="center", va="bottom", fontsize=8, color=MUTED,
            )  # fmt: skip


def _legend_columns(chart: Chart) -> int:
    """Return the most columns, four at most, in which the legend is no wider than the figure."""
    labels = [label for label, _ in _legend_entries(chart)]
    for columns in (4, 3, 2):
        each, longer = divmod(len(labels), columns)  # matplotlib fills the first ones first
        sizes = [each + (number < longer) for number in range(columns)]
        ends = list(itertools.accumulate(sizes))
        widest = [max(map(len, labels[end - size : end]), default=0) for size, end in zip(sizes, ends, strict=True)]
        if sum(width + _LEGEND_HANDLE for width in widest) <= _LEGEND_WIDTH:
            return columns
    return 1


def _legend_rows(chart: Chart) -> int:
    entries = len(_legend_entries(chart)) if not chart.bars else 0
    return math.ceil(entries / _legend_columns(chart)) if entries else 0


def _legend_entries(chart: Chart) -> list[tuple[str, dict[str, Any]]]:
    entries: list[tuple[str, dict[str, Any]]] = []
    for number, curve in enumerate(chart.curves):
        look = {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)], "markersize": 4.2}
        if curve.label:
            entries.append((curve.label, {**look, "linestyle": DASHES[number % len(DASHES)], "linewidth": 1.3}))
    limit = limit_text(chart)
    if limit:
        entries.append((limit, {"color": INK, "linestyle": (0, (7, 3)), "linewidth": 0.9}))
    return entries


def limit_text(chart: Chart) -> str:
    """Return the legend's entry for the limit: its rate where all points share one."""
    limits = [mark.limit for mark in chart.marks if mark.limit]
    if not limits:
        return ""
    if chart.y == "latency":
        return "time at the limit"
    if max(limits) > min(limits) * 1.01:
        above = sum(limit > _top(chart) for limit in limits)
        return "limits, some above the axis" if 0 < above < len(limits) else "limit of each point's path"
    # not in view: said here, because a line at the top edge would look like a measured ceiling
    return f"limit {format_rate(limits[0])}{'' if limit_in_view(chart) else ' (above this axis)'}"


def limit_in_view(chart: Chart) -> bool:
    """Tell whether at least one point's limit lies within the axis."""
    return any(mark.limit and mark.limit <= _top(chart) for mark in chart.marks)


def _top(chart: Chart) -> float:
    """Return the end of the value axis."""
    log = _log(chart)
    return _bar_top(chart, log) if chart.bars else _y_view(chart, log)[1]


def _legend(figure: Figure, chart: Chart, rows: int) -> None:
    if not rows:
        return
    entries = _legend_entries(chart)
    handles = [Line2D([], [], **look) for _, look in entries]
    figure.legend(
        handles, [label for label, _ in entries], loc="outside lower left", ncols=_legend_columns(chart),
        frameon=False, fontsize=8.7, handlelength=2.6, columnspacing=1.4, borderaxespad=0.2,
    )  # fmt: skip


def _draw_bars(axes: Any, chart: Chart) -> None:
    """Draw one bar per mark, longest intervals as whiskers, the value in words at the bar's end."""
    axes.grid(True, axis="x")
    rows = [(number, curve, mark) for number, curve in enumerate(chart.curves) for mark in curve.marks]
    for row, (number, _, mark) in enumerate(rows):
        _draw_bar(axes, chart, row, mark, COLOURS[number % len(COLOURS)])
    low, high = _bar_view(axes, chart)
    ticks.value_axis(axes.xaxis, chart.y, low, high, axes.get_xscale() == "log")
    axes.set_xlim(low, high)
    axes.set_yticks(range(len(rows)), [_bar_label(chart, curve, mark) for _, curve, mark in rows])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_title(_y_title(chart), loc="left", fontsize=9.2, color=MUTED, pad=5)


def _bar_view(axes: Any, chart: Chart) -> tuple[float, float]:
    log = _log(chart)
    if log:
        axes.set_xscale("log")
    low = min(mark.low for mark in chart.marks) / 2 if log else 0.0
    return low, _bar_top(chart, log)


def _bar_top(chart: Chart, log: bool) -> float:
    """Return the value axis' end: room for the words beside the longest bar, and for limits that are near."""
    low, high = min(mark.low for mark in chart.marks) / 2, max(mark.high for mark in chart.marks)
    if log:
        return float(high * (high / low) ** 0.35)
    limits = [mark.limit for mark in chart.marks if mark.limit and mark.limit <= _LIMIT_IN_VIEW * high]
    return max([high * 1.32, *(limit * 1.05 for limit in limits)])


def _draw_bar(axes: Any, chart: Chart, row: int, mark: Mark, colour: str) -> None:
    hollow = mark.status not in SOLID
    axes.barh(row, mark.y, height=0.62, color=PAPER if hollow else colour, edgecolor=colour, linewidth=1.0, zorder=2)
    axes.errorbar(
        [mark.y], [row], xerr=[[max(mark.y - mark.low, 0.0)], [max(mark.high - mark.y, 0.0)]], fmt="none",
        ecolor=INK, elinewidth=0.9, capsize=2.2, zorder=3,
    )  # fmt: skip
    text = format_rate(mark.y) if chart.y == "bandwidth" else format_seconds(mark.y)
    crossed = mark.status in CROSSED
    if mark.limit and mark.limit <= _bar_top(chart, axes.get_xscale() == "log"):
        axes.plot([mark.limit] * 2, [row - 0.42, row + 0.42], color=INK, linewidth=1.2, linestyle=(0, (2, 1)), zorder=3)
    if crossed:
        axes.plot([mark.y / 2], [row], marker="x", color=ALARM, markersize=7, markeredgewidth=1.5, zorder=4)
    label = text if mark.status == "ok" else f"{text} {mark.status}"
    axes.annotate(
        label, (mark.high, row), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8.7,
        color=ALARM if crossed else INK, zorder=4,
    )  # fmt: skip


def _bar_label(chart: Chart, curve: Curve, mark: Mark) -> str:
    x = x_text(chart, mark.x)
    named = x if chart.x_size or is_rate(chart.x) or isinstance(mark.x, str) else f"{chart.x} {x}"
    alone = len({repr(m.x) for m in chart.marks}) == 1 and len(chart.marks) > 1
    label = curve.label if alone else ", ".join(part for part in (named, curve.label) if part)
    return label if len(label) <= 40 else f"{label[:39]}…"
