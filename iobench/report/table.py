"""The table of every point of one probe, as text: what varies gets a column, what does not one sentence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from statistics import fmean

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
from iobench.stats import Interval
from iobench.units import format_rate, format_seconds

_TAILS = ("mean", "P95", "P99", "P99.9")
_NUMERIC = ("median", "95 % interval", *_TAILS, "n", "rate", "of limit")
_LONG_PATH = 24
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
    """All points of one probe.

    ``shared`` are facts true for every row; ``legends`` hold the texts that stand as a letter in the rows:
    (title, ((letter, text), ...)).
    """

    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    shared: tuple[str, ...] = ()
    legends: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = ()
    numeric: frozenset[int] = field(default_factory=frozenset)


def table_of(run: Run, probe: str, verdicts: Mapping[str, Verdict]) -> Table:
    """Return the table of a probe's points in the order they were measured."""
    records = run.of(probe)
    axes = axes_of(records)
    shown = varying(records, axes) or axes[:1]
    rules, paths = _letters(_rules(records), "a"), _path_letters(records)
    rows = [_cells(run, record, shown, verdicts[record.key], rules, paths) for record in records]
    same = _same(rows)
    names = [name for name in rows[0] if name not in same and _worth_showing(name, rows, len(rules))]
    numeric = frozenset(i for i, name in enumerate(names) if name in _NUMERIC or _is_number(records, name))
    made = tuple(
        Row(tuple(row[name] for name in names), verdicts[record.key].status)
        for row, record in zip(rows, records, strict=True)
    )
    columns = tuple(name.removeprefix(_AXIS) for name in names)
    shared = (*_shared(run, records, shown, rules), *same.values())
    keys = (("Bytes rules", rules if len(rules) > 1 else {}), ("Paths", paths))
    legends = tuple((title, tuple((letter, text) for text, letter in key.items())) for title, key in keys if key)
    return Table(columns, made, shared, legends, numeric)


def _cells(
    run: Run, record: Record, axes: list[str], verdict: Verdict, rules: Mapping[str, str], paths: Mapping[str, str]
) -> dict[str, str]:
    row = {_AXIS + axis: value_text(axis_value(record, axis), is_size(run, record.probe, axis)) for axis in axes}
    row |= _time_cells(record)
    row["rate"] = _rate(record)
    row["of limit"] = percent(verdict.fraction) if verdict.fraction is not None and record.used else "-"
    row["verdict"] = verdict.status
    row["path taken"] = _path(record, paths)
    row["stopped by"] = _stops(record)
    row["bytes rule"] = rules.get(record.first.moved_rule, "-")
    return row


def _time_cells(record: Record) -> dict[str, str]:
    if not record.used:
        return dict.fromkeys(("median", "95 % interval", *_TAILS, "n"), "-")
    time, tails = record.time, record.tails
    # a mean says something beside the median only where the tail is known that pulls it away
    mean = None if tails.p99 is None else fmean(chain.from_iterable(record.groups))
    values = zip(_TAILS, (mean, tails.p95, tails.p99, tails.p999), strict=True)
    return {
        "median": format_seconds(time.median),
        "95 % interval": _interval(time) if time.known else "unknown",
        **{name: "-" if value is None else format_seconds(value) for name, value in values},
        "n": f"{time.n} / {time.groups}",
    }


def _interval(time: Interval) -> str:
    """Return both ends, with as many digits as it takes to tell them apart (five at most); one sample has none."""
    if time.n < 2:
        return "-"
    for digits in (3, 4, 5):
        ends = format_seconds(time.low, digits), format_seconds(time.high, digits)
        if ends[0] != ends[1]:
            break
    return range_text(*ends)


def _rate(record: Record) -> str:
    if not record.used or record.quantity != "bandwidth" or record.moved <= 0 or not record.time.median > 0:
        return "-"
    return format_rate(record.bytes_per_s)


def _path(record: Record, letters: Mapping[str, str]) -> str:
    line = record.first
    if not record.used:
        return "-"
    return f"{letters.get(line.path, line.path) or 'not recorded'} ({'proven' if line.proven else 'unproven'})"


def _path_letters(records: list[Record]) -> dict[str, str]:
    """Return a letter for each path where they are several and long: the rows would be three lines high."""
    paths = dict.fromkeys(record.first.path for record in records if record.used and record.first.path)
    long = max(map(len, paths), default=0) > _LONG_PATH
    return _letters(paths, "A") if long and 1 < len(paths) <= 26 else {}


def _stops(record: Record) -> str:
    return ", ".join(dict.fromkeys(line.stop for line in record.used if line.stop)) or "-"


def _rules(records: list[Record]) -> dict[str, None]:
    return dict.fromkeys(record.first.moved_rule for record in records if record.first.moved_rule)


def _letters(texts: Iterable[str], first: str) -> dict[str, str]:
    """Return text -> letter (a, b, ... z, 27, 28 ...)."""
    return {text: chr(ord(first) + i) if i < 26 else str(i + 1) for i, text in enumerate(texts)}


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
    return name not in (*_TAILS, "rate", "of limit") or any(row[name] != "-" for row in rows)


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
