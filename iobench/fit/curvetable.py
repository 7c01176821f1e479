"""Tables of published latencies for the two benches: one CSV row per size, columns COLUMNS, comment lines with #.

A row that is no measurement (no whole number of bytes or GPUs, no positive finite time) is left out and named.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from iobench.errors import UserError
from iobench.units import US

COLUMNS = ("system", "dir_version", "version_col", "op", "dtype", "num_gpus", "size_bytes", "latency_us")


_SHOWN = 20


@dataclass(frozen=True)
class Row:
    """One latency: ``names`` are system, both versions, op and dtype; seconds of ``nbytes`` on ``gpus``."""

    names: tuple[str, ...]
    gpus: int
    nbytes: int
    seconds: float

    @property
    def dtype(self) -> str:
        return self.names[4]


@dataclass
class Table:
    """The sound rows in the file's order; ``left_out`` says which others there were, and why."""

    rows: list[Row] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def read(path: Path) -> Table:
    """Read a table; UserError for a file that is none."""
    wanted = f"give a CSV with the columns {','.join(COLUMNS)}"
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path} ({error}); {wanted}") from error
    out = Table()
    try:
        for number, cells in _rows(text, path, wanted):
            try:
                out.rows.append(_row(cells))
            except ValueError as error:
                out.left_out.append(f"line {number}: {error}")
    except csv.Error as error:
        raise UserError(f"{path} is no CSV ({error}); {wanted}") from error
    return out


def shown(left_out: Sequence[str]) -> list[str]:
    """Return what was left out as lines of a report: the first ones, and how many more."""
    lines = [f"left out: {sentence}" for sentence in left_out[:_SHOWN]]
    return lines + [f"left out: {len(left_out) - _SHOWN} more like these"] * (len(left_out) > _SHOWN)


def _rows(text: str, path: Path, wanted: str) -> Iterator[tuple[int, Mapping[str, str]]]:
    """Yield each row below the heading with the number of its line."""
    numbered = [(n, line) for n, line in enumerate(text.splitlines(), 1) if line.strip() and line[0] != "#"]
    heading: list[str] = []
    for number, line in numbered:  # one by one: a quote left open must not swallow the lines below
        cells = [cell.strip() for cell in next(csv.reader([line]), [])]
        if heading:
            yield number, dict(zip(heading, cells, strict=False))
        else:
            heading = cells
            _check_heading(heading, path, wanted)
    _check_heading(heading, path, wanted)


def _check_heading(heading: list[str], path: Path, wanted: str) -> None:
    missing = [name for name in COLUMNS if name not in heading]
    if missing:
        raise UserError(f"{path} lacks {', '.join(missing)}; {wanted}")


def _row(cells: Mapping[str, str]) -> Row:
    gpus, nbytes, latency = (_number(cells, name) for name in COLUMNS[5:])
    for name, value in (("num_gpus", gpus), ("size_bytes", nbytes)):
        if value < 1 or value != int(value):
            raise ValueError(f"{name} is {cells[name]}, no whole number above 0")
    if latency <= 0:
        raise ValueError(f"latency_us is {cells['latency_us']}, no time")
    return Row(tuple(cells[name] for name in COLUMNS[:5]), int(gpus), int(nbytes), latency * US)


def _number(cells: Mapping[str, str], name: str) -> float:
    text = cells.get(name, "")
    try:
        value = float(text)
    except ValueError as error:
        raise ValueError(f"{name} is {text!r}, no number" if text else f"no {name}") from error
    if not math.isfinite(value):
        raise ValueError(f"{name} is {text}, no number")
    return value
