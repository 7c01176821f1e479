"""Turns the bytes of a records file into header and lines; anything odd is a UserError with its line's number.

``problem`` is the one definition of a sound line: the engine asks it before writing, the reader after.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from iobench import ahead, batch
from iobench.batch import LEAST_SECONDS, MOST_COUNT, MOST_OPS, MOST_SECONDS
from iobench.errors import UserError
from iobench.record import QUANTITIES, SCHEMA, STATUSES, Header, Leg, Line

_MOST_DEPTH = 64
_MOST_BYTES_PER_S = 1e18

_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,), "int": (int,), "float": (int, float), "bool": (bool,), "bool | None": (bool, type(None)),
    "int | None": (int, type(None)), "float | None": (int, float, type(None)),
}  # fmt: skip


def parse(file: Path, data: bytes | BinaryIO) -> tuple[Header, Iterator[Line], list[dict[str, Any]], list[str]]:
    """Return header, lines, resume marks and warnings; the last two are filled while the lines are taken.

    A torn last line is a warning, other damage a UserError.
    """
    stream = io.BytesIO(data) if isinstance(data, bytes) else data
    first = stream.readline()
    if not first.endswith(b"\n"):
        raise UserError(f"{file} holds no complete line: it is no run of iobench, or one that died at once; run again")
    header = _header(file, _object(f"{file}:1", first))
    resumed: list[dict[str, Any]] = []
    warnings: list[str] = []
    return header, _lines(file, stream, resumed, warnings), resumed, warnings


def _lines(file: Path, stream: BinaryIO, resumed: list[dict[str, Any]], warnings: list[str]) -> Iterator[Line]:
    builder, number = batch.Builder(sound_leg), 2
    for found in ahead.batches(stream):
        lines = builder.lines(found.columns) if found.columns else None
        yield from _looked_at(file, number, found.texts, builder, resumed, warnings) if lines is None else lines
        number += found.count


def _looked_at(
    file: Path,
    number: int,
    texts: list[bytes],
    builder: batch.Builder,
    resumed: list[dict[str, Any]],
    warnings: list[str],
) -> Iterator[Line]:
    """Yield the lines of texts from line ``number`` on of which some are odd."""
    if not texts[-1].endswith(b"\n"):
        warnings.append(f"{file}: the last line is incomplete (the run was killed while writing) and was left out")
        texts = texts[:-1]
    values = batch.decode(texts) if texts else []
    if values is None:
        for place, text in enumerate(texts, number):
            yield from _one(f"{file}:{place}", _object(f"{file}:{place}", text), resumed)
    elif values:
        yield from _many(file, number, values, builder, resumed)


def _many(
    file: Path, number: int, values: list[dict[str, Any]], builder: batch.Builder, resumed: list[dict[str, Any]]
) -> Iterator[Line]:
    """Yield the lines of objects from line ``number`` on; around what is odd, of ever fewer of them."""
    columns = batch.columns(values)
    lines = builder.lines(columns) if columns else None
    if lines is not None:
        yield from lines
    elif len(values) == 1:
        yield from _one(f"{file}:{number}", values[0], resumed)
    else:
        half = len(values) // 2
        yield from _many(file, number, values[:half], builder, resumed)
        yield from _many(file, number + half, values[half:], builder, resumed)


def _one(where: str, value: dict[str, Any], resumed: list[dict[str, Any]]) -> Iterator[Line]:
    """Yield the line of an object; nothing for a resume mark."""
    if value.get("type") == "point":
        line = _line(where, value)
        found = problem(line)
        if found:
            raise UserError(f"{where}: {found}; the file is damaged or newer than this iobench")
        yield line
    elif value.get("type") == "resume":
        resumed.append(value)
    else:
        raise UserError(f"{where}: unknown line type {_shown(value.get('type'))}; the file is damaged or foreign")


def problem(line: Line) -> str:
    """Return "" for a sound line, else what is wrong with it: such a line is not written and not read."""
    for check in (_words, _counts, _point, _legs, _samples):
        found = check(line)
        if found:
            return found
    return ""


def _object(where: str, text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not JSON; the file is damaged or no run of iobench") from error
    if not isinstance(value, dict):
        raise UserError(f"{where}: not an object; the file is damaged or no run of iobench")
    if _too_deep(value, _MOST_DEPTH):
        raise UserError(f"{where}: nested more than {_MOST_DEPTH} deep; the file is damaged or no run of iobench")
    return value


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _too_deep(value: Any, depth: int) -> bool:
    if not isinstance(value, (dict, list)):
        return False
    items = value.values() if isinstance(value, dict) else value
    return depth == 0 or any(_too_deep(item, depth - 1) for item in items if isinstance(item, (dict, list)))


def _header(file: Path, value: dict[str, Any]) -> Header:
    if value.get("type") != "run" or "schema" not in value:
        raise UserError(f"{file}: no iobench header in the first line; peers' logs are read by iobench import")
    if value["schema"] != SCHEMA or isinstance(value["schema"], bool):
        raise UserError(
            f"{file}: schema {_shown(value['schema'])}, this iobench reads {SCHEMA}; use the version that wrote it"
        )
    header: Header = _build(Header, value, f"{file}:1")
    _items(header.environment.values(), str, f"{file}:1: environment")
    _items(header.probes.values(), dict, f"{file}:1: probes")
    return header


def _line(where: str, value: dict[str, Any]) -> Line:
    legs = value.get("legs", [])
    if not isinstance(legs, list):
        raise UserError(f"{where}: legs is not a list; the file is damaged")
    line: Line = _build(Line, {**value, "legs": []}, where)
    line.legs = [_build(Leg, leg, where) for leg in legs]
    _items(line.notes, str, f"{where}: notes")
    return line


def _items(values: Any, kind: type, what: str) -> None:
    if not all(isinstance(value, kind) for value in values):
        raise UserError(f"{what} holds something that is no {kind.__name__}; the file is damaged")


def _build(cls: type, value: Any, where: str) -> Any:
    fields: dict[str, Any] = cls.__dataclass_fields__  # type: ignore[attr-defined]
    if not isinstance(value, dict):
        raise UserError(f"{where}: not an object; the file is damaged")
    known = {name: item for name, item in value.items() if name in fields}
    for name, item in known.items():
        kind = str(fields[name].type)
        allowed = _TYPES.get(kind) or ((dict,) if kind.startswith("dict") else (list,))
        if not isinstance(item, allowed) or (isinstance(item, bool) and bool not in allowed):
            raise UserError(f"{where}: {name} is {type(item).__name__}, not {kind}; the file is damaged")
    try:
        return cls(**known)
    except TypeError as error:
        raise UserError(f"{where}: {error}; the file is damaged".replace("__init__() ", "")) from error


def _words(line: Line) -> str:
    if line.status not in STATUSES:
        return f"unknown status {_shown(line.status)}"
    if line.quantity not in QUANTITIES:
        return f"unknown quantity {_shown(line.quantity)}"
    return "" if line.probe else "no probe's name"


def _counts(line: Line) -> str:
    if not (0 <= line.nbytes <= MOST_COUNT and 0 <= line.moved <= MOST_COUNT and 0 <= line.launch <= MOST_OPS):
        return "nbytes, moved or launch out of range"
    if not 1 <= line.ops <= MOST_OPS:
        return "ops out of range"
    return "" if 0 <= line.elapsed <= MOST_SECONDS else "elapsed out of range"


def _point(line: Line) -> str:
    for name, value in line.point.items():
        if type(value) is str:
            continue
        if not (value is None or isinstance(value, (str, int, float))):
            return f"point: {name} is {type(value).__name__}, not a number or text"
        if isinstance(value, (int, float)) and not -MOST_COUNT <= value <= MOST_COUNT:
            return f"point: {name} out of range"
    return ""


def _legs(line: Line) -> str:
    return next((found for leg in line.legs if (found := _leg_problem(leg))), "")


def _leg_problem(leg: Leg) -> str:
    if not 1 <= leg.count <= MOST_OPS or not (leg.moved is None or 0 <= leg.moved <= MOST_COUNT):
        return f"leg {_shown(leg.src)} - {_shown(leg.dst)}: count or moved out of range"
    if leg.bytes_per_s is not None and not 0 < leg.bytes_per_s <= _MOST_BYTES_PER_S:
        return f"leg {_shown(leg.src)} - {_shown(leg.dst)}: bytes_per_s out of range"
    return ""


def sound_leg(value: Any) -> Leg | None:
    """Return the leg of a sound object, None for any other: its line is looked at by itself then."""
    try:
        leg: Leg = _build(Leg, value, "")
    except UserError:
        return None
    return None if _leg_problem(leg) else leg


def _samples(line: Line) -> str:
    for name, rows in (("seconds", line.seconds), ("warmup", line.warmup)):
        if not rows:
            continue
        widths = {len(row) if isinstance(row, list) else -1 for row in rows}
        if len(widths) > 1 or -1 in widths:
            return f"{name} is not [rank][iteration]"
        if not all(_durations(row) for row in rows):
            return f"{name} holds something that is no positive number of seconds"
    empty = not line.seconds or not line.seconds[0]
    return f"status {line.status} without samples" if empty and line.status in ("ok", "suspect") else ""


def _durations(row: list[Any]) -> bool:
    if set(map(type, row)) == {float}:  # by far the most: two comparisons tell, and NaN is no JSON
        return min(row) >= LEAST_SECONDS and max(row) <= MOST_SECONDS and not any(map(math.isnan, row))
    return all(map(_duration, row))


def _duration(value: Any) -> bool:
    if type(value) is float:
        return math.isfinite(value) and LEAST_SECONDS <= value <= MOST_SECONDS
    return type(value) is int and 1 <= value <= MOST_SECONDS


def _shown(value: Any) -> str:
    """A short form of a value from a file, for a message of one line."""
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
