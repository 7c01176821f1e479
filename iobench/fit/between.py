"""Predicts between measured sizes: two local curves through the neighbours, blended.

One is a local a + S/B of relative least squares with a >= 0 and 1/B >= 0, weighted towards the size asked for:
it follows two neighbours exactly where the time grows, and cannot follow a spike downwards or a growth faster
than the size. The other is Akima's curve (J. ACM 17, 1970) over size, through knots drawn a third of the way
to what their own neighbours say: one noisy median then counts a third less. Their geometric mean, two parts
to one, misses left-out sizes of published collectives less than any straight line (`make bench-fit`).

Every function works on rows: [row][knot] sizes and seconds, one size asked for per row, so that leaving each
size out in turn is one call.
"""

from __future__ import annotations

from functools import cache

import numpy as np

_WIDTH = 0.3  # of the gap around the size asked for, in log(size): the local fit's Gaussian
_LOCAL = 2 / 3  # the local fit's part of the blend
_DRAWN = 1 / 3  # how far a knot is drawn to the line between its neighbours
_NEAREST = 8  # knots on each side that can have a say
_CLOSE = 0.25  # of a gap: nearer to a measured size its own median takes over
_WILD = 4.0  # Akima's curve may not leave the neighbours by more than this factor
_TINY = 1e-12


