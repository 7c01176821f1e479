"""Decodes many lines of a records file at once, several times faster than one by one.

Only what is surely sound passes here: lines that look like an earlier one which went through every check of
``parse``. Anything odd is handed back, and ``parse`` looks at it line by line and names what is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from iobench.record import Leg, Line

LINES = 500  # per batch: as fast as larger ones, and an odd line costs no more than 500 slow ones
_BETWEEN = "iobench: between two lines"  # no line can close over it: a value of its own, at every second place
_JOINT = f',"{_BETWEEN}",'.encode()
_MOST_BRACKETS = 60
_WORDS = frozenset(
    ("probe", "source", "status", "reason", "quantity", "mode", "moved_rule", "stop", "path", "aggregate")
)
_Shape = tuple[tuple[str, ...], tuple[type, ...]]


def decode(texts: Sequence[bytes]) -> list[dict[str, Any]] | None:
    """Return one object per line; None where they must be looked at one by one."""
    try:
        values = _DECODER.decode(f"[{_JOINT.join(texts).decode()}]")
    except (ValueError, RecursionError):
        return None
    whole = len(values) == 2 * len(texts) - 1 and values[1::2] == [_BETWEEN] * (len(texts) - 1)
    objects = values[::2]
    if not whole or not all(type(value) is dict for value in objects):
        return None
    deep = any(text.count(b"[") + text.count(b"{") > _MOST_BRACKETS for text in texts)
    return None if deep and not all(map(_flat_enough, texts)) else objects


def _flat_enough(text: bytes) -> bool:
    """Tell whether the line surely nests less than parse allows: brackets in words count too, which errs safely."""
    depth = deepest = 0
    for byte in text:
        if byte in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif byte in b"]}":
            depth -= 1
    return deepest <= _MOST_BRACKETS


class Builder:
    """Makes lines of objects whose names and types have been checked once; equal words and legs are kept once."""

    def __init__(self) -> None:
        self._shapes: dict[_Shape, tuple[str, ...]] = {}
        self._words: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._legs: dict[tuple[Any, ...], Leg] = {}

    def learn(self, value: dict[str, Any], line: Line) -> None:
        """Note the names and types of an object that parse found to be sound, and its legs."""
        if set(value) - {"type"} <= _FIELDS:
            self._shapes.setdefault(_shape(value), tuple(name for name in value if name in _WORDS))
        for raw, leg in zip(value.get("legs", ()), line.legs, strict=True):
            key = _leg_key(raw)
            if key:
                self._legs.setdefault(key, leg)

    def line(self, value: dict[str, Any]) -> Line | None:
        """Return the line of an object, its values not checked yet; None where its shape or a leg is new."""
        names = self._shapes.get(_shape(value))
        if names is None or value["type"] != "point":
            return None
        raw: list[Any] = value.get("legs") or []
        legs = [self._legs.get(_leg_key(leg)) for leg in raw]
        notes = value.get("notes")
        if None in legs or (notes and not all(type(note) is str for note in notes)):
            return None
        found = tuple(map(value.__getitem__, names))
        value.update(zip(names, self._words.setdefault(found, found), strict=True))
        del value["type"]
        if raw:
            value["legs"] = legs
        return Line(**value)


def _shape(value: dict[str, Any]) -> _Shape:
    return tuple(value), tuple(map(type, value.values()))


def _leg_key(leg: Any) -> tuple[Any, ...]:
    """Return what makes two legs the same, () for what is none: types too, as True equals 1."""
    if type(leg) is not dict or not all(type(item) in _PLAIN for item in leg.values()):
        return ()
    return (*leg.items(), *map(type, leg.values()))


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


_PLAIN = (str, int, float, bool, type(None))
_FIELDS = frozenset(Line.__dataclass_fields__)
_DECODER = json.JSONDecoder(parse_constant=_refuse)
