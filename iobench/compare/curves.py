"""One series of a run over message sizes, and its time at any size between those measured."""

from __future__ import annotations

import math
import re
import zlib
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from iobench import check
from iobench.check import Verdict
from iobench.errors import UserError
from iobench.fit import FitPoint, Model, bootstrap, fit, kinds
from iobench.record import Record, Run

SIZE_AXIS = "nbytes"
_LEAST_TO_FIT = 4  # below that a model says nothing that straight lines between neighbours don't
_KINDS = ("piecewise",)
_ROUND_TRIP = re.compile(r"\b(half|full|one-way)\b(?:[ -]+(?:of )?(?:the |a )?round[ -]trip)?", re.IGNORECASE)
_COUNTS = re.compile(r"(\d+) process(?:es)? x (\d+) threads? x (\d+) GPUs?")


@dataclass(frozen=True)
class Time:
    """Seconds of one operation; ``low`` and ``high`` None where no interval can be known.

    ``measured`` is False for a value between two measured sizes.
    """

    seconds: float
    low: float | None
    high: float | None
    measured: bool

    @property
    def log_half(self) -> float | None:
        """Half the interval's width of the logarithm, the wider side; None where no interval is known."""
        if self.low is None or self.high is None:
            return None
        return max(math.log(self.seconds / self.low), math.log(self.high / self.seconds))


