"""Figures with their words: the SVG for a page and for a file, the caption, the text for those who cannot see it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape

from iobench.check import Verdict
from iobench.record import Run
from iobench.report import draw
from iobench.report.charts import CROSSED, Chart, charts_of, x_text
from iobench.report.names import point_names
from iobench.units import format_rate, format_seconds

_VARIABLES = {
    draw.INK: "--ink", draw.MUTED: "--muted", draw.GRID: "--grid", draw.PAPER: "--paper", draw.ALARM: "--alarm",
    **{colour: f"--c{number}" for number, colour in enumerate(draw.COLOURS)},
}  # fmt: skip
_ID = re.compile(r'(\bid="|url\(#|href="#)')
_NAMED = 4


@dataclass(frozen=True)
class FigureView:
    """One figure: ``name`` is its file's stem and its id in the page, ``svg`` a document on white paper."""

    name: str
    chart: Chart
    svg: str
    title: str
    caption: str
    alt: str

    @property
    def inline(self) -> str:
        """The SVG for an HTML page: colours as CSS variables (light and dark), ids of its own, an accessible name."""
        return inline(self.svg, self.name, self.alt)


def inline(svg: str, name: str, alt: str) -> str:
    """Return an SVG document as part of an HTML page: ids start with ``name``, ``alt`` is its accessible name."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"\s*<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = _ID.sub(lambda match: f"{match[1]}{name}-", body)
    for colour, variable in _VARIABLES.items():
        body = body.replace(colour, f"var({variable})")
    body = re.sub(r'^<svg [^>]*?viewBox="([^"]*)"[^>]*>', r'<svg viewBox="\1">', body, count=1)
    label = f'<svg role="img" aria-label="{escape(alt)}" xmlns="http://www.w3.org/2000/svg"'
    return body.replace("<svg", label, 1)


def figures_of(run: Run, probe: str, verdicts: Mapping[str, Verdict]) -> list[FigureView]:
    """Draw the figures of one probe."""
    charts = charts_of(run, probe, verdicts)
    stem = re.sub(r"[^A-Za-z0-9]+", "-", probe).strip("-").lower() or "probe"
    return [_view(run, verdicts, f"{stem}-{number}", chart) for number, chart in enumerate(charts, start=1)]


def _view(run: Run, verdicts: Mapping[str, Verdict], name: str, chart: Chart) -> FigureView:
    caption = " ".join(part for part in (_what(chart), _limit(chart, verdicts), _crossed(run, chart)) if part)
    return FigureView(name, chart, draw.svg(chart), chart.title, caption, f"{chart.title}. {_range(chart)}")


def _what(chart: Chart) -> str:
    value = "Rate" if chart.y == "bandwidth" else "Time per operation"
    if chart.bars:
        return f"{value}, median; whiskers: 95 % interval."
    hollow = any(mark.status == "suspect" for mark in chart.marks)
    return (
        f"{value} against {chart.x_title}, median; band and whiskers: 95 % interval."
        f"{' Hollow: suspect.' if hollow else ''}"
    )


def _limit(chart: Chart, verdicts: Mapping[str, Verdict]) -> str:
    limited = [mark for mark in chart.marks if mark.limit]
    if not limited:
        return "No limit is known." if chart.y == "bandwidth" else ""
    sources = dict.fromkeys(verdicts[mark.record.key].limit_source for mark in limited)
    named = "; ".join(source for source in list(sources)[:_NAMED] if source)
    values = [mark.limit for mark in limited if mark.limit]
    ends = dict.fromkeys(format_rate(value) for value in (min(values), max(values)))
    said = f" {' to '.join(ends)}" if chart.y == "bandwidth" else ""
    lead = "Dashed: limit of the path" if draw.limit_in_view(chart) else "Not in view: the path's limit"
    return f"{lead}{said}{f' ({named})' if named else ''}."


def _crossed(run: Run, chart: Chart) -> str:
    crossed = [mark for mark in chart.marks if mark.status in CROSSED]
    if not crossed:
        return ""
    points = point_names(run, [mark.record for mark in crossed[:_NAMED]])
    names = "; ".join(f"{mark.status}: {point}" for mark, point in zip(crossed, points, strict=False))
    return f"Crossed: not to be used, {names}{f'; and {len(crossed) - _NAMED} more' if len(crossed) > _NAMED else ''}."


def _range(chart: Chart) -> str:
    text = format_rate if chart.y == "bandwidth" else format_seconds
    lines = []
    for curve in chart.curves:
        first, last = curve.marks[0], curve.marks[-1]
        ends = f"{text(first.y)} at {x_text(chart, first.x)}"
        ends += f" to {text(last.y)} at {x_text(chart, last.x)}" if last is not first else ""
        lines.append(f"{curve.label or chart.x_title}: {ends}")
    return "; ".join(lines) + "."
