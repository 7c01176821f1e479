"""Where a run comes from: a run's folder or file, a published curve, or another tool's log."""

from __future__ import annotations

import gzip
import importlib
import importlib.util
import re
import zlib
from pathlib import Path

from iobench import record
from iobench.errors import UserError
from iobench.record import Run

PREFIX = "published:"
_OWN = re.compile(rb'\s*\{\s*"type"\s*:\s*"run"')
_HEAD = 64


def open(spec: str | Path) -> Run:
    """Return the run that ``spec`` names.

    A folder or a records file is read as iobench wrote it, ``published:NAME`` is a curve that ships with
    iobench, any other file is read as the log of another tool. Raises UserError where it is none of these.
    """
    text = str(spec)
    if text.startswith(PREFIX):
        from iobench import published

        return published.load(text.removeprefix(PREFIX))
    path = Path(spec)
    if _is_packed(path):
        raise UserError(f"{path} is a run of iobench, packed: gunzip it, then name {path.with_suffix('')}")
    if is_own(path) or importlib.util.find_spec("iobench.importers") is None:
        return record.read(path)
    run: Run = importlib.import_module("iobench.importers").read(path)
    return run


def is_own(path: Path) -> bool:
    """Tell whether iobench wrote ``path``: by its name, else by its first bytes. What isn't there counts as own."""
    if not path.is_file() or path.name == record.FILE_NAME:
        return True
    try:
        with path.open("rb") as file:
            return _OWN.match(file.read(_HEAD)) is not None
    except OSError:
        return True  # record.read says why it can't be read


def _is_packed(path: Path) -> bool:
    """Tell whether ``path`` is a records file of iobench in gzip: logs are read so, but a run is appended to."""
    if path.suffix != ".gz" or not path.is_file():
        return False
    try:
        with gzip.open(path) as file:
            return _OWN.match(file.read(_HEAD)) is not None
    except (OSError, EOFError, zlib.error):
        return False  # the importer says what is wrong with it


def home(run: Run) -> Path | None:
    """Return the folder of an iobench run, where its report and models belong; None for anything else."""
    return run.path.parent if run.path.name == record.FILE_NAME else None


def label(spec: str | Path, run: Run) -> str:
    """Return a short name that tells this run from others: a published curve's, a log's, else the machine's."""
    text = str(spec)
    if text.startswith(PREFIX):
        return text.removeprefix(PREFIX)
    return run.machine if home(run) else Path(text).name
