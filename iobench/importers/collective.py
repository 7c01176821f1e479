"""What the tools for collectives share: operations, bus bytes, ranks from printed figures, lines of a sweep.

Definitions after nccl-tests, doc/PERFORMANCE.md: algbw = nbytes / time; busbw = algbw * factor, with factor 2(n-1)/n
for all_reduce, (n-1)/n for all_gather, reduce_scatter, all_to_all, gather, scatter, and 1 for the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

from iobench import busbytes
from iobench.importers.imported import tell_apart
from iobench.importers.torun import MOST_LAUNCHES
from iobench.record import Line

OPS = {
    "all_reduce": "all_reduce", "allreduce": "all_reduce", "all_gather": "all_gather", "allgather": "all_gather",
    "reduce_scatter": "reduce_scatter", "reducescatter": "reduce_scatter", "broadcast": "broadcast",
    "bcast": "broadcast", "reduce": "reduce", "alltoall": "all_to_all", "all_to_all": "all_to_all",
    "alltoallv": "all_to_allv", "sendrecv": "sendrecv", "gather": "gather", "scatter": "scatter",
    "hypercube": "hypercube",
}  # fmt: skip
UNSURE = "(all_gather or all_to_all)"  # the same bus bytes, so a rate can be formed; the point gets no op
_ROUNDS = busbytes.ROUNDS | {UNSURE: 1, "hypercube": 1, "all_to_allv": 1}

# name in the log -> (canonical name, bytes of one element)
DTYPES = {
    "float": ("float32", 4), "float32": ("float32", 4), "fp32": ("float32", 4), "half": ("float16", 2),
    "float16": ("float16", 2), "fp16": ("float16", 2), "bfloat16": ("bfloat16", 2), "bf16": ("bfloat16", 2),
    "double": ("float64", 8), "float64": ("float64", 8), "fp64": ("float64", 8), "int8": ("int8", 1),
    "char": ("int8", 1),
    "uint8": ("uint8", 1), "int32": ("int32", 4), "int": ("int32", 4), "uint32": ("uint32", 4), "int64": ("int64", 8),
    "uint64": ("uint64", 8), "f8e4m3": ("float8_e4m3", 1), "f8e5m2": ("float8_e5m2", 1),
    "fp8_e4m3": ("float8_e4m3", 1), "fp8_e5m2": ("float8_e5m2", 1), "float8e4m3": ("float8_e4m3", 1),
    "float8e5m2": ("float8_e5m2", 1),
}  # fmt: skip
REDOPS = ("sum", "prod", "min", "max", "avg", "mulsum", "none")
_MOST_RANKS = 1 << 20


def rounds(op: str) -> int | None:
    """Return k of the bus factor k(n-1)/n, 0 for a factor of 1, None where the operation has no definition."""
    return _ROUNDS.get(op)


def factor(op: str, ranks: int) -> float:
    """Return bus bytes over nbytes."""
    return busbytes.of_rounds(rounds(op) or 0, ranks)


def moved_of(op: str, nbytes: int, ranks: int) -> tuple[int, str]:
    """Return the bus bytes of one operation and the rule in words."""
    k = rounds(op)
    if not k:
        return nbytes, "bus bytes: nbytes"
    return round(nbytes * k * (ranks - 1) / ranks), f"bus bytes: nbytes * {'2' if k == 2 else ''}(n-1)/n"


def ranks_from(op: str, ratio: float, doubt: float) -> tuple[int, int]:
    """Return the least and the largest number of ranks that a printed busbw / algbw can be of; least > largest: none.

    ``op`` must have a factor k(n-1)/n.
    """
    k = rounds(op) or 1
    ends = [k / (k - min(max(value, 0.0), k * (1 - 1 / _MOST_RANKS))) for value in (ratio - doubt, ratio + doubt)]
    least = max(math.ceil(ends[0] - 1e-9), 2)
    return (least, int(ends[1] + 1e-9)) if ratio - doubt < k else (2, 1)


def parts_of(count: int, elements: int) -> int:
    """Return into how many parts the buffer is cut by the printed count; 0 where it does not divide it."""
    return elements // count if count > 0 and elements % count == 0 else 0


def fits(op: str, parts: int) -> bool:
    """Tell whether an operation prints such a count: the whole buffer, or one rank's part of it."""
    return parts == 1 if rounds(op) in (0, 2) else parts != 1


def guess_op(redop: str, root: int, parts: int, unchecked: bool) -> str:
    """Return the operation that such a row is of; "(...)" where several can be, "" where none is known.

    ``unchecked`` says that the data in place were not checked (N/A) while those out of place were: nccl-tests does
    so for what can't be done in place, all_to_all and sendrecv.
    """
    reduces = redop not in ("", "none")
    if parts == 1:
        if root >= 0:
            return "reduce" if reduces else "broadcast"
        return "sendrecv" if unchecked or not redop else "all_reduce" if reduces else ""
    if parts > 1 and root < 0:
        return "reduce_scatter" if reduces else "all_to_all" if unchecked else UNSURE
    return ""