@dataclass(frozen=True)
class Curve:
    """The records of one series, in rising size; ``letter`` names the run they come from.

    A size of 0 is one that the source doesn't state: such a record is a series of its own.

    ``axes`` are the points' axes without the size, ``library`` the versions that made the numbers, ``shape`` how
    ranks were spread over processes, ``round_trip`` half or full where a latency says which; "" where unknown.
    ``limit`` is the rate of the links in bytes/s where whoever published the curve states it.
    """

    letter: str
    name: str
    run_id: str
    probe: str
    quantity: str
    mode: str
    axes: Mapping[str, Any]
    records: tuple[Record, ...]
    library: Mapping[str, str]
    shape: str
    round_trip: str
    verdicts: Mapping[str, Verdict]
    limit: float | None = None

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        return tuple(record.nbytes for record in self.records)

    @property
    def known(self) -> bool:
        """Tell whether every time has an interval: none does that is a single figure of somebody else."""
        return all(record.time.known for record in self.records)

    @property
    def aggregate(self) -> str:
        return next((record.aggregate for record in self.records if record.aggregate), "")

    def reaches(self, nbytes: int) -> bool:
        """Tell whether ``nbytes`` lies between the least and the largest size measured."""
        return self.sizes[0] <= nbytes <= self.sizes[-1]

    def at(self, nbytes: int) -> Time:
        """Return the time at a size within the measured range; between sizes as the fitted model says."""
        if nbytes in self._by_size:
            found = self._by_size[nbytes].time
            return _time(found.median, found.low, found.high, known=found.known, measured=True)
        if self.model is None:
            middle, low, high = (math.exp(_line((self._logs[0], ends), nbytes)) for ends in self._ends)
            return _time(middle, low, high, known=self.known, measured=False)
        said = self.model.predict(nbytes)
        return _time(said.seconds, said.low, said.high, known=self.known, measured=False)

    def moved_at(self, nbytes: int) -> int:
        """Return the bytes that one operation moved at a measured size, 0 where it is not one."""
        return self._by_size[nbytes].moved if nbytes in self._by_size else 0

    def log_draws(self, nbytes: int) -> np.ndarray:
        """Return bootstrap draws of the logarithm of the time at a size within the range."""
        right = min(max(bisect_right(self.sizes, nbytes), 1), len(self.sizes) - 1)
        left = max(right - 1, 0)
        x0, x1 = (math.log(self.sizes[place]) for place in (left, right))
        share = 0.0 if x1 == x0 else (math.log(nbytes) - x0) / (x1 - x0)
        between = (1 - share) * self._draws[left] + share * self._draws[right]
        bend = math.log(self.at(nbytes).seconds) - _line(self._logs, nbytes)  # what the model adds to a straight line
        return np.asarray(between + bend)

    @cached_property
    def parts(self) -> int:
        """How many launches (or batches of one) the draws rest on."""
        return min(len(bootstrap.units(record.groups)) for record in self.records)

    @cached_property
    def model(self) -> Model | None:
        """The model that guides between sizes; None where too few sizes were measured, or none could be fitted."""
        kind = next((name for name in _KINDS if name in kinds.known()), "")
        if not kind or len(self.records) < _LEAST_TO_FIT:
            return None
        try:
            return fit((FitPoint(record.nbytes, tuple(record.groups)) for record in self.records), kind=kind)
        except UserError:
            return None

    @cached_property
    def _by_size(self) -> dict[int, Record]:
        return {record.nbytes: record for record in self.records}

    @cached_property
    def _logs(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        return tuple(math.log(nbytes) for nbytes in self.sizes), self._ends[0]

    @cached_property
    def _draws(self) -> np.ndarray:
        seed = zlib.crc32(f"{self.letter} {self.probe} {sorted(map(str, self.axes.items()))}".encode())
        draws, _ = bootstrap.joint_draws([record.groups for record in self.records], seed)
        return np.asarray(np.log(draws))

    @cached_property
    def _ends(self) -> list[tuple[float, ...]]:
        """The logarithms of the times, and of both ends of their intervals."""
        times = [record.time for record in self.records]
        return [tuple(math.log(getattr(time, end)) for time in times) for end in ("median", "low", "high")]


def _time(seconds: float, low: float, high: float, known: bool, measured: bool) -> Time:
    return Time(seconds, low, high, measured) if known else Time(seconds, None, None, measured)


def curves_of(run: Run, letter: str, name: str) -> tuple[list[Curve], dict[str, int]]:
    """Return every series of a run's usable records, and how many records each other verdict keeps out."""
    verdicts = check.judge(run)
    groups: dict[tuple[str, ...], list[Record]] = {}
    left_out: dict[str, int] = {}
    for record in run:
        verdict = verdicts[record.key]
        if not verdict.usable or not record.time.low > 0:
            left_out[verdict.status] = left_out.get(verdict.status, 0) + 1
        else:
            axes = repr(sorted((axis, str(value)) for axis, value in record.point.items() if axis != SIZE_AXIS))
            key = (record.probe, record.quantity, record.mode, axes, str(record.nbytes > 0))
            groups.setdefault(key, []).append(record)
    return [_curve(run, letter, name, records, verdicts) for records in groups.values()], left_out


def _curve(run: Run, letter: str, name: str, records: list[Record], verdicts: Mapping[str, Verdict]) -> Curve:
    first = records[0]
    return Curve(
        letter=letter,
        name=name,
        run_id=run.header.run_id,
        probe=first.probe,
        quantity=first.quantity,
        mode=first.mode,
        axes={axis: value for axis, value in first.point.items() if axis != SIZE_AXIS},
        records=tuple(sorted(records, key=lambda record: record.nbytes)),
        library=_library(run, first),
        shape=_shape(first),
        round_trip=_round_trip(first),
        verdicts=verdicts,
        limit=_limit(run),
    )


def _limit(run: Run) -> float | None:
    stated = run.header.request.get("limit_bytes_per_s")
    return stated if isinstance(stated, float) and stated > 0 else None


def _library(run: Run, record: Record) -> dict[str, str]:
    """Return the versions of the libraries that carried the bytes: those the record or the machine's facts name."""
    known: dict[str, str] = {}
    stated = record.first.evidence
    for source in (run.header.machine.get("packages"), stated.get("versions"), stated.get("library"), stated):
        if isinstance(source, dict):
            named = {
                str(name).removesuffix(" library").removesuffix("_version"): value for name, value in source.items()
            }
            known |= {name: str(value).partition("+")[0] for name, value in named.items() if isinstance(value, str)}
    engine = str(record.point.get("engine") or record.point.get("backend") or "")
    wanted = {"gloo": ("torch",), "torch": ("torch", "nccl")}.get(engine, (engine,) if engine else ())
    return {library: known[library] for library in wanted if library in known}


def _shape(record: Record) -> str:
    """Return how ranks were spread over processes, in words that are the same for all sources; "" where unknown."""
    stated = record.point.get("shape") or record.first.evidence.get("shape")
    if not isinstance(stated, str):
        return ""
    counts = _COUNTS.search(stated)
    if not counts:
        return stated
    _, threads, gpus = (int(count) for count in counts.groups())
    return "several GPUs per thread" if gpus > 1 else "one thread per GPU" if threads > 1 else "one process per GPU"


def _round_trip(record: Record) -> str:
    """Return "half" or "full" where a latency's definition says which."""
    if record.quantity != "latency":
        return ""
    for text in (record.first.moved_rule, *record.first.notes):
        found = _ROUND_TRIP.search(text)
        if found:
            return "full" if found[1].lower() == "full" else "half"
    return ""


def _line(logs: tuple[tuple[float, ...], tuple[float, ...]], nbytes: int) -> float:
    return float(np.interp(math.log(nbytes), logs[0], logs[1]))
