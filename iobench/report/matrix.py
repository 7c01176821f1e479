"""Matrices: one number per pair of ends, as a table of rows and columns, out of the records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from iobench.check import Verdict
from iobench.record import Record, Run
from iobench.report.names import about, axes_of, axis_value, pairs_text, value_text, varying
from iobench.units import format_rate, format_seconds

_NONE = "-"


@dataclass(frozen=True)
class MatrixView:
    """A table of text: the first column names the rows; a cell that is not ok says so."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def matrices_of(run: Run, probe: str, verdicts: Mapping[str, Verdict]) -> list[MatrixView]:
    """Return the matrices that a probe declares, one for each way that was measured between as many ends as any.

    Ways measured between fewer ends (a whole sweep of the first pair) have figures and are no matrix.
    """
    declared = about(run, probe).get("matrices")
    found = []
    for entry in declared if isinstance(declared, list) else ():
        if isinstance(entry, dict) and all(isinstance(entry.get(key), str) for key in ("title", "rows", "columns")):
            found += _views(run, probe, entry, verdicts)
    return found


def _views(run: Run, probe: str, entry: Mapping[str, Any], verdicts: Mapping[str, Verdict]) -> list[MatrixView]:
    ends = (entry["rows"], entry["columns"])
    records = [record for record in run.of(probe) if record.used and _wanted(record, entry, ends)]
    if not records:
        return []
    apart = [axis for axis in varying(records, axes_of(records)) if axis not in ends]
    groups: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        groups.setdefault(tuple(repr(axis_value(record, axis)) for axis in apart), []).append(record)
    most = max(len(group) for group in groups.values())
    return [
        _view(run, probe, entry, apart, group, verdicts)
        for group in groups.values()
        if len(group) == most and len(group) > 1
    ]


def _wanted(record: Record, entry: Mapping[str, Any], ends: tuple[str, str]) -> bool:
    where = entry.get("where")
    wanted = where.items() if isinstance(where, Mapping) else ()
    if entry.get("y") == "bandwidth" and (record.quantity != "bandwidth" or record.moved <= 0):
        return False
    return all(record.point.get(end) is not None for end in ends) and all(
        axis_value(record, axis) == value for axis, value in wanted
    )


def _view(
    run: Run,
    probe: str,
    entry: Mapping[str, Any],
    apart: list[str],
    group: list[Record],
    verdicts: Mapping[str, Verdict],
) -> MatrixView:
    row_axis, column_axis = entry["rows"], entry["columns"]
    cells = {(record.point[row_axis], record.point[column_axis]): _cell(record, entry, verdicts) for record in group}
    rows, columns = (sorted({ends[place] for ends in cells}, key=_order) for place in (0, 1))
    way = pairs_text(run, probe, {axis: axis_value(group[0], axis) for axis in apart})
    return MatrixView(
        title=f"{entry['title']}: {way}" if way else entry["title"],
        columns=(f"{row_axis} \\ {column_axis}", *(value_text(column, False) for column in columns)),
        rows=tuple((value_text(row, False), *(cells.get((row, column), _NONE) for column in columns)) for row in rows),
    )


def _cell(record: Record, entry: Mapping[str, Any], verdicts: Mapping[str, Verdict]) -> str:
    number = format_rate(record.bytes_per_s) if entry.get("y") == "bandwidth" else format_seconds(record.time.median)
    verdict = verdicts.get(record.key)
    return number if verdict is None or verdict.status == "ok" else f"{number} ({verdict.status})"


def _order(value: Any) -> tuple[bool, Any]:
    """Numbers in their order, then words in theirs."""
    return (False, value) if isinstance(value, (int, float)) else (True, str(value))
