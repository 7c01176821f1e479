"""A comparison as text: the same rows for the terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from iobench.compare import VERDICTS, Comparison, Row
from iobench.compare.points import NO_INTERVAL
from iobench.report.markdown import table, text
from iobench.report.names import is_number
from iobench.units import format_rate, format_seconds, format_size

COLUMNS = ("probe", "point", "A", "B", "B / A", "95 % interval", "verdict")


def rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """Return one row of text per point; "B / A" is B's speed over A's."""
    return [_row(row) for row in comparison.rows]


def headline(comparison: Comparison) -> str:
    """Return in one line how many points are the same, faster, slower and unclear."""
    found = ", ".join(f"{comparison.count(verdict)} {verdict}" for verdict in VERDICTS)
    found += f", {comparison.count(NO_INTERVAL)} without an interval" if comparison.count(NO_INTERVAL) else ""
    return f"{len(comparison.rows)} points in both runs; B against A: {found}."


def render(comparison: Comparison) -> str:
    """Return the comparison as Markdown that reads well as plain text too."""
    parts = [f"A: {text(comparison.a)}  \nB: {text(comparison.b)}", headline(comparison)]
    parts.append("\n".join(f"- {text(sentence)}" for sentence in comparison.summary))
    parts.append("\n".join(f"- **warning**: {text(warning)}" for warning in comparison.warnings))
    if comparison.rows:
        parts.append(table(COLUMNS, rows(comparison), (2, 3, 4, 5)))
        parts.append("B / A is B's speed over A's: above 1, B is faster. Unclear: the interval holds 1 and more.")
    else:
        parts.append("No point is in both runs: measure the same probes and axes on both.")
    return "\n\n".join(part for part in parts if part)


def _row(row: Row) -> tuple[str, ...]:
    a, b = (_value(row, interval.median) for interval in (row.a, row.b))
    known = row.low is not None and row.high is not None
    ratio, ends = f"{row.ratio:.3f}", f"{row.low:.3f}–{row.high:.3f}" if known else "-"
    return (row.probe, _point(row.point), a, b, ratio, ends, row.verdict)


def _value(row: Row, seconds: float) -> str:
    if row.quantity == "bandwidth" and row.moved > 0:
        return format_rate(row.moved / seconds)
    return format_seconds(seconds)


def _point(point: Mapping[str, Any]) -> str:
    return " ".join(f"{axis}={_axis(axis, value)}" for axis, value in point.items()) or "the only point"


def _axis(axis: str, value: Any) -> str:
    if axis.endswith("bytes") and is_number(value):
        return format_size(int(value)).replace(" ", "")
    return str(value)
