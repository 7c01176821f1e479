"""Hockney's model of a transfer: T = a + S/B, with a fixed cost a and an asymptotic rate B.

R. Hockney, "The communication challenge for MPP", Parallel Computing 20 (1994). Fitted by least squares of
the *relative* error (weights 1/T^2) with a >= 0 and 1/B >= 0: ordinary least squares follows the largest
messages alone and gives an a far from the time of small ones. n_half = a*B is the size at half of B.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from iobench.fit import between, bootstrap, shape
from iobench.fit.intervals import residual_half
from iobench.fit.series import Batch, Estimate, Kind, Parameter, Series
from iobench.units import format_size

_POOR = 0.20
_TINY = 1e-12


def estimate(series: Series, options: Mapping[str, Any]) -> Estimate:
    """Fit a and B to ``series``."""
    del options
    return estimates(Batch.of(series))[0]


def estimates(batch: Batch) -> list[Estimate]:
    """Fit a and B to each series of a batch; no result depends on which others are in it."""
    a, inverse = _solve(batch.nbytes, batch.seconds[:, :, None])
    drawn = _solve(batch.nbytes, batch.draws)
    least = _residual_halves(batch, a[:, 0], inverse[:, 0])
    parameters = _parameters(a[:, 0], inverse[:, 0], *drawn, batch.widening, least)
    errors = _leave_one_out(batch).tolist()
    broken = shape.sentences(batch, _BREAK_ADVICE)
    return [
        Estimate(found, error, [*said, *_findings(ends, found, error)])
        for found, error, said, ends in zip(parameters, errors, broken, batch.nbytes[:, [0, -1]].tolist(), strict=True)
    ]


def curve(parameters: Mapping[str, float], nbytes: float) -> float:
    """Return T = a + S/B in seconds."""
    return parameters["a"] + nbytes / parameters["B"]


def _solve(nbytes: np.ndarray, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a (s) and 1/B (s per byte) [series][draw], both >= 0, for times [series][size][draw].

    They make the sum of ((a + S/B)/T - 1)^2 least.
    """
    unit = nbytes[:, -1]
    fixed = 1 / times
    growing = fixed * (nbytes / unit[:, None])[:, :, None]
    products = (fixed * fixed, fixed * growing, growing * growing, fixed, growing)
    a, inverse = between.nonnegative(*(product.sum(axis=1) for product in products))
    return a, inverse / unit[:, None]


