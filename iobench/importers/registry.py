"""Finds the formats, and the one that reads a log."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from typing import Any, Protocol, cast

from iobench.errors import UserError
from iobench.importers import foreign, formats
from iobench.importers.hosts import hide_hosts
from iobench.importers.imported import Imported
from iobench.importers.log import Log
from iobench.record import no_collections

SURE = 0.5  # a STATE format that is so sure of a log adds its facts
_MOST_TEXT = 200  # characters of a heading or a word in the evidence of a figure


class Format(Protocol):
    """One file of ``iobench.importers.formats``."""

    TITLE: str
    STATE: bool

    def recognise(self, head: str) -> float: ...
    def read(self, log: Log) -> Imported: ...


@cache
def all_formats() -> dict[str, Format]:
    """Return every format by its name (the file's, with hyphens)."""
    found = {}
    for module in sorted(pkgutil.iter_modules(formats.__path__), key=lambda module: module.name):
        if not module.name.startswith("_"):
            loaded = importlib.import_module(f"{formats.__name__}.{module.name}")
            found[module.name.replace("_", "-")] = cast(Format, loaded)
    return found


def names() -> list[str]:
    """Return the names that ``--as`` takes."""
    return list(all_formats())


def scores(log: Log) -> dict[str, float]:
    """Return name -> how sure each format is, the surest first, those that are not at all left out."""
    found = {name: float(fmt.recognise(log.head)) for name, fmt in all_formats().items()}
    return dict(sorted(((n, s) for n, s in found.items() if s > 0), key=lambda item: -item[1]))


def read_log(log: Log, as_format: str = "", keep_hosts: bool = False) -> Imported:
    """Return what the log holds, read by the surest format or the named one; UserError where none fits."""
    found = scores(log)
    name = _chosen(log, as_format, found)
    with no_collections():
        imported = all_formats()[name].read(log)
    if not imported.lines and not as_format:
        name, imported = _another(log, found, name, imported)
    imported.format = name
    covered = getattr(all_formats()[name], "COVERS", ())
    for other, score in found.items():
        if other not in (name, *covered) and score >= SURE:
            _add(imported, log, other)
    imported.problems[:0] = log.problems
    if not keep_hosts:
        hide_hosts(imported)
    for line in imported.lines:
        _shorten(line.evidence)
    return imported


def _shorten(evidence: dict[str, Any]) -> None:
    """Cut what a log repeats beside every figure: a heading may be a page of anything."""
    for key, value in evidence.items():
        if isinstance(value, str):
            if len(value) > _MOST_TEXT:
                evidence[key] = value[:_MOST_TEXT]
        elif isinstance(value, dict):
            _shorten(value)


def _another(log: Log, found: dict[str, float], name: str, imported: Imported) -> tuple[str, Imported]:
    """Return what the next surest format reads where the surest finds no row: a paste may hold two tools' words."""
    for other, score in found.items():
        if other != name and score >= SURE and not all_formats()[other].STATE:
            second = all_formats()[other].read(log)
            if second.lines:
                return other, second
    return name, imported


def _chosen(log: Log, as_format: str, found: dict[str, float]) -> str:
    if as_format:
        if as_format not in all_formats():
            raise UserError(f"no format '{as_format}': --as takes {', '.join(names())}")
        return as_format
    measuring = [name for name in found if not all_formats()[name].STATE]
    if not measuring and not found:
        if other := foreign.known(log.head):
            raise UserError(f"{log.name} is {other[0]}: iobench does not import it; {other[1]}")
        raise UserError(
            f"{log.name} is no log of a tool that iobench knows ({', '.join(names())}): "
            "look whether it is the tool's own output, or name its format with --as"
        )
    return (measuring or list(found))[0]


def _add(imported: Imported, log: Log, name: str) -> None:
    """Add the facts of a further format that knows the log; a second kind of measurement is only mentioned."""
    fmt = all_formats()[name]
    if not fmt.STATE:
        imported.problem(f"the log looks like one of {fmt.TITLE} too: import it again with --as {name}")
        return
    facts = fmt.read(log)
    imported.machine = {**facts.machine, **imported.machine}
    imported.topology = imported.topology or facts.topology
    imported.environment = {**facts.environment, **imported.environment}
    imported.hosts += [host for host in facts.hosts if host not in imported.hosts]
    for sentence in facts.problems:
        imported.problem(sentence)
