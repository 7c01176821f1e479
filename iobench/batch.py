"""Decodes and checks many lines of a records file at once, several times faster than one by one.

Lines are looked at by column: whether all five hundred statuses are known is one comparison of sets. Only what is
surely sound passes here. Anything odd is handed back, and ``parse`` looks at it line by line and names what is wrong.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, dataclass, fields
from itertools import accumulate, chain, islice
from typing import Any, BinaryIO

from iobench.record import QUANTITIES, STATUSES, Leg, Line

LINES = 500  # per batch: as fast as larger ones
MOST_COUNT = 2**63 - 1
MOST_OPS = 2**40
# No sample is shorter than a femtosecond or longer than 30 years; beyond them arithmetic overflows.
LEAST_SECONDS, MOST_SECONDS = 1e-15, 1e9
_BETWEEN = "iobench: between two lines"  # no line can close over it: a value of its own, at every second place
_JOINT = f',"{_BETWEEN}",'.encode()
_MOST_BRACKETS = 60
_TYPES: dict[str, frozenset[type]] = {
    "str": frozenset((str,)), "int": frozenset((int,)), "float": frozenset((int, float)), "bool": frozenset((bool,)),
    "bool | None": frozenset((bool, type(None))),
}  # fmt: skip
_RANGES = {
    "nbytes": (0, MOST_COUNT), "moved": (0, MOST_COUNT), "launch": (0, MOST_OPS), "ops": (1, MOST_OPS),
    "elapsed": (0, MOST_SECONDS),
}  # fmt: skip
_AXES = frozenset((str, int, float, bool, type(None)))
_Column = Sequence[Any]


@dataclass(frozen=True)
class Batch:
    """Lines that follow each other: ``columns`` where all are sound, else their texts."""

    count: int
    columns: list[_Column] | None
    texts: list[bytes]


def batches(stream: BinaryIO, end: int | None = None) -> Iterator[Batch]:
    """Yield the lines from the stream's place on, up to byte ``end`` (the start of a line) where it is given."""
    left = MOST_COUNT if end is None else end - stream.tell()
    while left > 0 and (texts := list(islice(stream, LINES))):
        sizes = list(accumulate(map(len, texts)))
        texts = texts[: bisect_left(sizes, left) + 1]
        left -= sizes[len(texts) - 1]
        values = decode(texts) if texts[-1].endswith(b"\n") else None
        yield Batch(len(texts), columns(values) if values else None, texts)


def interned(every: Sequence[_Column], words: dict[str, str]) -> list[_Column]:
    """Return the columns with equal words as one object, in ``words`` too."""
    return [
        list(map(words.setdefault, column, column)) if name in _WORDS else column
        for name, column in zip(_FIELDS, every, strict=True)
    ]


def decode(texts: Sequence[bytes]) -> list[dict[str, Any]] | None:
    """Return one object per line; None where they must be looked at one by one."""
    try:
        values = _DECODER.decode(f"[{_JOINT.join(texts).decode()}]")
    except (ValueError, RecursionError):
        return None
    whole = len(values) == 2 * len(texts) - 1 and values[1::2] == [_BETWEEN] * (len(texts) - 1)
    objects = values[::2]
    if not whole or set(map(type, objects)) - {dict}:
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


def columns(objects: Sequence[dict[str, Any]]) -> list[_Column] | None:
    """Return the values of sound lines as one column per field of Line, legs as plain objects.

    None where the objects do not all name the same fields, and where anything in them is odd.
    """
    names = tuple(objects[0])
    if not all(map(names.__eq__, map(tuple, objects))):
        return None
    found = dict(zip(names, zip(*map(dict.values, objects), strict=True), strict=True))
    if found.pop("type", ()) != ("point",) * len(objects) or not found.keys() <= _FIELDS.keys():
        return None
    if not all(_typed(name, column) for name, column in found.items()) or not found.keys() >= _REQUIRED:
        return None
    every = [found[name] if name in found else _default(name, len(objects)) for name in _FIELDS]
    return every if _sound(dict(zip(_FIELDS, every, strict=True))) else None