def _residual_halves(batch: Batch, a: np.ndarray, inverse: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return half the intervals of a, 1/B and n_half [series] by how far the sizes lie from the line; 0 for two sizes.

    Single figures have no other; and samples that hardly scatter say nothing of a formula that misses them.
    """
    freedom = batch.nbytes.shape[1] - 2
    if freedom < 1:
        return (np.zeros_like(a),) * 3
    unit = batch.nbytes[:, -1]
    fixed = 1 / batch.seconds
    growing = fixed * batch.nbytes / unit[:, None]
    misfit = fixed * a[:, None] + growing * (inverse * unit)[:, None] - 1
    pp, pq, qq = (np.sum(x * y, axis=1) for x, y in ((fixed, fixed), (fixed, growing), (growing, growing)))
    each = (misfit * misfit).sum(axis=1) / freedom / np.maximum(pp * qq - pq * pq, _TINY * pp * qq)
    of_a, of_inverse, together = each * qq, each * pp / unit**2, each * pq / unit
    rate = np.where(inverse > 0, inverse, 1.0)  # without one n_half has no bound anyway
    half = a / rate
    of_half = (of_a + half**2 * of_inverse + 2 * half * together) / rate**2
    student = residual_half(1.0, freedom)
    return student * np.sqrt(of_a), student * np.sqrt(of_inverse), student * np.sqrt(of_half)


def _parameters(
    a: np.ndarray,
    inverse: np.ndarray,
    a_drawn: np.ndarray,
    inverse_drawn: np.ndarray,
    widening: float,
    least: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> list[dict[str, Parameter]]:
    low, high = _interval(a_drawn, a, widening, least[0])
    fastest, slowest = _interval(inverse_drawn, inverse, widening, least[1])
    n_half = _over(a, inverse)
    bounded = fastest > 0  # else B has no upper bound, and so n_half has none
    halves = a_drawn / np.where(bounded[:, None], np.maximum(inverse_drawn, fastest[:, None]), 1.0)
    half_low, half_high = _interval(halves, np.where(bounded, n_half, 0.0), widening, least[2])
    half_low = np.where(bounded, half_low, np.minimum(_over(low, slowest), n_half))
    half_high = np.where(bounded, half_high, math.inf)
    one = np.ones_like(a)
    columns = (a, low, high, _over(one, inverse), _over(one, slowest), _over(one, fastest), n_half, half_low, half_high)
    return [
        {
            "a": Parameter(row[0], row[1], row[2], "s"),
            "B": Parameter(row[3], row[4], row[5], "bytes/s"),
            "n_half": Parameter(row[6], row[7], row[8], "bytes"),
        }
        for row in np.column_stack(columns).tolist()
    ]


def _interval(
    drawn: np.ndarray, centre: np.ndarray, widening: float, least: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    half = np.maximum(bootstrap.half_widths(drawn, centre, widening), least)
    return np.maximum(0.0, centre - half), centre + half


def _over(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    positive = denominator > 0
    return np.where(positive, numerator / np.where(positive, denominator, 1.0), math.inf)


def _leave_one_out(batch: Batch) -> np.ndarray:
    """Return the mean error [series] at inner sizes, each predicted by a fit to the others; NaN for none."""
    count = batch.nbytes.shape[1]
    if count < 3:
        return np.full(len(batch.nbytes), math.nan)
    others = between.others(count)
    unit = batch.nbytes[:, -1]
    scaled = batch.nbytes / unit[:, None]
    # take lays each row out as one piece whatever the number of series, so that its sum is always the same
    fixed = np.take(1 / batch.seconds, others, axis=1)
    growing = np.take(scaled, others, axis=1) * fixed
    products = (fixed * fixed, fixed * growing, growing * growing, fixed, growing)
    a, inverse = between.nonnegative(*(product.sum(axis=2) for product in products))
    errors: np.ndarray = np.abs((a + inverse * scaled[:, 1:-1]) / batch.seconds[:, 1:-1] - 1)
    return np.asarray(errors.mean(axis=1))


def _findings(ends: tuple[float, float], parameters: Mapping[str, Parameter], error: float) -> list[str]:
    out = []
    if error > _POOR:
        out.append(
            f"poor fit: left-out sizes are missed by {error * 100:.0f} % on average; read a and B as a summary only, "
            "and predict between the measured sizes"
        )
    a, rate, n_half = (parameters[name].value for name in ("a", "B", "n_half"))
    smallest, largest = (format_size(int(end)) for end in ends)
    if a == 0:
        out.append(f"a = 0: no fixed cost shows from {smallest} on; measure smaller sizes to see it")
    elif n_half < ends[0]:
        out.append(f"a is extrapolated: {smallest} is above n_half = {format_size(int(n_half))}; measure smaller sizes")
    if math.isinf(rate):
        out.append(f"B has no bound: the time does not grow up to {largest}; measure larger sizes to see it")
    elif n_half > ends[1]:
        out.append(f"B is extrapolated: {largest} is below n_half = {format_size(int(n_half))}; measure larger sizes")
    return out


_BREAK_ADVICE = "one a and B cannot describe both sides, so measure sizes in between"

KIND = Kind(
    "hockney",
    "T = a + S/B",
    least=4,
    estimate=estimate,
    curve=curve,
    region_least=4,
    predicts="neighbours",
    estimates=estimates,
)
