"""The band in which machines of a class lie: topologies/expected.toml, every row with its source."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from iobench.check.classes import Machine
from iobench.paths import data_dir
from iobench.record import Record
from iobench.units import GB, US, format_rate, format_seconds

FILE = "expected.toml"


@dataclass(frozen=True)
class Standing:
    """How a record lies to what was expected: "below" (slower), "within" or "above" (faster), and the sentence."""

    word: str
    sentence: str


@functools.cache
def bands() -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Return the rows of expected.toml by class and probe."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    with (data_dir("topologies") / FILE).open("rb") as file:
        for row in tomllib.load(file)["expected"]:
            found.setdefault((row["class"], row["probe"]), []).append(row)
    return found


def expect(record: Record, machine: Machine | None) -> Standing | None:
    """Return where the record's median lies in its band; None where no row is about such a point."""
    rows = bands()
    kinds = [(machine.id, record.probe)] if machine and machine.id else []
    for kind in [*kinds, ("", record.probe)]:
        for row in rows.get(kind, ()):
            if _about(row, record, machine):
                return _standing(row, record)
    return None


def _about(row: Mapping[str, Any], record: Record, machine: Machine | None) -> bool:
    least, most = row["nbytes"]
    if not least <= record.nbytes <= most or record.mode not in row.get("mode", (record.mode,)):
        return False
    if any(record.point.get(axis, _default(axis)) != wanted for axis, wanted in row["where"].items()):
        return False
    if "nvls" not in row:
        return True
    known = machine.algorithm(record.first).lower() if machine else ""
    without = bool(known) and "nvls" not in known.replace("nvls off", "")
    return bool(row["nvls"]) is not without


def _default(axis: str) -> Any:
    return 1 if axis == "nodes" else None


def _standing(row: Mapping[str, Any], record: Record) -> Standing:
    if "gigabytes_per_s" in row:
        low, high = (value * GB for value in row["gigabytes_per_s"])
        value, text = record.bytes_per_s, f"{format_rate(low)} to {format_rate(high)}"
        word = "below" if value < low else "above" if value > high else "within"
    else:
        low, high = (value * US for value in row["microseconds"])
        value, text = record.median, f"{format_seconds(low)} to {format_seconds(high)}"
        word = "below" if value > high else "above" if value < low else "within"
    if word == "within":
        return Standing(word, f"as expected: {text} ({row['source']})")
    lead = "slower" if word == "below" else "faster"
    return Standing(word, f"{lead} than expected: {text} ({row['source']})")
