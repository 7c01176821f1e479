"""What a format makes of a log: lines for the records file, facts, and what could not be read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from iobench.record import Line

SHOWN = 120


@dataclass(frozen=True)
class Unread:
    """A row that looks like a measurement and is none that can be used: its line's number, its text, and why."""

    number: int
    text: str
    why: str

    def __str__(self) -> str:
        text = " ".join(self.text.split())
        text = text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."
        return f"line {self.number}: {self.why}: {text}"


@dataclass
class Imported:
    """Everything a log told.

    ``rows`` counts the rows of measurements that were read (one row may give two Lines, in and out of place).
    ``unread`` are rows left out, ``problems`` sentences on what is wrong with the log (FAILED, wrong data, several
    jobs in one file), ``normalised`` sentences on units and definitions, ``incomplete`` is "" or says what is
    missing; ``next_step`` says what to do where nothing could be read. ``machine``, ``topology`` and ``environment``
    go to the header; ``about`` holds the header's entry of a probe where the framework's (``about.py``) does not fit.
    ``hosts`` are the host names the log names.
    """

    format: str = ""
    lines: list[Line] = field(default_factory=list)
    rows: int = 0
    unread: list[Unread] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    normalised: list[str] = field(default_factory=list)
    incomplete: str = ""
    next_step: str = "give the tool's whole output"
    machine: dict[str, Any] = field(default_factory=dict)
    topology: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    about: dict[str, dict[str, Any]] = field(default_factory=dict)
    hosts: list[str] = field(default_factory=list)
    started: str = ""

    def skip(self, number: int, text: str, why: str) -> None:
        """Note a row that could not be read."""
        self.unread.append(Unread(number, text[: 4 * SHOWN], why))

    def problem(self, sentence: str) -> None:
        """Note what is wrong with the log; the same sentence only once."""
        if sentence not in self.problems:
            self.problems.append(sentence)

    def normalise(self, sentence: str) -> None:
        """Note a unit or definition that was changed; the same sentence only once."""
        if sentence not in self.normalised:
            self.normalised.append(sentence)


def tell_apart(lines: Iterable[Line], facts: Callable[[Line], Mapping[str, Any]]) -> None:
    """Give points that are one by their axes, but differ in ``facts``, those facts as further axes.

    Only the facts that differ are added, and to every line, so that a log of one configuration keeps the bare axes.
    """
    lines = list(lines)
    seen: dict[str, dict[str, Any]] = {}
    differ: dict[str, None] = {}
    for line in lines:
        own = dict(facts(line))
        first = seen.setdefault(line.key, own)
        differ |= {name: None for name in {**first, **own} if first.get(name) != own.get(name)}
    for line in lines if differ else ():
        own = dict(facts(line))
        line.point = {**line.point, **{name: own[name] for name in differ if own.get(name) is not None}}


def sanitised(value: Any) -> Any:
    """Return a copy of plain JSON data, for evidence taken from a parsed document (None for what is no JSON)."""
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError):
        return None
