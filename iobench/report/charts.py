"""What each figure shows: curves of marks, taken from the records as the probe's plots ask.

Pure data; ``draw`` turns a Chart into an SVG. Points that differ in any axis never share a curve,
so nothing is averaged over an axis that the plot forgot to name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from iobench.check import Verdict
from iobench.record import Record, Run
from iobench.report.names import (
    MODE,
    about,
    axes_of,
    axis_value,
    is_number,
    is_rate,
    is_size,
    pairs_text,
    value_text,
    varying,
)
from iobench.units import format_rate

MOST_CURVES = 8  # as many as eight colours and markers keep apart
MOST_BARS = 24
CROSSED = ("impossible", "wrong")


@dataclass(frozen=True, eq=False)
class Mark:
    """One measured point: ``y`` with its interval in bytes/s or seconds, ``limit`` in the same unit."""

    x: Any
    y: float
    low: float
    high: float
    limit: float | None
    status: str
    record: Record


@dataclass(frozen=True)
class Curve:
    """The marks of one series in the order of x; ``pairs`` are the axes' values that set it apart."""

    label: str
    pairs: tuple[tuple[str, Any], ...]
    marks: tuple[Mark, ...]


@dataclass(frozen=True)
class Chart:
    """One figure. ``y`` is "bandwidth" or "latency"; ``bars`` where x is no number or has one value.

    ``x_name`` is written below the x axis, its axis' name unless given; ``linear`` keeps y from being logarithmic.
    """

    probe: str
    title: str
    x: str
    y: str
    curves: tuple[Curve, ...]
    x_size: bool
    log_x: bool
    bars: bool
    caches: tuple[tuple[str, int], ...] = ()
    x_name: str = ""
    linear: bool = False

    @property
    def x_title(self) -> str:
        """What the x axis is called."""
        return self.x_name or self.x

    @property
    def marks(self) -> list[Mark]:
        return [mark for curve in self.curves for mark in curve.marks]


def charts_of(run: Run, probe: str, verdicts: Mapping[str, Verdict]) -> list[Chart]:
    """Return the figures of one probe: those it declares, else one per quantity; empty ones are left out."""
    records = run.of(probe)
    found = []
    for plot in _plots(run, probe, records):
        found += _split(run, _chart(run, probe, plot, records, verdicts))
    return found


def _plots(run: Run, probe: str, records: list[Record]) -> list[Mapping[str, Any]]:
    declared = about(run, probe).get("plots")
    usable: list[Mapping[str, Any]] = [p for p in declared if isinstance(p, dict)] if isinstance(declared, list) else []
    return usable or _default_plots(records)


def _default_plots(records: list[Record]) -> list[Mapping[str, Any]]:
    axes = [axis for axis in axes_of(records) if all(axis in record.point for record in records)]
    numbers = [a for a in varying(records, axes) if all(is_number(axis_value(r, a)) for r in records)]
    x = "nbytes" if "nbytes" in numbers or not axes else (numbers or varying(records, axes) or axes)[0]
    quantities = dict.fromkeys(record.quantity for record in records if record.used)
    return [{"title": str(q).capitalize(), "x": x, "y": q, "quantity": q} for q in quantities]


def _chart(
    run: Run, probe: str, plot: Mapping[str, Any], records: list[Record], verdicts: Mapping[str, Verdict]
) -> Chart:
    x, y = str(plot.get("x", "nbytes")), str(plot.get("y", "bandwidth"))
    kept = [record for record in records if _wanted(record, plot, x, y)]
    bars = not all(is_number(axis_value(r, x)) for r in kept) or len({axis_value(r, x) for r in kept}) < 2
    curves = _curves(run, probe, kept, _separating(plot, kept, x), x, y, verdicts)
    caches = cache_sizes(run) if plot.get("caches") and not bars else ()
    title, log_x = str(plot.get("title", y.capitalize())), bool(plot.get("log_x", True))
    name = str(plot.get("x_name") or "")
    return Chart(probe, title, x, y, curves, is_size(run, probe, x), log_x, bars, caches, name)


def _wanted(record: Record, plot: Mapping[str, Any], x: str, y: str) -> bool:
    if not record.used or axis_value(record, x) is None or not _hashable(axis_value(record, x)):
        return False
    if y == "bandwidth" and (record.quantity != "bandwidth" or record.moved <= 0):
        return False
    if plot.get("quantity", record.quantity) != record.quantity:
        return False
    if not record.time.low > 0:
        return False  # a clock that did not move: no rate can be formed, no logarithm taken
    where = plot.get("where")
    wanted = where.items() if isinstance(where, Mapping) else ()
    return all(_matches(axis_value(record, axis), value) for axis, value in wanted)


def _hashable(value: Any) -> bool:
    return isinstance(value, (str, int, float, bool))


def _matches(value: Any, wanted: Any) -> bool:
    return value in wanted if isinstance(wanted, (list, tuple)) else bool(value == wanted)


