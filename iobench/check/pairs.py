"""Whether all pairs of GPUs are alike, and which link is the odd one: a matrix of one machine judged by itself.

Pairs that differ in nothing but their two ends are compared by time with the median of all of them. A machine whose
GPUs all hang on the same switches has pairs within 2 %; one lane or link less shows in all pairs of one end, one bad
way in one pair. A pair whose interval reaches back within 2 % is not odd, only noisy; one without an interval (a single
sample, a tool's mean) is named, but fails nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from iobench.record import Record
from iobench.units import MIB, format_point

LIMIT = 0.02
Pair = tuple[str, str]
_AXES = ("gpu", "peer")
_LEAST_PAIRS, _LEAST_NBYTES = 3, MIB  # smaller messages show launches, not links
_NAMED = 6  # pairs named in one sentence


@dataclass(frozen=True)
class Matrix:
    """Pairs at one point: ``excess`` is each pair's time over the median of all, less 1.

    ``nearest`` is what its interval leaves of that at least; pairs without an interval are not in it.
    """

    point: str
    excess: Mapping[Pair, float]
    nearest: Mapping[Pair, float]

    @property
    def odd(self) -> dict[Pair, float]:
        """The pairs that are further than LIMIT from the median, with their whole interval where they have one."""
        return {pair: excess for pair, excess in self.excess.items() if abs(self.nearest.get(pair, excess)) > LIMIT}

    @property
    def slow(self) -> bool:
        """Whether a pair surely takes longer than it may."""
        return any(excess > LIMIT for excess in self.nearest.values())

    @property
    def sentence(self) -> str:
        """All pairs alike, or the odd end, or the odd pairs."""
        count, odd = len(self.excess), self.odd
        if not odd:
            worst = max(map(abs, self.excess.values()))
            noisy = "" if worst <= LIMIT else f", none surely by more than {LIMIT:.0%}"
            return f"{self.point}: all {count} pairs lie within {worst:.1%} of their median{noisy}"
        end = self._end(odd)
        if end:
            among = [excess for pair, excess in odd.items() if end in pair]
            told = f"all its {len(among)} pairs {_differ(among)} the median of {count} pairs"
            return f"{self.point}: GPU {end} is odd: {told}"
        pairs = sorted(odd, key=lambda pair: -abs(odd[pair]))
        told = ", ".join(f"{a} and {b} {_differ([odd[a, b]])}" for a, b in pairs[:_NAMED])
        more = f" and {len(pairs) - _NAMED} more" if len(pairs) > _NAMED else ""
        return f"{self.point}: {len(odd)} of {count} pairs are odd: {told}{more} the median"

    def _end(self, odd: Mapping[Pair, float]) -> str:
        """Return the one end that all odd pairs share where all its pairs are odd, else ""."""
        shared = Counter(end for pair in odd for end in set(pair))
        whole = Counter(end for pair in self.excess for end in set(pair))
        found = [end for end, times in shared.items() if times == len(odd) == whole[end] and times > 1]
        return found[0] if len(found) == 1 else ""


def matrices(records: Iterable[Record]) -> list[Matrix]:
    """Return the matrices of the run's sound points, of three pairs or more, in the order first seen."""
    times: dict[str, dict[Pair, Record]] = {}
    for record in records:
        pair = (str(record.point.get(_AXES[0], "")), str(record.point.get(_AXES[1], "")))
        large = int(record.point.get("nbytes") or 0) >= _LEAST_NBYTES
        if large and all(pair) and record.used and not record.wrong_data and record.median > 0:
            times.setdefault(_without_ends(record), {})[pair] = record
    return [_matrix(point, found) for point, found in times.items() if len(found) >= _LEAST_PAIRS]


def _without_ends(record: Record) -> str:
    rest: dict[str, Any] = {name: value for name, value in record.point.items() if name not in _AXES}
    return f"{record.probe} {format_point(rest)}".strip()


def _matrix(point: str, found: Mapping[Pair, Record]) -> Matrix:
    middle = median(record.median for record in found.values())
    excess = {pair: record.median / middle - 1 for pair, record in found.items()}
    times = {pair: record.time for pair, record in found.items()}
    nearest = {
        pair: max(time.low / middle - 1, 0.0) if excess[pair] > 0 else min(time.high / middle - 1, 0.0)
        for pair, time in times.items()
        if time.known and time.n > 1
    }
    return Matrix(point, excess, nearest)


def _differ(excess: list[float]) -> str:
    worst = max(excess, key=abs)
    return f"take {abs(worst):.1%} {'longer' if worst > 0 else 'less'} than"