@dataclass(slots=True)
class Value:
    """One figure of a sweep: where it stands, its time, and what was printed."""

    number: int
    nbytes: int
    seconds: float
    printed: str
    verified: bool | None
    reason: str = ""
    skipped: bool = False


@dataclass
class Sweep:
    """What all figures of one curve share: one process launch of one operation, type, mode, placement."""

    run: int
    op: str
    point: Mapping[str, Any]
    mode: str
    aggregate: str
    facts: Mapping[str, Any]
    evidence: Mapping[str, Any]
    path: str = ""
    proven: bool = False
    notes: tuple[str, ...] = ()
    tuning: Mapping[tuple[str, int], dict[str, Any]] = field(default_factory=dict)
    ratio: float | None = None

    @property
    def identity(self) -> tuple[Any, ...]:
        return (
            self.mode,
            self.aggregate,
            self.path,
            *sorted((k, str(v)) for k, v in {**self.point, **self.facts}.items()),
        )


Turn = tuple[list[float], list[str], Line]  # a launch's seconds, its rows as printed, itself


@dataclass(slots=True)
class Point:
    """The launches of one point, and which of them took the last figure, of which run; ``turn`` once it has all."""

    run: int = -1
    launches: list[Line] = field(default_factory=list)
    line: Line | None = None
    turn: Callable[[], Turn] | None = None


class Collector:
    """Builds lines; a figure of a point that was measured before is a further value or a further launch of it.

    The same point again in the same run (cycles of one process) is a further value; in a later run of the same
    configuration a further launch, from the hundredth on again a further value of these. So a log of any length
    makes no more lines than it has points times a hundred.
    """

    def __init__(self, columns: tuple[str, ...], quantity: str = "bandwidth") -> None:
        self.columns, self.quantity = list(columns), quantity
        self.lines: list[Line] = []
        self._facts: dict[int, Mapping[str, Any]] = {}
        self._identities: dict[tuple[Any, ...], int] = {}
        self._points: dict[tuple[int, int], Point] = {}

    def identify(self, sweep: Sweep) -> int:
        """Return the number of what the sweep measures, for ``add``: equal sweeps of several runs share it."""
        return self._identities.setdefault(sweep.identity, len(self._identities))

    def add(self, sweep: Sweep, identity: int, value: Value) -> None:
        """Take one figure of a sweep."""
        point = self._points.setdefault((identity, value.nbytes), Point())
        if point.run != sweep.run:
            point.run, point.line = sweep.run, point.turn()[2] if point.turn else None
        if point.line:
            _append(point.line, value)
            return
        line = point.line = self._line(sweep, value)
        point.launches.append(line)
        if len(point.launches) == MOST_LAUNCHES:
            sinks = [(each.seconds[0], each.evidence["rows"], each) for each in point.launches]
            point.turn = cycle(sinks).__next__
        self.lines.append(line)
        self._facts[id(line)] = {**sweep.facts, "mode": sweep.mode}

    def turn(self, identity: int, nbytes: int) -> Callable[[], Turn] | None:
        """Return what gives the launches of a point by turns; None for one that has not all, to be joined only."""
        point = self._points.get((identity, nbytes))
        return point.turn if point else None

    def finish(self) -> list[Line]:
        """Return the lines, their points told apart where one point was measured in several ways."""
        tell_apart(self.lines, lambda line: self._facts[id(line)])
        return self.lines

    def _line(self, sweep: Sweep, value: Value) -> Line:
        op = sweep.op
        moved, rule = _moved(sweep, value.nbytes)
        evidence = {**sweep.evidence, "columns": self.columns, "rows": [f"line {value.number}: {value.printed}"]}
        chosen = sweep.tuning.get((op, value.nbytes))
        line = Line(
            probe="allreduce",
            source="",
            point={**sweep.point, "nbytes": value.nbytes},
            quantity=self.quantity,
            mode=sweep.mode,
            nbytes=value.nbytes,
            moved=moved,
            moved_rule=rule,
            seconds=[[value.seconds]],
            verified=value.verified,
            path=sweep.path,
            proven=sweep.proven,
            evidence={**evidence, "tuning": chosen} if chosen else evidence,
            notes=list(sweep.notes),
            aggregate=sweep.aggregate,
        )
        if value.reason:
            line.status, line.reason = _status(value), value.reason
        return line


def _status(value: Value) -> str:
    return "failed" if value.verified is False else "skipped" if value.skipped else "suspect"


def _moved(sweep: Sweep, nbytes: int) -> tuple[int, str]:
    """Return the bus bytes and their rule; by the log's own busbw where the ranks are unknown, else none."""
    op, ranks = sweep.op, sweep.point.get("ranks")
    if rounds(op) is not None and (ranks or rounds(op) == 0):
        return moved_of(op, nbytes, ranks or 1)
    if sweep.ratio:
        return max(round(nbytes * sweep.ratio), 0), "bus bytes: nbytes * busbw / algbw as printed"
    return 0, ""


def _append(line: Line, value: Value) -> None:
    line.seconds[0].append(value.seconds)
    line.evidence["rows"].append(f"line {value.number}: {value.printed}")
    if value.reason and line.verified is not False:
        line.verified = value.verified
        line.status, line.reason = _status(value), value.reason