def _separating(plot: Mapping[str, Any], records: list[Record], x: str) -> list[str]:
    """Return the plot's series axes first, then every other axis on which the records differ."""
    series = plot.get("series")
    asked = [str(axis) for axis in series] if isinstance(series, (list, tuple)) else []
    along = plot.get("over")
    others = [axis for axis in axes_of(records) if axis not in asked and axis != x and axis not in (along or ())]
    axes = varying(records, [axis for axis in [*asked, *others] if axis not in (x, MODE)])
    modes: dict[str, set[str]] = {}
    for record in records:
        modes.setdefault(repr([axis_value(record, axis) for axis in axes]), set()).add(record.mode)
    # modes never share a curve, but one that follows from the other axes need not be named
    return [*axes, MODE] if any(len(found) > 1 for found in modes.values()) else axes


def _curves(
    run: Run, probe: str, records: list[Record], axes: list[str], x: str, y: str, verdicts: Mapping[str, Verdict]
) -> tuple[Curve, ...]:
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(repr([axis_value(record, axis) for axis in axes]), []).append(record)
    curves = []
    for members in groups.values():
        pairs = {axis: axis_value(members[0], axis) for axis in axes if axis_value(members[0], axis) is not None}
        marks = [mark(record, axis_value(record, x), y, verdicts.get(record.key)) for record in members]
        if all(is_number(m.x) for m in marks):
            marks.sort(key=lambda m: m.x)
        curves.append(Curve(pairs_text(run, probe, pairs), tuple(pairs.items()), tuple(marks)))
    return tuple(curves)


def mark(record: Record, x: Any, y: str, verdict: Verdict | None) -> Mark:
    """Return the record as a mark; the limit is where the verdict's fraction would be 1."""
    fraction = verdict.fraction if verdict else None
    if y == "bandwidth":
        value, (low, high) = record.bytes_per_s, record.bytes_per_s_interval
        limit = value / fraction if fraction else None
    else:
        value, low, high = record.time.median, record.time.low, record.time.high
        # a latency says nothing about the link's rate, so its "time at the limit" would only mislead
        limit = value * fraction if fraction and record.quantity == "bandwidth" else None
    return Mark(x, value, low, high, limit, verdict.status if verdict else record.status, record)


def _split(run: Run, chart: Chart) -> list[Chart]:
    """Return one figure, or several by one axis where one would hold more than the eye can follow."""
    if not chart.curves:
        return []
    size, most = (len(chart.marks), MOST_BARS) if chart.bars else (len(chart.curves), MOST_CURVES)
    axis = _axis_to_split(chart) if size > most else None
    if axis is None:
        return [chart]
    parts: dict[str, list[Curve]] = {}
    for curve in chart.curves:
        parts.setdefault(repr(dict(curve.pairs).get(axis)), []).append(curve)
    found = []
    for curves in parts.values():
        value = pairs_text(run, chart.probe, {axis: dict(curves[0].pairs).get(axis)})
        shorter = tuple(_without(run, chart.probe, curve, axis) for curve in curves)
        found += _split(run, replace(chart, title=f"{chart.title}: {value}", curves=shorter))
    return found


def _axis_to_split(chart: Chart) -> str | None:
    """Return the axis that needs the fewest figures: few values, but groups that fit where possible."""
    groups: dict[str, dict[str, int]] = {}
    for curve in chart.curves:
        for axis, value in curve.pairs:
            counts = groups.setdefault(axis, {})
            counts[repr(value)] = counts.get(repr(value), 0) + (len(curve.marks) if chart.bars else 1)
    most = MOST_BARS if chart.bars else MOST_CURVES
    able = {axis: counts for axis, counts in groups.items() if len(counts) > 1}
    fitting = [axis for axis, counts in able.items() if max(counts.values()) <= most]
    if fitting:
        return min(fitting, key=lambda axis: len(able[axis]))
    return max(able, key=lambda axis: len(able[axis])) if able else None


def _without(run: Run, probe: str, curve: Curve, axis: str) -> Curve:
    pairs = tuple(pair for pair in curve.pairs if pair[0] != axis)
    return replace(curve, label=pairs_text(run, probe, dict(pairs)), pairs=pairs)


def cache_sizes(run: Run) -> tuple[tuple[str, int], ...]:
    """Return ("L1d", bytes) of every data cache size in the topology, each once, smallest first."""
    nodes = run.header.topology.get("nodes") if isinstance(run.header.topology, dict) else None
    sizes: set[tuple[int, str]] = set()
    for node in nodes if isinstance(nodes, list) else ():
        attrs = node.get("attrs") if isinstance(node, dict) else None
        if not isinstance(attrs, dict) or node.get("kind") != "cache" or attrs.get("type") == "Instruction":
            continue
        if isinstance(attrs.get("nbytes"), int) and attrs["nbytes"] > 0:
            sizes.add((attrs["nbytes"], _cache_name(attrs)))
    return tuple((name, nbytes) for nbytes, name in sorted(sizes))


def _cache_name(attrs: Mapping[str, Any]) -> str:
    return f"L{attrs.get('level', '?')}{'d' if attrs.get('type') == 'Data' else ''}"


def x_text(chart: Chart, value: Any) -> str:
    """Return a value of the chart's x axis as text."""
    return format_rate(value) if is_rate(chart.x) and is_number(value) else value_text(value, chart.x_size)
