"""Rules that carry times from measured counts of ranks (or nodes) to another one.

same size   at each size by itself: T = c + h steps(n) + b wire(n) S. Whatever protocol ran at this size is
            taken to run at the new count too.
same chunk  a ring moves S/n per step, so the step's cost is looked up where the measured count moved the same
            chunk: T(n) = c + steps(n)/steps(m) (T(m, S m/n) - c). The protocol is taken to follow the chunk.

same bytes  the second rule between nodes: a tree (and NVLS below it) sends the same bytes whatever the number of
            nodes is, so only hops are added to the largest number measured.

Within a node a library takes the protocol that it believes to be the faster one, so the lower of the first two is
the estimate; between nodes ring and tree bound what is to be expected, and their mean is. How far the two are
apart says how much the answer depends on that choice, and makes the interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import optimize

from iobench.fit.scale.curve import Curve
from iobench.fit.scale.formulas import Axis

_LARGE = 3  # so many of the largest sizes give the bandwidth, so many of the smallest the latency
_SMALL = 5
_STEEP = 0.6  # log-log slope of time over size from which on bandwidth is what one sees
_NEAR = 8
_FAR = 64  # from a size so many times the smallest one on, what the smallest takes is latency beside it
_PRIOR = 0.3  # weight of "the bandwidth is that of the large sizes" beside one measured time


@dataclass(frozen=True)
class Ladder:
    """Curves of rising count along one axis, which all else being equal is all that differs between them.

    ``bulk`` are those whose large sizes show the axis's bandwidth, all of them unless given.
    """

    axis: Axis
    curves: tuple[Curve, ...]
    bulk: tuple[Curve, ...] = ()

    def count(self, curve: Curve) -> int:
        return curve.ranks if self.axis.name == "ranks" else curve.nodes

    @cached_property
    def counts(self) -> list[int]:
        return [self.count(curve) for curve in self.curves]

    @property
    def sizes(self) -> tuple[int, int]:
        """Return the range of sizes that all curves cover."""
        return max(curve.smallest for curve in self.curves), min(curve.largest for curve in self.curves)

    @cached_property
    def seconds_per_byte(self) -> float:
        """Return the seconds that one more wire byte costs at large sizes; 0 where none is large enough to tell."""
        if len(self.common) < 2 or not self._steep(self.common[-2:]):
            return 0.0
        return max(float(np.median([self.seconds_per_wire_byte(size) for size in self.large])), 0.0)

    @property
    def large(self) -> list[int]:
        """Return the few largest sizes, none far below the largest: bandwidth is what they show."""
        return [size for size in self.common if size * _NEAR >= self.common[-1]][-_LARGE:]

    @property
    def small(self) -> list[int]:
        """Return the few smallest sizes, none far above the smallest: latency is what they show."""
        return [size for size in self.common if size <= self.common[0] * 2 * _FAR][:_SMALL]

    def bytes_per_s(self, curve: Curve, nbytes: float) -> float:
        """Return the wire bytes per second of one curve, hops and base apart."""
        count = self.count(curve)
        rest = curve.at(nbytes) - self.base - self.seconds_per_hop * self.axis.steps(count)
        return self.axis.wire(count) * nbytes / max(rest, 1e-12)

    @cached_property
    def seconds_per_hop(self) -> float:
        """Return the seconds that one more step costs at small sizes."""
        return float(np.median([self.terms(size)[1] for size in self.small]))

    @cached_property
    def base(self) -> float:
        """Return the seconds of a collective without any step, at small sizes."""
        return float(np.median([self.terms(size)[0] for size in self.small]))

    def same_size(self, count: int, nbytes: float) -> float:
        """Return seconds at ``count`` by the first rule, through the measured times next to it."""
        terms = self.terms(nbytes)

        def formula(n: int) -> float:
            return terms[0] + terms[1] * self.axis.steps(n) + terms[2] * self.axis.wire(n) * nbytes

        rest = self._blend(count, [curve.at(nbytes) - formula(n) for n, curve in self._pairs])
        return max(formula(count) + rest, 1e-12)

    def same_chunk(self, count: int, nbytes: float) -> float:
        """Return seconds at ``count`` by the second rule, from the measured counts next to it."""
        base = min(self.base, min(curve.at(nbytes * n / count) for n, curve in self._pairs))
        guesses = [
            base + (curve.at(nbytes * n / count) - base) * self.axis.steps(count) / max(self.axis.steps(n), 1e-9)
            for n, curve in self._pairs
        ]
        return max(self._blend(count, guesses), 1e-12)

    def same_bytes(self, count: int, nbytes: float) -> float:
        """Return seconds at ``count`` by the third rule: the nearest measured time, and hops."""
        hop = self.terms(nbytes)[1]
        guesses = [curve.at(nbytes) + hop * (self.axis.steps(count) - self.axis.steps(n)) for n, curve in self._pairs]
        return max(self._blend(count, guesses), 1e-12)

    def estimate(self, count: int, nbytes: float) -> tuple[float, float]:
        """Return the logarithm of the seconds expected at ``count``, and how far the two rules are apart."""
        first = math.log(self.same_size(count, nbytes))
        if self.axis.name == "ranks":
            second = math.log(self.same_chunk(count, nbytes))
            return min(first, second), abs(first - second)
        second = math.log(self.same_bytes(count, nbytes))
        return (first + second) / 2, abs(first - second)

    @cached_property
    def _pairs(self) -> list[tuple[int, Curve]]:
        return [(n, curve) for n, curve in zip(self.counts, self.curves, strict=True) if self.axis.steps(n) > 0]

    @cached_property
    def _smallest_hop(self) -> float:
        steps = np.array([self.axis.steps(n) for n in self.counts])
        return self._without_bytes(steps, np.array([curve.at(self.common[0]) for curve in self.curves]))[1]

    @cached_property
    def common(self) -> list[int]:
        low, high = self.sizes
        sizes = {point.nbytes for curve in self.curves for point in curve.measured if low <= point.nbytes <= high}
        return sorted(sizes) or [low]

    def _blend(self, count: int, values: Sequence[float]) -> float:
        """Return the value of the nearest count, between two counts a mixture of theirs."""
        return float(np.interp(math.log(count), [math.log(n) for n, _ in self._pairs], list(values)))

    def _steep(self, sizes: Sequence[int]) -> bool:
        growth = math.log(sizes[-1] / sizes[0])
        slopes = [math.log(curve.at(sizes[-1]) / curve.at(sizes[0])) / growth for curve in self.bulk or self.curves]
        return float(np.median(slopes)) >= _STEEP

    def seconds_per_wire_byte(self, nbytes: float) -> float:
        """Return how fast time grows with wire bytes from count to count at one size, hops of small sizes apart."""
        curves = self.bulk or self.curves
        wires = [self.axis.wire(self.count(curve)) * nbytes for curve in curves]
        hop = self._smallest_hop if self.common[0] * _FAR <= nbytes else 0.0
        times = [curve.at(nbytes) - hop * self.axis.steps(self.count(curve)) for curve in curves]
        return float(np.polyfit(wires, times, 1)[0]) if max(wires) > min(wires) else 0.0

    def terms(self, nbytes: float) -> tuple[float, float, float]:
        """Return (c, h, b) at one size: least squares in relative error, none negative, b at most as at large sizes.

        Two counts can't tell hops from bytes: what the bandwidth of large sizes explains counts as bytes, the
        rest as hops.
        """
        steps = np.array([self.axis.steps(n) for n in self.counts])
        wires = np.array([self.axis.wire(n) for n in self.counts]) * nbytes
        times = np.array([curve.at(nbytes) for curve in self.curves])
        most = self.seconds_per_byte if nbytes > 0 else 0.0
        if most <= 0 or np.ptp(wires) <= 0:
            return self._without_bytes(steps, times)
        # unknowns in units of the mean time, so that the solver sees numbers near 1
        scale = np.array([times.mean(), times.mean() / max(steps.max(), 1e-9), most])
        rows = np.column_stack([np.ones_like(steps), steps, wires]) * scale / times[:, None]
        prior = np.array([0.0, 0.0, _PRIOR * np.ptp(wires) * most / times.max()])
        found = optimize.lsq_linear(
            np.vstack([rows, prior]), np.append(np.ones_like(times), prior[2]), ([0, 0, 0], [np.inf, np.inf, 1.0])
        )
        c, h, b = found.x * scale
        return float(c), float(h), float(b)

    def _without_bytes(self, steps: np.ndarray, times: np.ndarray) -> tuple[float, float, float]:
        rows = np.column_stack([np.ones_like(steps), steps]) / times[:, None]
        (c, h), _ = optimize.nnls(rows, np.ones_like(times))
        return float(c), float(h), 0.0
