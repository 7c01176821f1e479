"""How a point, an axis and its values are written for people."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from iobench.record import Record, Run
from iobench.units import format_size, speaks

_EVIDENCE = "evidence."
_LEAST = 1e-5  # a smaller part is not worth its digits
MODE = "mode"  # not an axis of the point, but shown and separated like one


def about(run: Run, probe: str) -> Mapping[str, Any]:
    """Return what the header says of a probe, nothing where it says nothing."""
    entry = run.header.probes.get(probe)
    return entry if isinstance(entry, Mapping) else {}


def axis_value(record: Record, axis: str) -> Any:
    """Return the record's value on ``axis``, where "nbytes" and "mode" always have one.

    "evidence.NAME" is the median over launches of a number that was measured beside the time.
    """
    if axis in record.point:
        return record.point[axis]
    if axis.startswith(_EVIDENCE):
        found = [line.evidence.get(axis.removeprefix(_EVIDENCE)) for line in record.used]
        numbers = [float(value) for value in found if isinstance(value, (int, float)) and is_number(value)]
        return median(numbers) if numbers else None
    return {"nbytes": record.nbytes, MODE: record.mode}.get(axis)


def is_rate(axis: str) -> bool:
    """Tell whether the axis holds bytes per second."""
    return axis.endswith("bytes_per_s")


def is_size(run: Run, probe: str, axis: str) -> bool:
    """Tell whether the axis counts bytes: the header's unit, else its name."""
    axes = about(run, probe).get("axes")
    entry = axes.get(axis) if isinstance(axes, dict) else None
    unit = entry.get("unit") if isinstance(entry, dict) else None
    return unit == "bytes" if unit else axis.endswith("bytes")


def value_text(value: Any, size: bool) -> str:
    """Return one axis value as text: sizes in KiB and MiB, everything else as it is."""
    if value is None:
        return "-"
    if size and is_number(value) and value == int(value):
        return format_size(int(value))
    return str(value)


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def pairs_text(run: Run, probe: str, pairs: Mapping[str, Any]) -> str:
    """Return "read, threads 2, 64 KiB": words stand for themselves, numbers and "no" need their axis' name."""
    parts = []
    for axis, value in pairs.items():
        size = is_size(run, probe, axis)
        text = value_text(value, size)
        parts.append(text if (size and is_number(value)) or speaks(value) else f"{axis} {text}")
    return ", ".join(parts)


def point_names(run: Run, records: Sequence[Record]) -> list[str]:
    """Return the points of one probe in short: only the axes on which the probe's points differ."""
    if not records:
        return []
    probe = records[0].probe
    axes = varying(run.of(probe), axes_of(run.of(probe))[:-1])  # the mode is no part of a point's identity
    own = [{axis: record.point[axis] for axis in axes if axis in record.point} for record in records]
    return [pairs_text(run, probe, pairs) or "its only point" for pairs in own]


def varying(records: Iterable[Record], axes: Iterable[str]) -> list[str]:
    """Return those of ``axes`` on which the records differ."""
    kept = list(records)
    return [axis for axis in axes if _differ(kept, axis)]


def _differ(records: list[Record], axis: str) -> bool:
    """Tell whether any two records differ on the axis, at the first that does: a run may hold a million."""
    if not records:
        return False
    first = axis_value(records[0], axis)
    kind = type(first)
    values = (axis_value(record, axis) for record in records)
    return any(value is not first and (type(value) is not kind or value != first) for value in values)


def axes_of(records: Iterable[Record]) -> list[str]:
    """Return every axis of the records in the order first seen, the mode last."""
    names: dict[str, None] = {}
    for record in records:
        if not record.point.keys() <= names.keys():
            names |= dict.fromkeys(record.point)
    names.pop(MODE, None)
    return [*names, MODE]


def range_text(low: str, high: str) -> str:
    """Return "1.20–1.24 us": the unit once where both ends share it."""
    number, _, unit = low.rpartition(" ")
    return f"{number}–{high}" if number and high.endswith(f" {unit}") else f"{low} – {high}"


def half_width(fraction: float) -> str:
    """Return half an interval's width as text: "±4 %", "-" where none is known.

    One launch-to-launch jump makes it "over ±1000 %".
    """
    if not math.isfinite(fraction):
        return "-"
    if 0 < fraction < _LEAST:
        return "< ±0.001 %"
    return f"±{percent(fraction)}" if fraction <= 10 else "over ±1000 %"


def percent(fraction: float) -> str:
    """Return a fraction as per cent with two digits, more where it is above 10 % ("0.41 %", "47 %")."""
    value = fraction * 100
    if not math.isfinite(value):
        return "-"
    if 0 < fraction < _LEAST:
        return "< 0.001 %"
    return f"{value:.0f} %" if value >= 10 else f"{value:.2g} %"
