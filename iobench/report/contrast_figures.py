"""The figures of a comparison: time and rate over size, speed ratios with their crossings, a map of who is faster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from matplotlib.figure import Figure

from iobench.compare.contrasts import Match, differing
from iobench.compare.curves import Curve as Series
from iobench.report import draw, figures, heatmap, ratioplot
from iobench.report.charts import Chart, Curve, Mark, mark
from iobench.units import format_size

_LONGEST = 46


@dataclass(frozen=True)
class ContrastFigure:
    """One figure of a comparison: its file's stem, its words, and what draws it."""

    name: str
    title: str
    caption: str
    alt: str
    build: Callable[[], Figure]

    @cached_property
    def svg(self) -> str:
        return draw.svg_of(self.build)

    @cached_property
    def pdf(self) -> bytes:
        return draw.pdf_of(self.build)

    @property
    def inline(self) -> str:
        """The SVG for an HTML page."""
        return figures.inline(self.svg, self.name, self.alt)


def figures_of(match: Match, number: int) -> list[ContrastFigure]:
    """Return the figures of one group of series; the ``number``-th group's files are named after it."""
    stem = f"compare-{number}"
    found = [_over_size(match, f"{stem}-time", "latency")]
    if all(curve.quantity == "bandwidth" and curve.records[0].moved > 0 for curve in match.curves):
        found.append(_over_size(match, f"{stem}-rate", "bandwidth"))
    if any(len(fight.ratios) > 1 for fight in match.duels):
        found.append(_ratios(match, f"{stem}-ratio"))
    if match.sizes:
        found.append(_map(match, f"{stem}-map"))
    return found


def label(curve: Series, match: Match) -> str:
    """Return a series' name in a legend: its letter, its run, and what sets it apart where the run's name doesn't."""
    names = [other.name for other in match.curves]
    apart = differing(match)[curve.letter] if len(set(names)) < len(names) else ""
    text = f"{curve.letter}  {curve.name}{f': {apart}' if apart else ''}"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _over_size(match: Match, name: str, y: str) -> ContrastFigure:
    curves = tuple(Curve(label(series, match), (), _marks(series, y)) for series in match.curves)
    one = len({m.x for curve in curves for m in curve.marks}) < 2
    title = "Time" if y == "latency" else "Bus bandwidth" if match.curves[0].axes.get("op") else "Rate"
    # rates on a linear axis: small messages are told apart by their times, large ones hardly by a logarithm
    chart = Chart(
        match.curves[0].probe, title, "nbytes", y, curves, x_size=True, log_x=True, bars=one, x_name="message size",
        linear=y == "bandwidth",
    )  # fmt: skip
    return ContrastFigure(name, title, _caption(match, chart), f"{title}: {_ends(match)}", lambda: draw.figure(chart))


def _marks(series: Series, y: str) -> tuple[Mark, ...]:
    marks = [mark(record, record.nbytes, y, series.verdicts.get(record.key)) for record in series.records]
    if y == "bandwidth" and series.limit:
        marks = [each if each.limit else replace(each, limit=series.limit) for each in marks]
    return tuple(marks)


def _caption(match: Match, chart: Chart) -> str:
    single = [curve.letter for curve in match.curves if not curve.known]
    sampled = [curve.letter for curve in match.curves if curve.known]
    parts = [f"{chart.title} against message size."]
    if sampled:
        parts.append(f"{', '.join(sampled)}: median; band: 95 % interval.")
    if single:
        parts.append(f"{', '.join(single)}: single figures, no interval can be known.")
    limited = [
        c.letter for c, drawn in zip(match.curves, chart.curves, strict=True) if any(m.limit for m in drawn.marks)
    ]
    if limited:
        parts.append(
            f"Dashed: rate of the links of {', '.join(limited)}; what reduces in the switch or along a tree may"
        )
        parts.append("pass it. Each ends in its curve's marker where they differ.")
    return " ".join(parts)


def _ends(match: Match) -> str:
    return "; ".join(
        f"{curve.letter}: {format_size(curve.sizes[0])} to {format_size(curve.sizes[-1])}" for curve in match.curves
    )


def _ratios(match: Match, name: str) -> ContrastFigure:
    first = match.curves[0].letter
    duels = [fight for fight in match.duels if fight.a.letter == first and len(fight.ratios) > 1]
    if not duels:
        duels = [fight for fight in match.duels if len(fight.ratios) > 1][:1]
    base = duels[0].a.letter
    labels = [f"{label(fight.b, match)}" for fight in duels]
    caption = f"Speed over {base}'s: above 1 faster than {base}, below 1 slower."
    if any(not ratio.measured for fight in duels for ratio in fight.ratios):
        caption += " Hollow: between two measured sizes."
    if any(fight.crossings for fight in duels):
        caption += " Dotted: where the faster one changes; shaded: its 95 % interval where one can be known."
    alt = " ".join(f"{fight.b.letter} against {base}: {fight.sentence}." for fight in duels)
    title = f"Speed over {base}'s"
    return ContrastFigure(name, title, caption, alt, lambda: ratioplot.figure(duels, labels))


def _map(match: Match, name: str) -> ContrastFigure:
    sizes = heatmap.thinned(match.sizes)
    times = [match.times(size) for size in sizes]
    best = [min(time.seconds for time in column.values()) for column in times]
    letters = [curve.letter for curve in match.curves]
    values = [
        [
            column[letter].seconds / least if letter in column else None
            for column, least in zip(times, best, strict=True)
        ]
        for letter in letters
    ]
    title, alt = "Time over the fastest one's", "; ".join(f"{c.letter}: {c.name}" for c in match.curves)
    above = "time over that of the fastest (1 is the fastest)"
    caption = "Time over that of the fastest at each size: 1 is the fastest. Hatched: not measured there."
    columns = [format_size(size) for size in sizes]
    return ContrastFigure(name, title, caption, alt, lambda: heatmap.figure(letters, columns, values, title=above))