class Builder:
    """Makes lines of columns; equal words and legs are kept once. ``make`` returns the leg of a sound object, or None.

    Legs are shared: what a leg of one line is changed to, others are too.
    """

    def __init__(self, make: Callable[[Any], Leg | None]) -> None:
        self._make = make
        self._words: dict[str, str] = {}
        self._legs: dict[tuple[Any, ...], Leg] = {}

    def lines(self, every: Sequence[_Column]) -> list[Line] | None:
        """Return the lines of sound columns; None where a leg is not sound."""
        made = interned(every, self._words)
        if any(every[_LEGS]):
            made[_LEGS] = [[self._leg(leg) for leg in legs] for legs in every[_LEGS]]
            if None in chain.from_iterable(made[_LEGS]):
                return None
        return list(map(Line, *made))

    def sound(self, every: Sequence[_Column]) -> bool:
        """Return whether all legs of the columns are sound."""
        return all(self._leg(leg) is not None for leg in chain.from_iterable(every[_LEGS]))

    def _leg(self, raw: Any) -> Leg | None:
        key = _leg_key(raw)
        found = self._legs.get(key)
        if found is None:
            found = self._make(raw)
            if found is not None and key:
                self._legs[key] = found
        return found


def _typed(name: str, column: _Column) -> bool:
    return set(map(type, column)) <= _FIELDS[name]


def _default(name: str, count: int) -> _Column:
    of = Line.__dataclass_fields__[name]
    return [of.default if of.default_factory is MISSING else of.default_factory() for _ in range(count)]


def _sound(found: dict[str, _Column]) -> bool:
    """Tell whether all lines are sound, as ``parse.problem`` does of one."""
    known = set(found["status"]) <= _STATUSES and set(found["quantity"]) <= _QUANTITIES and all(found["probe"])
    return (
        known
        and all(low <= min(found[name]) and max(found[name]) <= high for name, (low, high) in _RANGES.items())
        and set(map(type, chain.from_iterable(found["notes"]))) <= {str}
        and _points(found["point"])
        and _samples(found["seconds"])
        and _samples(found["warmup"])
        and all(
            (rows and rows[0]) or status not in ("ok", "suspect")
            for rows, status in zip(found["seconds"], found["status"], strict=True)
        )
    )


def _points(column: _Column) -> bool:
    values = list(chain.from_iterable(map(dict.values, column)))
    numbers = [value for value in values if type(value) is not str and value is not None]
    if not set(map(type, values)) <= _AXES:
        return False
    return not numbers or (min(numbers) >= -MOST_COUNT and max(numbers) <= MOST_COUNT)


def _samples(column: _Column) -> bool:
    rows = list(chain.from_iterable(column))
    if set(map(type, rows)) - {list} or any(len(set(map(len, ranks))) > 1 for ranks in column if len(ranks) > 1):
        return False
    values = list(chain.from_iterable(rows))
    # infinity is out of range, and NaN is no JSON
    kinds = set(map(type, values))
    return not values or (kinds == {float} and min(values) >= LEAST_SECONDS and max(values) <= MOST_SECONDS)


def _leg_key(leg: Any) -> tuple[Any, ...]:
    """Return what makes two legs the same, () for what is none: types too, as True equals 1."""
    if type(leg) is not dict or not all(type(item) in _AXES for item in leg.values()):
        return ()
    return (*leg.items(), *map(type, leg.values()))


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _allowed(kind: str) -> frozenset[type]:
    return _TYPES.get(kind) or frozenset((dict,) if kind.startswith("dict") else (list,))


_FIELDS = {of.name: _allowed(str(of.type)) for of in fields(Line)}
_REQUIRED = {of.name for of in fields(Line) if of.default is MISSING and of.default_factory is MISSING}
_LEGS = list(_FIELDS).index("legs")
_WORDS = {of.name for of in fields(Line) if str(of.type) == "str" and of.name != "started"}
_STATUSES, _QUANTITIES = frozenset(STATUSES), frozenset(QUANTITIES)
_DECODER = json.JSONDecoder(parse_constant=_refuse)
