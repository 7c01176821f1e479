"""Latency under load: L(u) = L0 + a*u/(1-u) with u = B/Bmax, over the bandwidth B that other traffic takes.

The waiting time of a queue near saturation (M/M/1). What holds the size elsewhere holds bytes/s here. Bmax shows
only where the load comes near it: fewer than two points within 5 % of the highest bandwidth that was reached
leave it without an upper bound. Past saturation bandwidth falls while latency rises; such points are no
function of the load and are left out (seen in loaded-latency curves of host memory).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from iobench.fit.between import nonnegative
from iobench.fit.intervals import bootstrap_half, residual_half
from iobench.fit.series import Estimate, Kind, Parameter, Series
from iobench.units import format_rate

_NEAR = 0.05  # of the highest bandwidth
_SATURATED = 2
_LEAST, _MOST = 1.002, 2.0  # Bmax as a multiple of the highest bandwidth
_BEND = 1.10  # a latency that far above one at higher bandwidth belongs to the collapse
_DRAWS = 60  # each is a search for Bmax
_STEPS, _ZOOMS = 40, 4


def estimate(series: Series, options: Mapping[str, Any]) -> Estimate:
    """Fit L0, a and Bmax to latencies over bandwidth."""
    del options
    keep = ~_collapsed(series.seconds)
    findings = []
    if not keep.all():
        findings.append(
            f"{int((~keep).sum())} of {len(keep)} points lie past saturation (less bandwidth at more latency): left out"
        )
    load, seconds, weights = series.nbytes[keep], series.seconds[keep], series.weights[keep]
    values = _solve(load, seconds, weights)
    count = 1 if np.ptp(series.draws, axis=1).max() == 0 else _DRAWS
    drawn = np.array([_solve(load, times, weights) for times in series.draws[keep].T[:count]])
    parameters = _parameters(series, load, seconds, weights, values, drawn)
    saturated = int((load >= (1 - _NEAR) * load[-1]).sum())
    if saturated < _SATURATED or values[2] >= 0.99 * _MOST * load[-1]:
        limit = parameters["Bmax"]
        parameters["Bmax"] = Parameter(limit.value, float(load[-1]), math.inf, limit.unit)
        findings.append(
            f"Bmax is unbounded: {saturated} point{'s' * (saturated != 1)} within {_NEAR:.0%} of the highest bandwidth "
            f"({format_rate(load[-1])}); add load until it no longer grows ({_SATURATED} such points at least)"
        )
    return Estimate(parameters, _left_out(load, seconds, weights), findings)


def curve(parameters: Mapping[str, float], nbytes: float) -> float:
    """Return the latency in seconds at a load of ``nbytes`` per second; infinite at Bmax and above."""
    used = nbytes / parameters["Bmax"]
    return math.inf if used >= 1 else parameters["L0"] + parameters["a"] * used / (1 - used)


def _collapsed(seconds: np.ndarray) -> np.ndarray:
    """Return which points (by rising bandwidth) have a latency well above that of a point with more bandwidth."""
    beyond = np.append(np.minimum.accumulate(seconds[::-1])[::-1][1:], np.inf)
    out = seconds > _BEND * beyond
    # fewer than the formula has parameters: nothing is left to fit, so nothing is left out
    return np.asarray(out if (~out).sum() >= KIND.least else np.zeros_like(out))


def _solve(load: np.ndarray, seconds: np.ndarray, weights: np.ndarray) -> tuple[float, float, float]:
    """Return L0, a and Bmax of the least relative misfit: a grid over Bmax, then finer ones about its best."""
    low, high = math.log(_LEAST - 1), math.log(_MOST - 1)
    for _ in range(_ZOOMS):
        grid = np.linspace(low, high, _STEPS)
        used = load / (load[-1] * (1 + np.exp(grid[:, None])))
        fixed, growing = 1 / seconds, used / (1 - used) / seconds
        parts = (fixed * fixed @ weights, fixed * growing @ weights, growing * growing @ weights)
        ends = nonnegative(
            *(np.broadcast_to(part, grid.shape) for part in (*parts, fixed @ weights, growing @ weights))
        )
        misfit = (ends[0][:, None] * fixed + ends[1][:, None] * growing - 1) ** 2 @ weights
        best = int(misfit.argmin())
        low, high = grid[max(best - 1, 0)], grid[min(best + 1, _STEPS - 1)]
    return float(ends[0][best]), float(ends[1][best]), float(load[-1] * (1 + math.exp(grid[best])))


def _parameters(
    series: Series,
    load: np.ndarray,
    seconds: np.ndarray,
    weights: np.ndarray,
    values: tuple[float, float, float],
    drawn: np.ndarray,
) -> dict[str, Parameter]:
    freedom = len(load) - len(values)
    errors = _standard_errors(load, seconds, weights, values, freedom)
    out = {}
    for index, (name, unit) in enumerate((("L0", "s"), ("a", "s"), ("Bmax", "bytes/s"))):
        value = values[index]
        half = bootstrap_half(series, drawn[:, index], value, freedom)
        half = max(half, residual_half(errors[index], freedom) if freedom > 0 else 0.0)
        low = max(float(load[-1]) if name == "Bmax" else 0.0, value - half)
        out[name] = Parameter(value, low, value + half, unit)
    return out


def _standard_errors(
    load: np.ndarray, seconds: np.ndarray, weights: np.ndarray, values: tuple[float, float, float], freedom: int
) -> np.ndarray:
    """Return the standard errors of L0, a and Bmax by the scatter about the curve, linearised."""
    if freedom <= 0:
        return np.zeros(3)
    fixed, growing, limit = values
    used = load / limit
    slope = -growing * used / (1 - used) ** 2 / limit
    rows = np.column_stack((np.ones_like(load), used / (1 - used), slope)) / seconds[:, None]
    scale = np.maximum(np.abs(rows).max(axis=0), 1e-300)
    guess = fixed + growing * used / (1 - used)
    variance = float(weights @ (guess / seconds - 1) ** 2) / freedom
    covariance = np.linalg.pinv((rows / scale).T @ (rows / scale * weights[:, None])) * variance
    return np.asarray(np.sqrt(np.maximum(np.diag(covariance), 0)) / scale)


def _left_out(load: np.ndarray, seconds: np.ndarray, weights: np.ndarray) -> float:
    errors = []
    for index in range(1, len(load) - 1):  # the last one shows Bmax: without it nothing is known there
        keep = np.arange(len(load)) != index
        fixed, growing, limit = _solve(load[keep], seconds[keep], weights[keep])
        used = load[index] / limit
        errors.append(abs((fixed + growing * used / (1 - used)) / seconds[index] - 1))
    return float(np.mean(errors)) if errors else math.nan


KIND = Kind(
    "loaded",
    "L = L0 + a*u/(1-u), u = B/Bmax",
    least=5,
    estimate=estimate,
    curve=curve,
    predicts="formula",
    axis="bytes/s",
    more="-a delay=0,64,128,256,1024",
)
