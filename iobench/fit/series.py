"""What a kind of model is given, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Parameter:
    """A parameter and its 95 % interval in ``unit`` (s, bytes/s, bytes); infinite where it has no bound."""

    value: float
    low: float
    high: float
    unit: str


@dataclass(frozen=True)
class Series:
    """Measured sizes in rising order: median seconds, their intervals, bootstrap medians [size][draw].

    ``widening`` is how much too narrow the draws are because there were few launches (bootstrap.widening).
    """

    nbytes: np.ndarray
    seconds: np.ndarray
    low: np.ndarray
    high: np.ndarray
    draws: np.ndarray
    widening: float


@dataclass(frozen=True)
class Estimate:
    """A kind's answer; ``error`` is its leave-one-size-out error, NaN where there are too few sizes."""

    parameters: dict[str, Parameter]
    error: float
    findings: list[str] = field(default_factory=list)


def _one_region(nbytes: int, options: Mapping[str, Any]) -> str:
    del nbytes, options
    return ""


@dataclass(frozen=True)
class Kind:
    """One kind of model.

    ``least`` is how many sizes it needs. ``estimate(series, options)`` fits it; ``options`` lists the names
    it takes. ``curve(parameters, nbytes)`` is the formula in seconds; a kind without one returns 1.0.
    ``region(nbytes, options)`` names the part of the model that a size supports, ``region_least`` how many
    sizes each part needs: below that, disturbed measurements are better than none.
    """

    name: str
    formula: str
    least: int
    estimate: Callable[[Series, Mapping[str, Any]], Estimate]
    curve: Callable[[Mapping[str, float], float], float]
    options: tuple[str, ...] = ()
    region: Callable[[int, Mapping[str, Any]], str] = _one_region
    region_least: int = 0
