"""One measured curve: time over size at one number of ranks and nodes."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Any

from iobench.fit.model import Measured

_SPIKE = 1.5  # a time this far above both neighbours is an outlier: no protocol is slow at one size only


@dataclass(frozen=True)
class Curve:
    """The medians measured with ``ranks`` ranks on ``nodes`` nodes, by rising size."""

    ranks: int
    nodes: int
    measured: tuple[Measured, ...]

    @classmethod
    def of(cls, ranks: int, nodes: int, points: Iterable[Measured]) -> Curve:
        """Return the curve of ``points`` in any order; a size that was measured repeatedly has its median."""
        by_size: dict[int, list[Measured]] = {}
        for point in points:
            by_size.setdefault(point.nbytes, []).append(point)
        return cls(ranks, nodes, tuple(_merged(by_size[nbytes]) for nbytes in sorted(by_size)))

    @property
    def smallest(self) -> int:
        return self.measured[0].nbytes

    @property
    def largest(self) -> int:
        return self.measured[-1].nbytes

    @cached_property
    def spikes(self) -> tuple[int, ...]:
        """Return the sizes whose time stands out above both neighbours."""
        triples = zip(self.measured, self.measured[1:], self.measured[2:], strict=False)
        return tuple(b.nbytes for a, b, c in triples if b.seconds > _SPIKE * max(a.seconds, c.seconds))

    @cached_property
    def _sound(self) -> list[tuple[float, float]]:
        kept = [point for point in self.measured if point.nbytes not in self.spikes]
        return [(math.log(point.nbytes), math.log(point.seconds)) for point in kept]

    def at(self, nbytes: float) -> float:
        """Return seconds at ``nbytes``, straight in log-log between sizes; the end's slope goes on beyond.

        Spikes are left out. Below the smallest size the time stays, above the largest the rate does.
        """
        x = math.log(nbytes)
        points = self._sound
        if x <= points[0][0]:
            return math.exp(points[0][1])
        if x >= points[-1][0]:
            return math.exp(points[-1][1] + x - points[-1][0])
        right = bisect_right(points, (x, math.inf))
        (x0, y0), (x1, y1) = points[right - 1], points[right]
        return math.exp(y0 + (y1 - y0) * (x - x0) / (x1 - x0))

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        points = [
            {"nbytes": point.nbytes, "seconds": point.seconds, "low": point.low, "high": point.high}
            for point in self.measured
        ]
        return {"ranks": self.ranks, "nodes": self.nodes, "measured": points}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Curve:
        """Rebuild from ``to_dict``'s data; KeyError, TypeError or ValueError where it is not such data."""
        points = [
            Measured(_count(one["nbytes"]), _time(one["seconds"]), _time(one["low"]), _time(one["high"]))
            for one in data["measured"]
        ]
        if not points:
            raise ValueError("a curve without sizes")
        return cls.of(_count(data["ranks"]), _count(data["nodes"]), points)


def _merged(points: list[Measured]) -> Measured:
    if len(points) == 1:
        return points[0]
    middle = median(point.seconds for point in points)
    return Measured(points[0].nbytes, middle, min(p.low for p in points), max(p.high for p in points))


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{value!r} is no whole number above 0")
    return value


def _time(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise ValueError(f"{value!r} is no time")
    return float(value)
