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

from iobench.fit import between
from iobench.fit.between import nonnegative

MOST = 5
_SEARCHED, _LEFT_OUT = 400, 64  # sizes that are searched for breaks, and with one left out
LEAST = 3  # sizes in a stretch: two parameters always fit two points
_EACH = 2 + 3  # parameters of one more stretch: a and B, and the break that counts as three
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
    kept = _thinned(len(sizes), _SEARCHED)
    rows = np.ascontiguousarray(seconds[:, kept], dtype=float)
    starts, rest = _cut(sizes[kept], rows, weights[kept], pieces, False)
    cuts = [Cut(tuple(int(kept[start]) for start in _used(row)), float(m)) for row, m in zip(starts, rest, strict=True)]
    if len(kept) == len(sizes):
        return cuts
    return [given(sizes, row, weights, cut.starts) for row, cut in zip(seconds, cuts, strict=True)]


def _thinned(count: int, most: int) -> np.ndarray:
    """Return ``most`` indices spread over ``count``, all of them where there are no more."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))


def left_out(sizes: np.ndarray, seconds: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the relative error at each inner size of one curve, by the best cut of all the others.

    Of more than ``_LEFT_OUT`` sizes only so many, spread over the curve, are kept for this: each is a search.
    """
    kept = _thinned(len(sizes), _LEFT_OUT)
    sizes, seconds, weights = sizes[kept], seconds[kept], weights[kept]
    count = len(sizes)
    if count < 3:
        return np.empty(0)
    starts, _ = _cut(sizes, np.repeat(seconds[None, :], count - 2, axis=0), weights, 0, True)
    others = between.others(count)
    stretch = _holding(starts, sizes[others], sizes[1:-1])
    known, times = sizes[others] / sizes[1:-1, None], seconds[others] / seconds.min()
    weight = np.where(stretch, weights[others], 0.0)
    fixed, growing = 1 / times, known / times
    parts = (fixed * fixed, fixed * growing, growing * growing, fixed, growing)
    a, rate = nonnegative(*(np.einsum("rk,rk->r", part, weight) for part in parts))
    return np.asarray(np.abs((a + rate) * seconds.min() / seconds[1:-1] - 1))


def _holding(starts: np.ndarray, known: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return which of the ``known`` sizes [row][size] are in the stretch that holds ``wanted`` [row]."""
    row, begins = np.arange(len(starts))[:, None], starts > 0
    edges = np.sqrt(known[row, np.maximum(starts - 1, 0)] * known[row, np.maximum(starts, 0)])
    beyond = wanted[:, None] >= edges
    first = np.where(begins & beyond, starts, 0).max(axis=1, keepdims=True)
    end = np.where(begins & ~beyond, starts, known.shape[1]).min(axis=1, keepdims=True)
    at = np.arange(known.shape[1])
    return np.asarray((at >= first) & (at < end))


def _cut(
    sizes: np.ndarray, rows: np.ndarray, weights: np.ndarray, pieces: int, leave_out: bool
) -> tuple[np.ndarray, np.ndarray]:
    from iobench.fit.cutting import cut_rows  # numba takes its time to be imported

    count = len(sizes)
    most = pieces or max(1, min(MOST, count // LEAST))
    starts, rest = np.empty((len(rows), most), dtype=np.int64), np.empty(len(rows))
    room = np.empty((count, count)), np.empty((most, count)), np.empty((most, count), dtype=np.int64)
    floor = _FLOOR**2
    cut_rows(sizes, rows, weights, pieces, LEAST, float(_EACH), floor, leave_out, *room, starts, rest)
    return starts, rest


def _used(row: np.ndarray) -> tuple[int, ...]:
    return tuple(int(start) for start in row if start >= 0)


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
