"""Piecewise affine curves: T = a_k + S/B_k in each stretch of sizes, jumps between them allowed.

Relative least squares with a >= 0 and 1/B >= 0 in every stretch; the breaks are searched exactly (dynamic
programming, Bellman & Roth 1969) for one stretch up to ``MOST``, their number chosen by the Bayesian
information criterion. There a break counts as three parameters (Hall, Osborn & Sakkas 2013, "Inference on
structural breaks using information criteria"): counted as one, every fifth of 800 synthetic curves was cut
once too often.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from iobench.fit.between import nonnegative

MOST = 5
LEAST = 3  # sizes in a stretch: two parameters always fit two points
_BREAK_COUNTS = 3
_FLOOR = 1e-5  # relative: a misfit below this is rounding, and no reason for another break


@dataclass(frozen=True)
class Cut:
    """One way to cut a curve: ``starts`` are the first indices of its stretches (0 first), ``rss`` the misfit."""

    starts: tuple[int, ...]
    rss: float

    def spans(self, count: int) -> list[tuple[int, int]]:
        """Return (start, end) of each stretch of a curve of ``count`` sizes, the end beyond its last index."""
        return list(zip(self.starts, (*self.starts[1:], count), strict=True))


def solve(sizes: np.ndarray, seconds: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a (s) and 1/B (s per byte) of each row of ``seconds`` [row][size], both >= 0."""
    scale = sizes[-1]
    fixed, growing = 1 / seconds, sizes / scale / seconds
    parts = (fixed * fixed, fixed * growing, growing * growing, fixed, growing)
    a, inverse = nonnegative(*(part @ weights for part in parts))
    return a, inverse / scale


def search(sizes: np.ndarray, seconds: np.ndarray, weights: np.ndarray, pieces: int = 0) -> list[Cut]:
    """Return the best cut of each row of ``seconds`` [row][size] over the same ``sizes``.

    ``pieces`` fixes how many stretches there are; 0 leaves it to the criterion.
    """
    count = len(sizes)
    most = pieces or max(1, min(MOST, count // LEAST))
    misfit = _misfits(sizes, seconds, weights)
    best, origins = [misfit[:, 0, :]], []
    for _ in range(1, most):
        # [row][start of the last stretch][its end]: the best of what comes before, plus that stretch
        before = np.concatenate((np.full((len(seconds), 1), np.inf), best[-1][:, :-1]), axis=1)
        total = before[:, :, None] + misfit
        origins.append(total.argmin(axis=1))
        best.append(total.min(axis=1))
    ends = np.stack([table[:, -1] for table in best])
    if pieces:
        return [_trace(origins, ends, row, most - 1) for row in range(len(seconds))]
    stretches = np.arange(1, most + 1)[:, None]
    floor = count * _FLOOR**2
    # of equal criteria the cut with fewer stretches wins: argmin takes the first
    criterion = count * np.log(np.maximum(ends, floor) / count) + _parameters(stretches) * np.log(count)
    return [_trace(origins, ends, row, int(k)) for row, k in enumerate(criterion.argmin(axis=0))]


def _parameters(pieces: np.ndarray) -> np.ndarray:
    return np.asarray(2 * pieces + _BREAK_COUNTS * (pieces - 1))


def given(sizes: np.ndarray, seconds: np.ndarray, weights: np.ndarray, starts: tuple[int, ...]) -> Cut:
    """Return the cut of one curve with known ``starts``."""
    cut = Cut(starts, 0.0)
    rss = 0.0
    for start, end in cut.spans(len(sizes)):
        piece = slice(start, end)
        a, inverse = solve(sizes[piece], seconds[None, piece], weights[piece])
        residual = 1 - (a + inverse * sizes[piece]) / seconds[piece]
        rss += float(weights[piece] @ residual**2)
    return Cut(starts, rss)


def at(sizes: np.ndarray, seconds: np.ndarray, weights: np.ndarray, cut: Cut, nbytes: float) -> float:
    """Return the seconds that the stretch holding ``nbytes`` gives there."""
    spans = cut.spans(len(sizes))
    last = [math.sqrt(sizes[start - 1] * sizes[start]) for start in cut.starts[1:]]
    piece = slice(*spans[sum(nbytes >= edge for edge in last)])
    (a,), (inverse,) = solve(sizes[piece], seconds[None, piece], weights[piece])
    return float(a + inverse * nbytes)


def _trace(origins: list[np.ndarray], ends: np.ndarray, row: int, extra: int) -> Cut:
    starts: list[int] = []
    last = origins[0].shape[1] - 1 if origins else 0
    for level in range(extra - 1, -1, -1):
        start = int(origins[level][row, last])
        starts.append(start)
        last = start - 1
    return Cut((0, *reversed(starts)), float(ends[extra, row]))


def _misfits(sizes: np.ndarray, seconds: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the least misfit [row][start][end] of one stretch, end included; infinite below LEAST sizes."""
    count = len(sizes)
    start, at = np.arange(count)[:, None], np.arange(count)[None, :]
    inside = np.where(at >= start, weights, 0.0)
    fixed, growing = seconds.min(axis=1, keepdims=True) / seconds, sizes / sizes[-1] / seconds
    growing = growing / growing.max(axis=1, keepdims=True)
    # summed from each start on: differences of sums from the first size would cancel
    pp, pq, qq, p1, q1 = (
        np.cumsum(part[:, None, :] * inside, axis=2)
        for part in (fixed * fixed, fixed * growing, growing * growing, fixed, growing)
    )
    x, y = nonnegative(pp, pq, qq, p1, q1)
    total = np.cumsum(inside, axis=1)
    misfit = np.maximum(total - 2 * (x * p1 + y * q1) + x * x * pp + 2 * x * y * pq + y * y * qq, 0.0)
    long_enough = at - start + 1 >= min(LEAST, count)
    return np.where(long_enough, misfit, np.inf)
