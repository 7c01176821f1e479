"""The table of every point of one probe, as text: what varies gets a column, what does not one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from iobench.check import Verdict
from iobench.record import Record, Run
from iobench.report.names import (
    axes_of,
    axis_value,
    is_number,
    is_size,
    pairs_text,
    percent,
    range_text,
    value_text,
    varying,
)
from iobench.units import format_rate, format_seconds

_NUMERIC = ("median", "95 % interval", "P95", "P99", "n", "rate", "of limit")
_SAME = {
    "n": "Samples / launches of every point",
    "path taken": "Path of every point",
    "stopped by": "Every point was stopped by",
}
_AXIS = "axis:"  # in front of axes' names while the row is built: an axis may be called "rate" or "n"


@dataclass(frozen=True)
class Row:
    """One point: its cells in the order of Table.columns, its verdict and the notes beside it."""

    cells: tuple[str, ...]
    status: str


@dataclass(frozen=True)
class Table:
    """All points of one probe; ``shared`` are facts true for every row, ``rules`` the byte rules by letter."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    shared: tuple[str, ...] = ()
    rules: tuple[tuple[str, str], ...] = ()
    numeric: frozenset[int] = field(default_factory=frozenset)


def table_of(run: Run, probe: str, verdicts: Mapping[str, Verdict]) -> Table:
    """Return the table of a probe's points in the order they were measured."""
    records = run.of(probe)
    axes = axes_of(records)
    shown = varying(records, axes) or axes[:1]
    rules = _rules(records)
    rows = [_cells(run, record, shown, verdicts[record.key], rules) for record in records]
    same = _same(rows)
    names = [name for name in rows[0] if name not in same and _worth_showing(name, rows, len(rules))]
    numeric = frozenset(i for i, name in enumerate(names) if name in _NUMERIC or _is_number(records, name))
    made = tuple(
        Row(tuple(row[name] for name in names), verdicts[record.key].status)
        for row, record in zip(rows, records, strict=True)
    )
    columns = tuple(name.removeprefix(_AXIS) for name in names)
    return Table(columns, made, (*_shared(run, records, shown, rules), *same.values()), _lettered(rules), numeric)


def _cells(run: Run, record: Record, axes: list[str], verdict: Verdict, rules: Mapping[str, str]) -> dict[str, str]:
    row = {_AXIS + axis: value_text(axis_value(record, axis), is_size(run, record.probe, axis)) for axis in axes}
    row |= _time_cells(record)
    row["rate"] = _rate(record)
    row["of limit"] = percent(verdict.fraction) if verdict.fraction is not None and record.used else "-"
    row["verdict"] = verdict.status
    row["path taken"] = _path(record)
    row["stopped by"] = _stops(record)
    row["bytes rule"] = rules.get(record.first.moved_rule, "-")
    return row


def _time_cells(record: Record) -> dict[str, str]:
    if not record.used:
        return dict.fromkeys(("median", "95 % interval", "P95", "P99", "n"), "-")
    time, tails = record.time, record.tails
    return {
        "median": format_seconds(time.median),
        "95 % interval": _interval(time.low, time.high),
        "P95": "-" if tails.p95 is None else format_seconds(tails.p95),
        "P99": "-" if tails.p99 is None else format_seconds(tails.p99),
        "n": f"{time.n} / {time.groups}",
    }


def _interval(low: float, high: float) -> str:
    """Return both ends, with as many digits as it takes to tell them apart (five at most)."""
    for digits in (3, 4, 5):
        ends = format_seconds(low, digits), format_seconds(high, digits)
        if ends[0] != ends[1]:
            break
    return range_text(*ends)


def _rate(record: Record) -> str:
    if not record.used or record.quantity != "bandwidth" or record.moved <= 0 or not record.time.median > 0:
        return "-"
    return format_rate(record.bytes_per_s)


def _path(record: Record) -> str:
    line = record.first
    if not record.used:
        return "-"
    return f"{line.path or 'not recorded'} ({'proven' if line.proven else 'unproven'})"


def _stops(record: Record) -> str:
    return ", ".join(dict.fromkeys(line.stop for line in record.used if line.stop)) or "-"


def _rules(records: list[Record]) -> dict[str, str]:
    """Return rule -> letter (a, b, ... z, 27, 28 ...) for the ways in which bytes were counted."""
    texts = dict.fromkeys(record.first.moved_rule for record in records if record.first.moved_rule)
    return {text: chr(ord("a") + i) if i < 26 else str(i + 1) for i, text in enumerate(texts)}


def _lettered(rules: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((letter, text) for text, letter in rules.items()) if len(rules) > 1 else ()


def _same(rows: list[dict[str, str]]) -> dict[str, str]:
    """Return column -> sentence for the columns in which every measured point says the same."""
    found = {}
    for name, lead in _SAME.items():
        values = {row[name] for row in rows} - {"-"}
        if len(values) == 1 and len(rows) > 1:
            found[name] = f"{lead}: {values.pop()}."
    return found


def _worth_showing(name: str, rows: list[dict[str, str]], rules: int) -> bool:
    if name == "bytes rule":
        return rules > 1
    return name not in ("P95", "P99", "rate", "of limit") or any(row[name] != "-" for row in rows)


def _is_number(records: list[Record], name: str) -> bool:
    """Tell whether the column is an axis that holds only numbers (set to the right, like all figures)."""
    axis = name.removeprefix(_AXIS)
    return axis != name and all(is_number(axis_value(record, axis)) for record in records)


def _shared(run: Run, records: list[Record], shown: list[str], rules: Mapping[str, str]) -> tuple[str, ...]:
    first = records[0]
    pairs = {axis: axis_value(first, axis) for axis in axes_of(records) if axis not in shown}
    pairs = {axis: value for axis, value in pairs.items() if value not in (None, "")}
    facts = [f"Every point: {pairs_text(run, first.probe, pairs)}."] if pairs else []
    if len(rules) == 1:
        facts.append(f"Bytes counted: {next(iter(rules))}.")
    return tuple(facts)
