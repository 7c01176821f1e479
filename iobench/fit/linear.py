"""Times that are sums of known columns with unknown factors >= 0: relative least squares with intervals.

A column that the ones before it explain is dropped and named, so that a kind can say what is not identifiable.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from iobench.fit.intervals import bootstrap_half, residual_half
from iobench.fit.series import Parameter, Series

_ALIKE = 1e-3  # a column that others explain to this part of its length says nothing of its own


@dataclass(frozen=True)
class Linear:
    """``found`` are the factors by name with intervals, ``dropped`` the columns that others explain."""

    found: dict[str, Parameter]
    dropped: tuple[str, ...]
    error: float


def fit(series: Series, columns: Mapping[str, np.ndarray], units: Mapping[str, str]) -> Linear:
    """Fit T = sum of factor * column to ``series``; an earlier column is kept before a later one like it."""
    kept = _independent(series, columns)
    matrix = np.column_stack([columns[name] for name in kept])
    values = solve(matrix, series.seconds, series.weights)
    drawn = np.array([solve(matrix, times, series.weights) for times in series.draws.T])
    freedom = len(series.seconds) - len(kept)
    errors = _standard_errors(matrix, series, values, freedom)
    found = {}
    for index, name in enumerate(kept):
        half = max(
            bootstrap_half(series, drawn[:, index], values[index], freedom),
            residual_half(errors[index], freedom) if freedom > 0 else 0.0,
        )
        found[name] = Parameter(
            float(values[index]), float(max(0.0, values[index] - half)), float(values[index] + half), units[name]
        )
    dropped = tuple(name for name in columns if name not in kept)
    return Linear(found, dropped, left_out(series, lambda keep: _refit(matrix, series, keep)))


def inverse(parameter: Parameter, unit: str) -> Parameter:
    """Return the parameter's reciprocal with its interval turned round; infinite where it may be zero."""
    low, value, high = (1 / x if x > 0 else math.inf for x in (parameter.high, parameter.value, parameter.low))
    return Parameter(value, low, high, unit)


def solve(matrix: np.ndarray, seconds: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the factors >= 0 that make the sum of weights * ((matrix @ factors)/T - 1)^2 least."""
    root = np.sqrt(weights)
    rows = matrix / seconds[:, None] * root[:, None]
    scale = np.maximum(np.abs(rows).max(axis=0), 1e-300)
    factors, _ = nnls(rows / scale, root, maxiter=200)
    return np.asarray(factors / scale)


def left_out(series: Series, refit: Callable[[np.ndarray], np.ndarray]) -> float:
    """Return the mean error of each point predicted by ``refit(kept)``, which gives seconds at all points."""
    errors = []
    for index in range(len(series.seconds)):
        keep = np.arange(len(series.seconds)) != index
        errors.append(abs(refit(keep)[index] / series.seconds[index] - 1))
    return float(np.mean(errors)) if len(errors) > 2 else math.nan


def _refit(matrix: np.ndarray, series: Series, keep: np.ndarray) -> np.ndarray:
    return np.asarray(matrix @ solve(matrix[keep], series.seconds[keep], series.weights[keep]))


def _independent(series: Series, columns: Mapping[str, np.ndarray]) -> list[str]:
    kept: list[str] = []
    base: list[np.ndarray] = []
    for name, column in columns.items():
        row = column / series.seconds
        length = float(np.linalg.norm(row))
        for other in base:
            row = row - (other @ row) * other
        left = float(np.linalg.norm(row))
        if length > 0 and left > _ALIKE * length:
            kept.append(name)
            base.append(row / left)
    return kept


def _standard_errors(matrix: np.ndarray, series: Series, values: np.ndarray, freedom: int) -> list[float]:
    if freedom <= 0:
        return [0.0] * len(values)
    rows = matrix / series.seconds[:, None]
    scale = np.abs(rows).max(axis=0)
    residual = 1 - rows @ values
    variance = float(series.weights @ residual**2) / freedom
    rows = rows / scale
    covariance = np.linalg.pinv(rows.T @ (rows * series.weights[:, None])) * variance
    return [float(error) for error in np.sqrt(np.maximum(np.diag(covariance), 0)) / scale]
