"""Mutations that know what logs are made of: tables, headings, units, counts, JSON, XML, and how files are damaged.

Each takes (random generator, log, another log) and returns bytes, like those of ``fuzz_importers``.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any

Mutation = Callable[[random.Random, bytes, bytes], bytes]

_ROW = re.compile(rb"^[ \t]{0,80}\S{0,80}[ \t]{0,80}[0-9]+[ \t|,]")
_HEADING = re.compile(rb"^.{0,120}?(?:bytes|size|Bandwidth|BW|GPU0|Delay|Numa|usec|iterations|Rate)", re.I)
_COUNT = re.compile(rb"(?<=[: =])[0-9]{1,12}\b")
_UNITS = (b"GB/s", b"GiB/sec", b"MB/sec", b"MiB/s", b"Gb/sec", b"(us)", b"(ms)", b"usec", b"(ns)", b"KiB", b"MB/s")
_COUNTS = (b"0", b"1", b"2", b"3", b"7", b"64", b"1000000", b"2147483647", b"4294967296", b"9223372036854775807")
_LONG = 60_000
_DAMAGE = (
    lambda data: data.replace(b"\n", b"\r\n"),
    lambda data: data.replace(b"\n", b"\r"),
    lambda data: b"\xff\xfe" + data.decode("utf-8", "replace").encode("utf-16-le"),
    lambda data: b"\xfe\xff" + data.decode("utf-8", "replace").encode("utf-16-be"),
    lambda data: b"\xef\xbb\xbf" + data,
    lambda data: b"\x1b[31m" + data.replace(b"\n", b"\x1b[0m\n\x1b[1m"),
    lambda data: data.replace(b" ", b"\0"),
    lambda data: data.replace(b" ", b"\xc2\xa0"),
    lambda data: data.replace(b"\n", b" "),
    lambda data: data.replace(b"  ", b"\t"),
    lambda data: data.replace(b"\t", b"    "),
)  # fmt: skip


def _rows(lines: list[bytes]) -> list[int]:
    return [place for place, line in enumerate(lines) if _ROW.match(line)]


def shuffle_rows(rng: random.Random, data: bytes, _other: bytes) -> bytes:
    """Put a table's rows into another order."""
    lines = data.split(b"\n")
    places = _rows(lines)
    rows = [lines[place] for place in places]
    rng.shuffle(rows)
    for place, row in zip(places, rows, strict=True):
        lines[place] = row
    return b"\n".join(lines)


def change_columns(rng: random.Random, data: bytes, _other: bytes) -> bytes:
    """Swap, drop or double a column, in every row or in one."""
    lines = data.split(b"\n")
    places = _rows(lines)
    chosen = places if rng.random() < 0.5 else places[:1]
    a, b, how = rng.randrange(8), rng.randrange(8), rng.randrange(3)
    for place in chosen:
        words = lines[place].split()
        if max(a, b) < len(words):
            if how == 0:
                words[a], words[b] = words[b], words[a]
            elif how == 1:
                del words[a]
            else:
                words.insert(b, words[a])
            lines[place] = b"  ".join(words)
    return b"\n".join(lines)


def many_rows(rng: random.Random, data: bytes, _other: bytes) -> bytes:
    """Add rows like one, each with another size."""
    lines = data.split(b"\n")
    places = _rows(lines)
    if not places:
        return data
    place = rng.choice(places)
    made = [re.sub(rb"[0-9]+", b"%d" % (n * 37 + 1), lines[place], count=1) for n in range(rng.choice((3, 3, 30, 300)))]
    return b"\n".join([*lines[:place], *made, *lines[place:]])


def repeat_heading(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """Put a heading, of this log or another, between the rows once more."""
    lines, headings = data.split(b"\n"), [line for line in (data + other).split(b"\n") if _HEADING.search(line)]
    if not headings:
        return data
    for _ in range(rng.choice((1, 2, 30))):
        lines.insert(rng.randrange(len(lines) + 1), rng.choice(headings))
    return b"\n".join(lines)


def replace_unit(rng: random.Random, data: bytes, _other: bytes) -> bytes:
    """Give a unit of the log's another name."""
    found = [unit for unit in _UNITS if unit in data]
    return data.replace(rng.choice(found), rng.choice(_UNITS), rng.choice((-1, 1))) if found else data


def change_count(rng: random.Random, data: bytes, _other: bytes) -> bytes:
    """Give counts of a heading (ranks, nodes, GPUs, iterations, sizes) other values."""
    found = list(_COUNT.finditer(data))
    for match in sorted(rng.sample(found, min(len(found), rng.choice((1, 3)))), key=lambda m: -m.start()):
        data = data[: match.start()] + rng.choice(_COUNTS) + data[match.end() :]
    return data


def damage(rng: random.Random, data: bytes, _other: bytes) -> bytes:
    """Damage the file as copying, terminals and editors do."""
    return rng.choice(_DAMAGE)(data)


def long_line(rng: random.Random, data: bytes, _other: bytes) -> bytes:
    """Make one line very long: of its own text, of a bracket, of spaces."""
    lines = data.split(b"\n")
    place = rng.randrange(len(lines))
    unit = rng.choice((lines[place] or b" ", b"[", b'{"a":', b"<a>", b" ", b"9", b"#", b"1 ", b"GPU0 X "))
    lines[place] = lines[place] + (unit * (rng.choice((500, 5_000, _LONG)) // len(unit)))[:_LONG]
    return b"\n".join(lines)


def whole_twice(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """Put the log behind itself or another, as people collect them in one file."""
    return data + rng.choice((data, other, b"\n" + data * 3))


def change_json(rng: random.Random, data: bytes, _other: bytes) -> bytes:
    """Change one value of a JSON document: its type, its length, its depth."""
    try:
        document = json.loads(data[data.index(b"{") :])
    except (ValueError, RecursionError):
        return change_columns(rng, data, _other)
    holders = list(_holders(document))
    if not holders:
        return data
    holder, key = rng.choice(holders)
    holder[key] = _odd(rng, holder[key])
    return json.dumps(document).encode()


def _holders(value: Any) -> Any:
    todo = [value]
    while todo:
        item = todo.pop()
        for key in list(item) if isinstance(item, dict) else range(len(item)):
            yield item, key
            if isinstance(item[key], (dict, list)):
                todo.append(item[key])


def _odd(rng: random.Random, value: Any) -> Any:
    deep: Any = value
    for _ in range(50):
        deep = [deep]
    return rng.choice(
        (
            None,
            True,
            "",
            "nan",
            -1,
            0,
            10**30,
            float("inf"),
            1e-320,
            [],
            {},
            [value] * 40,
            {"a": value},
            deep,
            str(value),
        )
    )


def nest_xml(rng: random.Random, data: bytes, _other: bytes) -> bytes:
    """Double an element, or put it deep into copies of itself; in text without elements, a bracket's part."""
    found = list(re.finditer(rb"<(\w+)[^<>]{0,500}>", data))
    if not found:
        return many_rows(rng, data, _other)
    tag = rng.choice(found)
    depth = rng.choice((1, 2, 50, 3000))
    return data[: tag.start()] + tag[0] * depth + data[tag.start() :]


MUTATIONS: tuple[Mutation, ...] = (
    shuffle_rows, change_columns, many_rows, repeat_heading, replace_unit, change_count, damage, long_line,
    whole_twice, change_json, nest_xml,
)  # fmt: skip
