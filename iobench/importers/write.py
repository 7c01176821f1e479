"""Writes what was read as a run's folder, and says what was read."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable
from dataclasses import asdict, fields, replace
from pathlib import Path

from iobench import files
from iobench.errors import UserError
from iobench.importers.imported import Imported
from iobench.importers.registry import all_formats
from iobench.importers.torun import warnings
from iobench.record import FILE_NAME, Line, Run, dumps, merge

DEFAULT = Path("reports") / "imported"
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_MOST_NAME = 80
_QUICK = json.JSONEncoder(separators=(",", ":"), allow_nan=False, ensure_ascii=False)  # as dumps, without copies
_EMPTY = Line("", "", {})
_FIELDS = tuple(field.name for field in fields(Line))
_ALWAYS = ("probe", "source", "point")


def folder_of(log_name: str, out: Path | None, several: bool) -> Path:
    """Return where a log's records go: ``out`` itself for a single log, else a folder of the log's name below it.

    Of the name only letters, digits, dots, hyphens and underscores are left, and no dot in front: it can't lead out.
    """
    if out and not several:
        return out
    name = _UNSAFE.sub("-", Path(log_name).name.removesuffix(".gz")).strip(".-")[:_MOST_NAME] or "log"
    return (out or DEFAULT) / name


def write(run: Run, folder: Path) -> Path:
    """Write ``records.jsonl`` into ``folder``; UserError where one is there already or it can't be written."""
    path = folder / FILE_NAME
    if path.exists() or path.is_symlink():  # a link that leads nowhere is one, too
        raise UserError(f"{path} exists: choose another folder with --out, or remove it")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lines = (compact(line) for record in run for line in record.lines)
        files.replace(path, (f"{text}\n" for text in itertools.chain([run.header.to_json()], lines)))
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror}; choose another folder with --out") from error
    return path


def compact(line: Line) -> str:
    """Return the line as JSON without the fields that hold nothing: a reader fills them in, a log has many points."""
    values = ((name, getattr(line, name)) for name in _FIELDS)
    held = {name: value for name, value in values if name in _ALWAYS or value != getattr(_EMPTY, name)}
    if line.legs:
        held["legs"] = [asdict(leg) for leg in line.legs]
    try:
        text = _QUICK.encode({"type": "point", **held})
    except (TypeError, ValueError):  # an array, a path, what is no number: dumps makes plain data of it first
        text = ""
    return text if text.isascii() and text else dumps({"type": "point", **held})


def merged(runs: list[Run]) -> Run:
    """Return one run of several logs of the same machine: the same point in a later log is a further launch."""
    header = runs[0].header
    request = {**header.request, "imported": [run.header.request.get("imported") for run in runs]}
    probes = {name: about for run in reversed(runs) for name, about in run.header.probes.items()}
    seen: dict[str, int] = {}
    lines: list[Line] = []
    for run in runs:
        highest = dict(seen)
        for record in run:
            for line in record.lines:
                line.launch += highest.get(line.key, 0)
                seen[line.key] = max(seen.get(line.key, 0), line.launch + 1)
                lines.append(line)
    identity = "import-" + "-".join(run.header.run_id.removeprefix("import-")[:8] for run in runs[:8])
    whole = replace(header, run_id=identity, request=request, probes=probes)
    return Run(runs[0].path, whole, merge(lines), [warning for run in runs for warning in run.warnings])


def summary(log_name: str, imported: Imported, run: Run) -> Iterable[str]:
    """Yield what was read, a line each: format, rows, units and definitions, what is wrong."""
    title = all_formats()[imported.format].TITLE
    unread = len(imported.unread)
    state = "incomplete" if imported.incomplete else "complete as far as the log tells"
    yield f"{log_name}: {title}: {imported.rows} rows read, {unread} unread, {len(run)} points; {state}"
    yield from (f"  normalised: {sentence}" for sentence in imported.normalised)
    aggregates = dict.fromkeys(record.aggregate for record in run if record.aggregate)
    for sentence in list(aggregates)[:3]:
        yield f"  each figure is the {sentence}: one alone has no interval, and there are no tails"
    yield from (f"  warning: {sentence}" for sentence in warnings(imported))
