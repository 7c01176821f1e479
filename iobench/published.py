"""Curves that others published, as data with their sources: topologies/published/NAME.csv.

A file is a head of "# key: value" lines, one line of column names and one row per point.

    title      what was measured, in one line             whose     whose numbers they are
    source     where they stand (may be repeated)         date      when they were published
    probe      allreduce, rdma, p2p, ...                  quantity  bandwidth or latency
    aggregate  what each figure is ("mean of 20 iterations, mean over ranks")
    mode       eager, graph, blocking or pipelined; left out where the source doesn't say
    axes       axes that all rows share, as axis=value    shape     "one process per GPU", "one thread per GPU", ...
    versions   what measured it, as library=version       definition  what a latency counts ("half round trip")
    limit      the links' rate in GB/s and what they are ("450 18 links of NVLink 4")
    dropped    rows of the source that were left out, and why (may be repeated)
    note       what a reader must know (may be repeated)

Columns are axes, except for the figures: ``us`` (microseconds), ``us_in_place`` (the same row measured in
place: a second point) and ``GBps`` (1e9 bytes/s). No interval can be known from one figure, and none is given.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iobench.errors import UserError
from iobench.importers.about import about as declared
from iobench.importers.collective import moved_of
from iobench.paths import data_dir
from iobench.probe import nearest
from iobench.record import Header, Line, Run, merge
from iobench.units import GB, US, format_size

FIGURES = ("us", "us_in_place", "GBps")
_REQUIRED = ("title", "whose", "source", "date", "probe", "quantity", "aggregate")
_SEVERAL = ("source", "dropped", "note")
_KEYS = (*_REQUIRED, "mode", "axes", "versions", "shape", "definition", "limit", "dropped", "note")


@dataclass(frozen=True)
class Published:
    """The head of one file: what was measured, by whom, where it stands, and what each figure is."""

    name: str
    path: Path
    head: Mapping[str, tuple[str, ...]]
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def get(self, key: str) -> str:
        """Return a key's value, "" where the file has none; repeated ones joined by "; "."""
        return "; ".join(self.head.get(key, ()))


def names() -> list[str]:
    """Return the names of all published curves, sorted."""
    return sorted(path.stem for path in _folder().glob("*.csv"))


def about(name: str) -> Published:
    """Read one file; UserError for an unknown name or a damaged file."""
    path = _folder() / f"{name}.csv"
    if name not in names():
        raise UserError(f"no published curve '{name}'{nearest(name, names())}: iobench published lists them all")
    head: dict[str, tuple[str, ...]] = {}
    lines = path.read_text(encoding="utf-8").splitlines()
    count = next((number for number, line in enumerate(lines) if not line.startswith("#")), len(lines))
    for number, line in enumerate(lines[:count], start=1):
        key, colon, value = line[1:].strip().partition(": ")
        if not colon or key not in _KEYS or (key in head and key not in _SEVERAL):
            raise UserError(f"{path}:{number}: not '# key: value' with a known key; keys: {', '.join(_KEYS)}")
        head[key] = (*head.get(key, ()), value)
    missing = [key for key in _REQUIRED if key not in head]
    table = [tuple(row) for row in csv.reader(lines[count:]) if row]
    if missing or len(table) < 2:
        raise UserError(f"{path}: {'no ' + missing[0] if missing else 'no rows'}; a published curve needs both")
    return Published(name, path, head, table[0], tuple(table[1:]))


def load(name: str) -> Run:
    """Return a published curve as a run whose lines are marked as aggregates; UserError as for ``about``."""
    curve = about(name)
    lines = []
    for number, row in enumerate(curve.rows, start=1):
        try:
            lines += list(_lines(curve, dict(zip(curve.columns, row, strict=True))))
        except (ValueError, KeyError) as error:
            raise UserError(f"{curve.path}: row {number} is damaged ({error}); mend or remove it") from error
    machine = {"name": name, "title": curve.get("title"), "packages": _pairs(curve.get("versions"))}
    request: dict[str, Any] = {
        key: curve.get(key) for key in ("whose", "source", "shape", "dropped", "note") if curve.get(key)
    }
    if curve.get("limit"):
        request["limit_bytes_per_s"] = float(curve.get("limit").split()[0]) * GB
        request["limit"] = curve.get("limit").partition(" ")[2]
    probes = {curve.get("probe"): declared(curve.get("probe"), "a published table")}
    header = Header(f"published:{name}", curve.get("date"), "published", machine, {}, request, probes)
    return Run(curve.path, header, merge(lines))


def table() -> str:
    """Return one entry per published curve: its name, what was measured, and whose numbers they are."""
    curves = [about(name) for name in names()]
    lines = [f"{curve.name}\n    {curve.get('title')}\n    numbers of {curve.get('whose')}" for curve in curves]
    return "\n".join([*lines, "", "compare them: iobench compare published:NAME published:NAME"])


def details(name: str) -> str:
    """Return the head of one file in words: sources, what each figure is, what was left out."""
    curve = about(name)
    lines = [f"{key + ':':11} {value}" for key, values in curve.head.items() for value in values]
    sizes = [record.nbytes for record in load(name)]
    return "\n".join([curve.name, *lines, f"{'sizes:':11} {format_size(min(sizes))} to {format_size(max(sizes))}"])


def _lines(curve: Published, row: Mapping[str, str]) -> Iterator[Line]:
    """Yield the points of one row: one per figure that it holds."""
    axes = _pairs(curve.get("axes")) | {name: text for name, text in row.items() if name not in FIGURES and text}
    point = {name: _value(text) for name, text in axes.items()}
    for figure in FIGURES:
        if row.get(figure):
            place = {"inplace": figure == "us_in_place"} if "us_in_place" in curve.columns else {}
            yield _line(curve, {**point, **place}, figure, float(row[figure]))


def _line(curve: Published, point: dict[str, Any], figure: str, value: float) -> Line:
    nbytes = int(point["nbytes"])
    seconds = nbytes / (value * GB) if figure == "GBps" else value * US
    if not seconds > 0:
        raise ValueError(f"{figure} is {value}")
    op, ranks = str(point.get("op", "")), int(point.get("ranks", 1))
    moved, rule = moved_of(op, nbytes, ranks) if op else (nbytes, "nbytes")
    return Line(
        probe=curve.get("probe"),
        source=f"published:{curve.name}",
        point=point,
        quantity=curve.get("quantity"),
        mode=curve.get("mode"),
        nbytes=nbytes,
        moved=moved,
        moved_rule=curve.get("definition") or rule,
        seconds=[[seconds]],
        stop="published",
        path=f"as published: {curve.get('title')}",
        evidence={"shape": curve.get("shape")} if curve.get("shape") else {},
        notes=list(curve.head.get("note", ())),
        aggregate=curve.get("aggregate"),
    )


def _pairs(text: str) -> dict[str, str]:
    """Return {"op": "all_reduce"} of "op=all_reduce ..."; values hold no blanks."""
    return {name: value for name, _, value in (pair.partition("=") for pair in text.split())}


def _value(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    return int(text) if text.isdigit() else text


def _folder() -> Path:
    return data_dir("topologies") / "published"
