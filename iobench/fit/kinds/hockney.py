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

from iobench.fit import between, bootstrap, segments, shape
from iobench.fit.series import Estimate, Kind, Parameter, Series
from iobench.units import format_size

_POOR = 0.20


def estimate(series: Series, options: Mapping[str, Any]) -> Estimate:
    """Fit a and B to ``series``."""
    del options
    (a,), (inverse,) = _solve(series.nbytes, series.seconds[None, :])
    drawn = np.column_stack(_solve(series.nbytes, series.draws.T))
    parameters = _parameters(float(a), float(inverse), drawn, series.widening)
    error = _leave_one_out(series)
    return Estimate(parameters, error, _findings(series, parameters, error))


def curve(parameters: Mapping[str, float], nbytes: float) -> float:
    """Return T = a + S/B in seconds."""
    return parameters["a"] + nbytes / parameters["B"]


def _solve(nbytes: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a (s) and 1/B (s per byte), both >= 0, of least sum of ((a + S/B)/T - 1)^2 for each row of times."""
    return segments.solve(nbytes, rows, np.ones(len(nbytes)))


def _parameters(a: float, inverse: float, drawn: np.ndarray, widening: float) -> dict[str, Parameter]:
    low, high = _interval(drawn[:, 0], a, widening)
    fastest, slowest = _interval(drawn[:, 1], inverse, widening)
    n_half = _over(a, inverse)
    if fastest > 0:
        halves = _interval(drawn[:, 0] / np.maximum(drawn[:, 1], fastest), n_half, widening)
    else:  # B has no upper bound, and so n_half has none
        halves = (min(_over(low, slowest), n_half), math.inf)
    return {
        "a": Parameter(a, low, high, unit="s"),
        "B": Parameter(_over(1.0, inverse), _over(1.0, slowest), _over(1.0, fastest), unit="bytes/s"),
        "n_half": Parameter(n_half, *halves, unit="bytes"),
    }


def _interval(drawn: np.ndarray, centre: float, widening: float) -> tuple[float, float]:
    half = bootstrap.half_width(drawn, centre, widening)
    return max(0.0, centre - half), centre + half


def _over(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator > 0 else math.inf


def _leave_one_out(series: Series) -> float:
    """Return the mean error at inner sizes, each predicted by a fit to the others."""
    others = between.others(len(series.nbytes))
    sizes, times = series.nbytes[others], series.seconds[others]
    unit = series.nbytes[-1]
    fixed, growing = 1 / times, sizes / unit / times
    products = (fixed * fixed, fixed * growing, growing * growing, fixed, growing)
    a, inverse = between.nonnegative(*(product.sum(axis=1) for product in products))
    errors = np.abs((a + inverse * series.nbytes[1:-1] / unit) / series.seconds[1:-1] - 1)
    return float(errors.mean()) if len(errors) else math.nan


def _findings(series: Series, parameters: dict[str, Parameter], error: float) -> list[str]:
    out = shape.breaks(series, _BREAK_ADVICE)
    if error > _POOR:
        out.append(
            f"poor fit: left-out sizes are missed by {error * 100:.0f} % on average; read a and B as a summary only, "
            "and predict between the measured sizes"
        )
    smallest, largest = format_size(int(series.nbytes[0])), format_size(int(series.nbytes[-1]))
    a, rate, n_half = (parameters[name].value for name in ("a", "B", "n_half"))
    if a == 0:
        out.append(f"a = 0: no fixed cost shows from {smallest} on; measure smaller sizes to see it")
    elif n_half < series.nbytes[0]:
        out.append(f"a is extrapolated: {smallest} is above n_half = {format_size(int(n_half))}; measure smaller sizes")
    if math.isinf(rate):
        out.append(f"B has no bound: the time does not grow up to {largest}; measure larger sizes to see it")
    elif n_half > series.nbytes[-1]:
        out.append(f"B is extrapolated: {largest} is below n_half = {format_size(int(n_half))}; measure larger sizes")
    return out


_BREAK_ADVICE = "one a and B cannot describe both sides, so measure sizes in between"

KIND = Kind("hockney", "T = a + S/B", least=4, estimate=estimate, curve=curve, region_least=4, predicts="neighbours")
