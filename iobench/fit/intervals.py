"""Intervals of fitted parameters: the wider of what the residuals and what the bootstrap say.

The bootstrap (launches, then iterations) sees that a launch is slow at every size; the residuals see that the
formula misses single sizes by more than their samples scatter. With few launches the bootstrap's standard
error is uncertain: Student's t with launches - 1 degrees of freedom, but only where launches do differ as
a whole. Else the sizes stand for independent errors, and their number gives the degrees of freedom.
"""

from __future__ import annotations

from functools import cache
from math import sqrt

import numpy as np
from scipy import special

from iobench.fit.series import Series
from iobench.stats import CONFIDENCE

_SURE = 0.95


def residual_half(error: float, freedom: int) -> float:
    """Return half the interval by a standard ``error`` from residuals of ``freedom`` degrees; infinite for none."""
    return _student(freedom) * error if freedom > 0 else float("inf")


def bootstrap_half(series: Series, drawn: np.ndarray, centre: float, freedom: int) -> float:
    """Return half the interval by the draws of a parameter, for ``freedom`` degrees of the residuals.

    Drawing k launches leaves (k-1)/k of their variance, and drawing iterations inside adds theirs. Where launches
    differ as a whole the first has to be made good; where they do not, both are the same scatter counted twice.
    """
    error = float(np.sqrt(np.mean((drawn - centre) ** 2)))
    if series.launches is not None and launches_differ(series.launches):
        count = series.launches.shape[1]
        return _student(count - 1) * sqrt(count / (count - 1)) * error
    return _student(max(freedom, 1)) * error / sqrt(2 - 1 / series.parts)


def launches_differ(medians: np.ndarray | None) -> bool:
    """Return whether launches [size][launch] differ at all sizes alike (two-way analysis of variance, 95 %)."""
    if medians is None or min(medians.shape) < 2:
        return False
    logs = np.log(medians)
    logs = logs - logs.mean(axis=1, keepdims=True)
    sizes, count = logs.shape
    effect = logs.mean(axis=0)
    left = float(((logs - effect) ** 2).sum()) / ((sizes - 1) * (count - 1))
    between = sizes * float((effect**2).sum()) / (count - 1)
    return bool(between > left * _limit(count - 1, (sizes - 1) * (count - 1)))


@cache
def _student(freedom: int) -> float:
    return float(special.stdtrit(freedom, (1 + CONFIDENCE) / 2))


@cache
def _limit(above: int, below: int) -> float:
    return float(special.fdtri(above, below, _SURE))
