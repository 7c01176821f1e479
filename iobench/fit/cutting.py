"""The compiled inside of fit.segments: the least misfit of every stretch, and the best way to cut a curve.

Compiled because every model is fitted once more for each size left out, and a fleet's logs hold a million sizes.
Plain loops throughout: whole-array expressions take numba many times as long to compile.
"""

from __future__ import annotations

import math

import numpy as np

from iobench.kernels.jit import kernel

_TINY = 1e-12


@kernel()
def pair_misfit(pp: float, pq: float, qq: float, p1: float, q1: float, total: float) -> float:
    """Return the least sum of (1 - x*p - y*q)^2 over x, y >= 0, from sums of products of p, q and 1."""
    det = pp * qq - pq * pq
    x = y = -1.0
    if det > _TINY * pp * qq:
        x, y = (p1 * qq - q1 * pq) / det, (q1 * pp - p1 * pq) / det
    if x < 0 or y < 0:  # at the edge one of the two is zero
        if p1 * p1 * qq >= q1 * q1 * pp:
            x, y = p1 / pp, 0.0
        else:
            x, y = 0.0, q1 / qq
    return max(total - 2 * (x * p1 + y * q1) + x * x * pp + 2 * x * y * pq + y * y * qq, 0.0)


@kernel()
def misfits(
    sizes: np.ndarray, seconds: np.ndarray, weights: np.ndarray, skip: int, count: int, least: int, out: np.ndarray
) -> None:
    """Write the least misfit [start][end] of every stretch of ``count`` sizes, infinite below ``least`` of them.

    Size ``skip`` is passed over; indices of ``out`` count without it (-1: none). Summed from each start on:
    differences of sums from the first size would cancel.
    """
    for start in range(count):
        first = start + 1 if 0 <= skip <= start else start
        pp = pq = qq = p1 = q1 = total = 0.0
        for end in range(start, count):
            at = end + 1 if 0 <= skip <= end else end
            p = seconds[first] / seconds[at]
            q = p * sizes[at] / sizes[first]
            pp += weights[at] * p * p
            pq += weights[at] * p * q
            qq += weights[at] * q * q
            p1 += weights[at] * p
            q1 += weights[at] * q
            total += weights[at]
            short = end - start + 1 < min(least, count)
            out[start, end] = math.inf if short else pair_misfit(pp, pq, qq, p1, q1, total)


@kernel()
def tables(misfit: np.ndarray, count: int, top: int, best: np.ndarray, origin: np.ndarray) -> None:
    """Write the misfit [stretches - 1][end] of the best cut of every beginning, and where its last stretch starts."""
    for end in range(count):
        best[0, end] = misfit[0, end]
        origin[0, end] = 0
    for level in range(1, top):
        for end in range(count):
            best[level, end] = math.inf
            origin[level, end] = 0
            for start in range(1, end + 1):
                together = best[level - 1, start - 1] + misfit[start, end]
                if together < best[level, end]:
                    best[level, end] = together
                    origin[level, end] = start


@kernel()
def stretches(best: np.ndarray, count: int, top: int, penalty: float, floor: float) -> int:
    """Return the number of stretches of the least n * log(misfit / n) + penalty * log(n) for each; fewer of equals.

    A mean misfit below ``floor`` (squared, relative) counts as that.
    """
    criterion, chosen = math.inf, 1
    for level in range(top):
        value = count * math.log(max(best[level, count - 1] / count, floor)) + penalty * level * math.log(count)
        if value < criterion:
            criterion, chosen = value, level + 1
    return chosen


@kernel()
def cut_rows(
    sizes: np.ndarray,
    seconds: np.ndarray,
    weights: np.ndarray,
    pieces: int,
    least: int,
    penalty: float,
    floor: float,
    leave_out: bool,
    misfit: np.ndarray,
    best: np.ndarray,
    origin: np.ndarray,
    starts: np.ndarray,
    rest: np.ndarray,
) -> None:
    """Write the first index of each stretch of the best cut of each row to ``starts`` [row], -1 beyond the last.

    There are ``pieces`` of them, or if that is 0 as many as ``stretches`` says; ``rest`` [row] gets the misfit.
    With ``leave_out`` row r is cut without size r + 1. ``misfit``, ``best`` and ``origin`` are room to work in.
    """
    most = starts.shape[1]
    count = len(sizes) - 1 if leave_out else len(sizes)
    top = most if pieces else min(most, max(1, count // least))
    for row in range(len(seconds)):
        misfits(sizes, seconds[row], weights, row + 1 if leave_out else -1, count, least, misfit)
        tables(misfit, count, top, best, origin)
        chosen = pieces if pieces else stretches(best, count, top, penalty, floor)
        starts[row, :] = -1
        starts[row, 0] = 0
        last = count - 1
        rest[row] = best[chosen - 1, last]
        for level in range(chosen - 1, 0, -1):
            starts[row, level] = origin[level, last]
            last = starts[row, level] - 1
