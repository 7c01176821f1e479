"""Compares two runs point by point.

The ratio is speed: rate of B over rate of A, which for equal bytes is A's time over B's. Above 1, B is
faster; for a latency too (B's latency is the lower one). Points are joined where probe, axes and mode are
equal. The interval is the bootstrap of both medians (launches first), widened for few launches.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from iobench import check
from iobench.fit import bootstrap
from iobench.record import Record, Run
from iobench.stats import Interval
from iobench.units import format_point, format_size

SAME = 0.03  # an interval within this of 1 is called same
VERDICTS = ("same", "faster", "slower", "unclear")
NO_INTERVAL = "no interval"  # the verdict where a side is a single figure, whose spread nobody knows
SIZE_AXIS = "nbytes"
_FOREIGN = ("published:", "import:")  # measured by no probe of iobench
_NAMED = 3  # points that a warning names before it only counts


@dataclass(frozen=True)
class Row:
    """One point of both runs.

    ``a`` and ``b`` are median seconds per operation. ``ratio`` is B's speed over A's with its interval.
    ``verdict`` is on B: same (interval within 3 % of 1), faster, slower (interval clear of 1), unclear; where a
    side is a single figure it is "no interval", and ``low`` and ``high`` are None.
    """

    key: str
    probe: str
    point: dict[str, Any]
    quantity: str
    mode: str
    moved: int
    a: Interval
    b: Interval
    ratio: float
    low: float | None
    high: float | None
    verdict: str


@dataclass(frozen=True)
class Comparison:
    """All rows in A's order, what must be known to read them, and a sentence per series of sizes."""

    a: str
    b: str
    rows: list[Row]
    warnings: list[str] = field(default_factory=list)
    summary: list[str] = field(default_factory=list)

    def count(self, verdict: str) -> int:
        """Return how many rows got ``verdict``."""
        return sum(row.verdict == verdict for row in self.rows)


def compare(a: Run, b: Run) -> Comparison:
    """Return every point that both runs measured, with B's speed over A's.

    Impossible, wrong, failed and skipped records are left out with a warning. A run compared with itself
    is the same at every point: both medians are one number. Raises UserError for a damaged header.
    """
    usable_a, unusable_a = _sort_out(a)
    usable_b, unusable_b = _sort_out(b)
    shared = [key for key in usable_a if key in usable_b]
    joined = [key for key in shared if usable_a[key].mode == usable_b[key].mode]
    paired = a.header.run_id == b.header.run_id
    rows = [_row(usable_a[key], usable_b[key], paired) for key in joined]
    warnings = _run_warnings(a, b, {row.probe for row in rows})
    warnings += _mode_warnings(usable_a, usable_b, shared)
    moved = [key for key in joined if usable_a[key].moved != usable_b[key].moved]
    if moved:
        warnings.append(f"bytes moved per operation differ, the ratio is that of the rates: {_names(moved)}")
    warnings += _side_warnings(a, b, {"A": unusable_a, "B": unusable_b})
    return Comparison(_name(a), _name(b), rows, warnings, _summary(rows))


def _row(a: Record, b: Record, paired: bool) -> Row:
    time_a, time_b = a.time, b.time
    per_byte = b.moved / a.moved if a.moved and b.moved else 1.0
    ratio = time_a.median / time_b.median * per_byte
    ends = _interval(a, b, ratio, paired) if time_a.known and time_b.known else None
    low, high = ends or (None, None)
    verdict = _verdict(*ends) if ends else NO_INTERVAL
    return Row(a.key, a.probe, a.point, a.quantity, a.mode, a.moved, time_a, time_b, ratio, low, high, verdict)


def _interval(a: Record, b: Record, ratio: float, paired: bool) -> tuple[float, float]:
    """Return the ratio's interval: the half widths of both log-medians, independent unless it is one run."""
    half = 0.0 if paired else math.hypot(_log_half(a, 0), _log_half(b, 1))
    return ratio * math.exp(-half), ratio * math.exp(half)


def _log_half(record: Record, stream: int) -> float:
    parts = bootstrap.units(record.groups)
    rng = np.random.default_rng([zlib.crc32(record.key.encode()), stream])
    logs = np.log(bootstrap.median_draws(parts, rng))
    return bootstrap.half_width(logs, math.log(record.time.median), bootstrap.widening(len(parts)))


def _verdict(low: float, high: float) -> str:
    if low >= 1 - SAME and high <= 1 + SAME:
        return "same"
    if low > 1:
        return "faster"
    return "slower" if high < 1 else "unclear"


def _sort_out(run: Run) -> tuple[dict[str, Record], dict[str, str]]:
    """Return the usable records by key, and the status of those that are not."""
    verdicts = check.judge(run)
    usable = {record.key: record for record in run if verdicts[record.key].usable}
    unusable = {record.key: verdicts[record.key].status for record in run if record.key not in usable}
    return usable, unusable


