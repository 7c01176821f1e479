"""Replaces host names by node-1, node-2: a log may be shown to others without naming a machine."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from typing import Any

from iobench.importers.imported import Imported

FIGURES = "rows"  # this part of the evidence holds line numbers and figures only


def hide_hosts(imported: Imported) -> None:
    """Replace every name in ``imported.hosts``, in the order first seen, in everything that was read."""
    names = [host for host in dict.fromkeys(imported.hosts) if not host.isdigit()]  # a number would be hid in figures
    numbered = {host: f"node-{number}" for number, host in enumerate(names, start=1)}
    if not numbered:
        return
    hide = _Hiding(numbered)
    imported.hosts = list(numbered.values())
    for name in ("problems", "normalised", "incomplete", "machine", "topology", "environment", "about"):
        setattr(imported, name, hide(getattr(imported, name)))
    imported.unread = [replace(row, text=hide(row.text), why=hide(row.why)) for row in imported.unread]
    for line in imported.lines:
        line.point, line.evidence, line.state = hide(line.point), hide(line.evidence), hide(line.state)
        line.reason, line.path, line.notes = hide(line.reason), hide(line.path), hide(line.notes)


class _Hiding:
    """Replaces the names in plain data; what many points share is gone through once."""

    def __init__(self, numbered: dict[str, str]) -> None:
        any_of = "|".join(map(_pattern, sorted(numbered, key=len, reverse=True)))
        pattern = re.compile(rf"(?<![\w.-])({any_of})(?![\w-])")
        self._text = cache(lambda value: pattern.sub(lambda match: numbered[match[1]], value))
        self._done: dict[int, tuple[Any, Any]] = {}  # by id, and what has it: so no other gets it

    def __call__(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if not isinstance(value, list | dict):
            return value
        if id(value) not in self._done:
            self._done[id(value)] = (value, self._inside(value))
        return self._done[id(value)][1]

    def _inside(self, value: list[Any] | dict[Any, Any]) -> Any:
        if isinstance(value, list):
            return [self(item) for item in value]
        return {self(key): item if key == FIGURES else self(item) for key, item in value.items()}


def _pattern(host: str) -> str:
    """Return what matches the name; a host called x is not the sign in "1 x GPU"."""
    return re.escape(host) if len(host) > 1 else rf"(?<![0-9] ){re.escape(host)}"