def predict(sizes: np.ndarray, seconds: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return the seconds expected at ``wanted`` [row] from knots [row][knot] in rising order, at least two.

    Inside the knots only; at a knot exactly its own seconds.
    """
    left = _interval(sizes, wanted)
    smooth = _blend(sizes, seconds, wanted, left)
    return np.asarray(smooth * np.exp(_own(sizes, seconds, wanted, left)))


def left_out(sizes: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """Return the relative errors [row][knot - 2] of predicting each inner size from all the others."""
    rows, count = sizes.shape
    if count < 3:
        return np.empty((rows, 0))
    inner = np.arange(1, count - 1)
    # what lies further away has no say: a local fit, and a curve through three knots on each side
    near = others(count)
    near = np.take_along_axis(near, _window(count), axis=1)
    shape = (rows * len(inner), near.shape[1])
    wanted, truth = sizes[:, inner].ravel(), seconds[:, inner].ravel()
    guess = _blend(sizes[:, near].reshape(shape), seconds[:, near].reshape(shape), wanted)
    errors: np.ndarray = np.abs(guess / truth - 1).reshape(rows, len(inner))
    return errors


@cache
def _window(count: int) -> np.ndarray:
    """Return the places [inner index - 1][...] of the nearest among all sizes but one."""
    width = min(count - 1, 2 * _NEAREST)
    first = np.clip(np.arange(1, count - 1) - _NEAREST, 0, count - 1 - width)
    return np.asarray(first[:, None] + np.arange(width))


@cache
def others(count: int) -> np.ndarray:
    """Return the indices [inner index - 1][...] of all sizes but one, for each inner size of ``count``."""
    rows, columns = np.arange(1, count - 1)[:, None], np.arange(count - 1)
    out = np.where(columns < rows, columns, columns + 1)
    out.flags.writeable = False
    return out


def _interval(sizes: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return the index [row] of the knot left of ``wanted``."""
    return np.asarray(np.clip((sizes <= wanted[:, None]).sum(axis=1) - 1, 0, sizes.shape[1] - 2))


def _blend(sizes: np.ndarray, seconds: np.ndarray, wanted: np.ndarray, left: np.ndarray | None = None) -> np.ndarray:
    left = _interval(sizes, wanted) if left is None else left
    local = _local(sizes, seconds, wanted, left)
    curved = _akima(sizes, _drawn(sizes, seconds), wanted, left)
    out: np.ndarray = np.exp(_LOCAL * np.log(local) + (1 - _LOCAL) * np.log(curved))
    return out


def _local(sizes: np.ndarray, seconds: np.ndarray, wanted: np.ndarray, left: np.ndarray) -> np.ndarray:
    """Return a + S/B at ``wanted`` of the fit weighted towards it."""
    row = np.arange(len(sizes))
    gap = np.log(sizes[row, left + 1] / sizes[row, left])
    far = (np.log(sizes / wanted[:, None]) / (_WIDTH * gap[:, None])) ** 2
    weight = np.exp(-(far - far.min(axis=1, keepdims=True)) / 2)
    fixed, growing = 1 / seconds, sizes / wanted[:, None] / seconds
    a, inverse = nonnegative(*(np.einsum("rk,rk->r", weight, part) for part in _products(fixed, growing)))
    return np.asarray(a + inverse)


def _products(fixed: np.ndarray, growing: np.ndarray) -> tuple[np.ndarray, ...]:
    return fixed * fixed, fixed * growing, growing * growing, fixed, growing


def nonnegative(
    pp: np.ndarray, pq: np.ndarray, qq: np.ndarray, p1: np.ndarray, q1: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return x, y >= 0 that make the sum of (1 - x*p - y*q)^2 least, from the sums of products of p, q and 1."""
    det = pp * qq - pq * pq
    sound = det > _TINY * pp * qq
    safe = np.where(sound, det, 1.0)
    x, y = (p1 * qq - q1 * pq) / safe, (q1 * pp - p1 * pq) / safe
    inside = sound & (x >= 0) & (y >= 0)
    # at the edge one of the two is zero: that which explains more alone stays
    p_alone, q_alone = p1 / np.maximum(pp, 1e-300), q1 / np.maximum(qq, 1e-300)
    p_better = p1 * p_alone >= q1 * q_alone
    return (
        np.where(inside, x, np.where(p_better, p_alone, 0.0)),
        np.where(inside, y, np.where(p_better, 0.0, q_alone)),
    )


def _drawn(sizes: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """Return the knots' seconds, inner ones drawn towards the line between their neighbours."""
    share = (sizes[:, 1:-1] - sizes[:, :-2]) / (sizes[:, 2:] - sizes[:, :-2])
    line = (1 - share) * seconds[:, :-2] + share * seconds[:, 2:]
    out = seconds.copy()
    out[:, 1:-1] = seconds[:, 1:-1] ** (1 - _DRAWN) * line**_DRAWN
    return out


def _akima(sizes: np.ndarray, seconds: np.ndarray, wanted: np.ndarray, left: np.ndarray) -> np.ndarray:
    row = np.arange(len(sizes))
    slope = _five_slopes(sizes, seconds, left)
    start, end = _knot_slope(slope[:, 0:4]), _knot_slope(slope[:, 1:5])
    width = sizes[row, left + 1] - sizes[row, left]
    here = (wanted - sizes[row, left]) / width
    low, high = seconds[row, left], seconds[row, left + 1]
    middle = slope[:, 2]
    cubic = low + width * here * (start + here * (3 * middle - 2 * start - end + here * (start + end - 2 * middle)))
    return np.asarray(np.clip(cubic, np.minimum(low, high) / _WILD, np.maximum(low, high) * _WILD))


def _five_slopes(sizes: np.ndarray, seconds: np.ndarray, left: np.ndarray) -> np.ndarray:
    """Return the slopes [row][5] of the interval after ``left`` and of two on each side, extrapolated at the ends."""
    inner = np.diff(seconds, axis=1) / np.diff(sizes, axis=1)
    near, far = inner[:, :1], inner[:, -1:]
    before, after = (near - inner[:, 1:2], far - inner[:, -2:-1]) if inner.shape[1] > 1 else (0 * near, 0 * far)
    padded = np.hstack((near + 2 * before, near + before, inner, far + after, far + 2 * after))
    return np.take_along_axis(padded, left[:, None] + np.arange(5), axis=1)


def _knot_slope(slope: np.ndarray) -> np.ndarray:
    """Return the slope [row] at the knot between the middle two of four slopes."""
    before, after = np.abs(slope[:, 1] - slope[:, 0]), np.abs(slope[:, 3] - slope[:, 2])
    total = before + after
    flat = total <= 1e-9 * np.abs(slope).max(axis=1)
    share = np.where(flat, 0.5, before / np.where(flat, 1.0, total))
    return np.asarray((1 - share) * slope[:, 1] + share * slope[:, 2])


def _own(sizes: np.ndarray, seconds: np.ndarray, wanted: np.ndarray, left: np.ndarray) -> np.ndarray:
    """Return the log correction [row] that makes a measured size give its own median."""
    row = np.arange(len(sizes))
    share = np.log(wanted / sizes[row, left]) / np.log(sizes[row, left + 1] / sizes[row, left])
    out = np.zeros(len(sizes))
    for knot, far in ((left, share), (left + 1, 1 - share)):
        nearness = np.clip(1 - far / _CLOSE, 0.0, 1.0) ** 2
        at = sizes[row, knot]
        out += nearness * np.log(seconds[row, knot] / _blend(sizes, seconds, at, left))
    return out
