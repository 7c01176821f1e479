"""Exports of models and records to the formats that planners, tuners and simulators read: one file per format."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from functools import cache
from pathlib import Path

from iobench import files
from iobench.errors import UserError
from iobench.export.format import Format, Options, Source

__all__ = ["Format", "Options", "Source", "export", "formats", "save"]
_NOT_FORMATS = ("format",)


@cache
def formats() -> dict[str, Format]:
    """Return name -> format of every file in this folder."""
    names = [found.name for found in pkgutil.iter_modules(__path__) if found.name not in _NOT_FORMATS]
    modules = [importlib.import_module(f"{__name__}.{name}") for name in names]
    return {module.FORMAT.name: module.FORMAT for module in modules}


def export(spec: str | Path, name: str, options: Options | None = None) -> str:
    """Return ``spec`` (a run, a log, a published curve or a models file) as text of the format ``name``.

    Raises UserError for an unknown format and for what the data cannot support.
    """
    try:
        chosen = formats()[name]
    except KeyError:
        near = difflib.get_close_matches(name, formats(), n=1, cutoff=0.4)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise UserError(f"no export format '{name}'{hint}; there are {', '.join(formats())}") from None
    return chosen.write(Source.open(spec), options or Options())


def save(text: str, path: Path) -> Path:
    """Write an export; UserError where it cannot be written."""
    try:
        files.replace(path, text)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; choose another file with --out") from error
    return path
