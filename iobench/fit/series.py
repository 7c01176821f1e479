"""What a kind of model is given, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

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

    ``widening`` is how much too narrow the draws are because there were few launches (bootstrap.widening),
    ``parts`` how many launches, or batches of one, were drawn from. ``weights`` [size] are what each size counts
    for (mean 1), from its own spread. ``launches`` [size][launch] are the medians of each process launch, None
    where the sizes were not all measured by the same ones. ``extra`` holds further regressors [size] by name.
    ``aggregate`` says that the times are means and the like.
    """

    nbytes: np.ndarray
    seconds: np.ndarray
    low: np.ndarray
    high: np.ndarray
    draws: np.ndarray
    widening: float
    weights: np.ndarray
    parts: int = 1
    launches: np.ndarray | None = None
    extra: Mapping[str, np.ndarray] = field(default_factory=dict)
    aggregate: str = ""


@dataclass(frozen=True)
class Batch:
    """Many series of one shape, none with further regressors: the arrays of ``Series`` with one more axis in front."""

    nbytes: np.ndarray
    seconds: np.ndarray
    low: np.ndarray
    high: np.ndarray
    draws: np.ndarray
    widening: float

    @classmethod
    def of(cls, series: Series) -> Batch:
        """Return one series as a batch."""
        one = series
        rows = one.nbytes[None], one.seconds[None], one.low[None], one.high[None], one.draws[None]
        return cls(*rows, one.widening)


@dataclass(frozen=True)
class Estimate:
    """A kind's answer; ``error`` is its leave-one-size-out error, NaN where there are too few sizes.

    ``steps`` are the sizes at which a log says that something else takes over: nothing interpolates across.
    """

    parameters: dict[str, Parameter]
    error: float
    findings: list[str] = field(default_factory=list)
    steps: tuple[int, ...] = ()


def _one_region(nbytes: int, options: Mapping[str, Any]) -> str:
    del nbytes, options
    return ""


@dataclass(frozen=True)
class Kind:
    """One kind of model.

    ``least`` is how many sizes it needs. ``estimate(series, options)`` fits it; ``options`` lists the names
    it takes. ``curve(parameters, nbytes, **extra)`` is the formula in seconds; a kind without one returns 1.0.
    ``extras`` are the regressors beside the size that every point must have. ``predicts`` is how, between measured
    sizes: from the "neighbours" (fit.between), by the "ratio" of their times to the formula, or by the "formula".
    ``axis`` is what "nbytes" holds: bytes of a message, bytes that a working set spans ("span": size over time is no
    rate), or bytes/s where a latency depends on the load.
    ``estimates(batch)`` fits many series of one shape at once, to what ``estimate`` gives for each; None where a
    kind cannot. ``region(nbytes, options)`` names the part of the model that a size supports, ``region_least`` how many
    sizes each part needs: below that, disturbed measurements are better than none. ``more`` is how to measure more.
    """

    name: str
    formula: str
    least: int
    estimate: Callable[[Series, Mapping[str, Any]], Estimate]
    curve: Callable[..., float]
    options: tuple[str, ...] = ()
    region: Callable[[int, Mapping[str, Any]], str] = _one_region
    region_least: int = 0
    extras: tuple[str, ...] = ()
    predicts: Literal["ratio", "neighbours", "formula"] = "ratio"
    axis: Literal["bytes", "span", "bytes/s"] = "bytes"
    estimates: Callable[[Batch], list[Estimate]] | None = None
    more: str = "-a nbytes=8:64M"
