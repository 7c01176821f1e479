"""The numbers a reader looks for first: one row per curve of each figure, picked by the same rule everywhere.

Bandwidth: the highest usable rate. Latency: the time at the least and at the largest x; where the figure
marks the caches, the fastest time inside each cache and the time beyond the last.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from iobench.report.charts import Chart, Curve, Mark, x_text
from iobench.report.names import half_width, is_rate, percent
from iobench.units import format_rate, format_seconds

_FITS = 0.75  # a working set up to this part of a cache is served by it: the rest holds other data
_BEYOND = 3.0  # one of at least so many times a cache's size has hardly a hit in it


@dataclass(frozen=True)
class KeyFigure:
    """One headline number as text; ``mark`` is the point it was read from."""

    probe: str
    chart: str
    what: str
    value: str
    spread: str
    fraction: str
    where: str
    status: str
    mark: Mark


def key_figures(charts: Iterable[Chart]) -> list[KeyFigure]:
    """Return the headline numbers of all figures; curves without a usable point have none."""
    return [figure for chart in charts for curve in chart.curves for figure in _of_curve(chart, curve)]


def best_per_chart(figures: Iterable[KeyFigure]) -> list[KeyFigure]:
    """Return one number per figure: the highest rate or the shortest time of those judged best."""
    groups: dict[tuple[str, str], list[KeyFigure]] = {}
    for figure in figures:
        groups.setdefault((figure.probe, figure.chart), []).append(figure)
    return [min(members, key=_rank) for members in groups.values()]


def _rank(figure: KeyFigure) -> tuple[bool, float]:
    is_rate = figure.value.endswith("/s")
    return figure.status != "ok", -figure.mark.y if is_rate else figure.mark.y


def _of_curve(chart: Chart, curve: Curve) -> list[KeyFigure]:
    usable = [mark for mark in curve.marks if mark.status in ("ok", "unproven", "suspect")]
    good = [mark for mark in usable if mark.status == "ok"] or usable
    if not good:
        return []
    if chart.y == "bandwidth":
        return [_figure(chart, curve, "", max(good, key=lambda mark: mark.y))]
    if chart.bars:
        return [_figure(chart, curve, "", min(good, key=lambda mark: mark.y))]
    if chart.caches:
        return [_figure(chart, curve, name, mark) for name, mark in _by_level(chart, good)]
    ends = dict.fromkeys((good[0], good[-1])) if len(good) > 1 else (good[0],)
    return [_figure(chart, curve, "", mark) for mark in ends]


def _by_level(chart: Chart, marks: list[Mark]) -> list[tuple[str, Mark]]:
    """Return the fastest working set of each level: TLB misses and sharing only add to what the level itself takes."""
    found, below = [], 0.0
    for name, nbytes in chart.caches:
        inside = [mark for mark in marks if _BEYOND * below <= float(mark.x) <= _FITS * nbytes]
        if inside:
            found.append((name, min(inside, key=lambda mark: mark.y)))
        below = float(nbytes)
    beyond = [mark for mark in marks if float(mark.x) >= _BEYOND * below]
    if beyond:
        found.append(("memory", beyond[-1]))
    return found


def _figure(chart: Chart, curve: Curve, level: str, mark: Mark) -> KeyFigure:
    time = mark.record.time
    fraction = mark.y / mark.limit if mark.limit and chart.y == "bandwidth" else None
    x = x_text(chart, mark.x)
    return KeyFigure(
        probe=chart.probe,
        chart=chart.title,
        what=", ".join(part for part in (level, curve.label) if part),
        value=format_rate(mark.y) if chart.y == "bandwidth" else format_seconds(mark.y),
        spread=half_width(time.fraction),
        fraction=percent(fraction) if fraction is not None else "-",
        where=x if chart.x_size or is_rate(chart.x) or isinstance(mark.x, str) else f"{chart.x} {x}",
        status=mark.status,
        mark=mark,
    )