def _run_warnings(a: Run, b: Run, probes: Iterable[str]) -> list[str]:
    out = []
    if a.header.run_id == b.header.run_id:
        out.append(f"A and B are the same run ({a.header.run_id}): give two runs to compare")
    if a.machine != b.machine:
        out.append(f"A ran on {a.machine}, B on {b.machine}: the ratios compare the machines")
    for probe in sorted(probes):
        sources = [sorted({line.source for record in run.of(probe) for line in record.lines}) for run in (a, b)]
        foreign = any(source.startswith(_FOREIGN) for both in sources for source in both)
        if sources[0] != sources[1] and not foreign:
            out.append(
                f"probe {probe} differs between A and B: a ratio may come from the probe; run both with one version"
            )
    if a.header.version != b.header.version:
        out.append(f"A was measured by iobench {a.header.version}, B by {b.header.version}")
    return out


def _mode_warnings(a: dict[str, Record], b: dict[str, Record], shared: Sequence[str]) -> list[str]:
    pairs: dict[tuple[str, str], list[str]] = {}
    for key in shared:
        if a[key].mode != b[key].mode:
            pairs.setdefault((a[key].mode or "none", b[key].mode or "none"), []).append(key)
    return [
        f"not compared, mode {first} in A and {second} in B: {_names(keys)}" for (first, second), keys in pairs.items()
    ]


def _side_warnings(a: Run, b: Run, unusable: dict[str, dict[str, str]]) -> list[str]:
    """Return what one side lacks, what was no measurement, and what was measured under a disturbance."""
    keys = {"A": [record.key for record in a], "B": [record.key for record in b]}
    out = []
    for side, other in (("A", "B"), ("B", "A")):
        there = set(keys[other])
        alone = [key for key in keys[side] if key not in there]
        if alone:
            out.append(f"only in {side}: {_names(alone)}")
    for side, run in (("A", a), ("B", b)):
        by_status: dict[str, list[str]] = {}
        for key, status in unusable[side].items():
            by_status.setdefault(status, []).append(key)
        out += [f"not compared, {status} in {side}: {_names(named)}" for status, named in by_status.items()]
        suspect = [record.key for record in run if record.status == "suspect" and record.key not in unusable[side]]
        if suspect:
            out.append(f"suspect in {side} (the machine was disturbed), run again to be sure: {_names(suspect)}")
    return out


def _summary(rows: Sequence[Row]) -> list[str]:
    """Return a sentence for each series over sizes: how B does, and from which size on that changes."""
    series: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if isinstance(row.point.get(SIZE_AXIS), int):
            axes = " ".join(f"{name}={value}" for name, value in row.point.items() if name != SIZE_AXIS)
            series.setdefault((row.probe, axes, row.mode), []).append(row)
    out = []
    for (probe, axes, _), members in series.items():
        if len(members) > 1:
            out.append(f"{f'{probe} {axes}'.strip()}: {_changes(sorted(members, key=_size))}")
    return out


def _changes(rows: Sequence[Row]) -> str:
    """Return "B is slower up to 8 KiB, faster from 64 KiB on": unclear sizes count to neither side."""
    clear = [row for row in rows if row.verdict not in ("unclear", NO_INTERVAL)]
    if all(row.verdict == NO_INTERVAL for row in rows):
        least, most = (pick(row.ratio for row in rows) for pick in (min, max))
        return f"B has {least:.2f} to {most:.2f} times A's speed; single figures, no interval"
    if not clear:
        return "unclear at every size; more launches (--budget) narrow the intervals"
    runs: list[list[Row]] = []
    for row in clear:
        if runs and runs[-1][0].verdict == row.verdict:
            runs[-1].append(row)
        else:
            runs.append([row])
    if len(runs) == 1:
        least, most = (pick(row.ratio for row in clear) for pick in (min, max))
        where = "every size" if len(clear) == len(rows) else f"{len(clear)} of {len(rows)} sizes, unclear at the others"
        return f"B is {_word(clear[0])} at {where} ({least:.2f} to {most:.2f} times A's speed)"
    if len(runs) > 3:
        return "B is now faster, now slower: " + ", ".join(
            f"{_word(r[0])} at {format_size(_size(r[0]))}" for r in runs[:4]
        )
    parts = [f"{_word(runs[0][0])} up to {format_size(_size(runs[0][-1]))}"]
    parts += [f"{_word(run[0])} from {format_size(_size(run[0]))} on" for run in runs[1:]]
    return f"B is {', '.join(parts)}"


def _word(row: Row) -> str:
    return "the same" if row.verdict == "same" else row.verdict


def _size(row: Row) -> int:
    return int(row.point[SIZE_AXIS])


def _names(keys: Sequence[str]) -> str:
    more = f" and {len(keys) - _NAMED} more" if len(keys) > _NAMED else ""
    return f"{len(keys)} {'point' if len(keys) == 1 else 'points'}: {', '.join(map(_spoken, keys[:_NAMED]))}{more}"


def _spoken(key: str) -> str:
    """Return a point's key as the table below it writes the point: "dram kernel=read threads=2"."""
    probe, _, axes = key.partition(" ")
    return f"{probe} {format_point(json.loads(axes))}".strip()


def _name(run: Run) -> str:
    return f"{run.machine} {run.header.created}"
