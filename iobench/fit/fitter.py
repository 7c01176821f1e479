"""Fits one series: checks the points, draws the bootstrap, hands both to the kind of model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from iobench.errors import UserError
from iobench.fit import bootstrap, kinds
from iobench.fit.merge import Merged, merge
from iobench.fit.model import FitPoint, Measured, Model, between_error
from iobench.fit.series import Kind, Series
from iobench.stats import median_interval, median_intervals

_ENOUGH_LAUNCHES = 3
_MISFIT = 0.01  # relative: no formula holds better than this at every size


def fit(
    points: Iterable[FitPoint], kind: str = "hockney", seed: int = 0, draws: int = bootstrap.DRAWS, **options: Any
) -> Model:
    """Fit a model of ``kind`` to ``points`` (seconds per operation at each size).

    The same points, ``seed`` and number of bootstrap ``draws`` give the same model. ``options`` are the kind's
    own: "levels" takes ``edges``, (name, nbytes) of each cache. Sizes of 0 bytes and sizes without samples are
    left out with a finding; aggregates of another tool (FitPoint.aggregate) are said to be such.
    Raises UserError for an unknown kind or option, for times that are no positive numbers and for
    fewer sizes than the kind needs.
    """
    chosen = kinds.get(kind)
    _check_options(chosen, options)
    merged, findings = merge(points, chosen.extras)
    if len(merged) < chosen.least:
        raise UserError(_too_few(len(merged), chosen))
    launches = max(len(point.groups) for point in merged)
    aggregate = next((point.aggregate for point in merged if point.aggregate), "")
    findings += told(launches, aggregate)
    measured = _measured(merged)
    series = _series(merged, measured, seed, draws)
    estimate = chosen.estimate(series, options)
    return Model(
        kind=kind,
        parameters=estimate.parameters,
        valid=(measured[0].nbytes, measured[-1].nbytes),
        error=estimate.error,
        between=between_error(chosen, estimate, measured),
        measured=tuple(measured),
        findings=findings + estimate.findings,
        steps=estimate.steps,
    )


def _too_few(count: int, kind: Kind) -> str:
    noun = "load" if kind.axis == "bytes/s" else "size"
    return (
        f"{count} {noun}{'s' * (count != 1)}: a {kind.name} model needs {kind.least}; measure more, as in {kind.more}"
    )


def told(launches: int, aggregate: str) -> list[str]:
    """Return what the number of launches, or that the times are aggregates, means for the intervals."""
    if aggregate:
        return [
            f"the times are aggregates ({aggregate}): how single operations scatter is unknown, so the intervals rest "
            "on how far the sizes lie from the fitted curve"
        ]
    if launches < _ENOUGH_LAUNCHES:
        count = "1 launch" if launches == 1 else f"{launches} launches"
        return [f"only {count}: the intervals do not hold what differs between processes; run at least three"]
    return []


def _check_options(kind: Kind, options: dict[str, Any]) -> None:
    unknown = [name for name in options if name not in kind.options]
    if unknown:
        takes = ", ".join(kind.options) or "none"
        raise UserError(f"a {kind.name} model has no option '{unknown[0]}'; it takes {takes}")


def _measured(points: list[Merged]) -> list[Measured]:
    medians, lows, highs = _intervals(points)
    return [
        Measured(point.nbytes, float(median), float(low), float(high), dict(point.extra))
        for point, median, low, high in zip(points, medians, lows, highs, strict=True)
    ]


def _intervals(points: list[Merged]) -> Sequence[Sequence[float] | np.ndarray]:
    """Return medians and both ends of their intervals, at once where all points have as many samples."""
    if all(len(point.groups) == 1 and len(point.groups[0]) == 1 for point in points):
        values = [point.groups[0][0] for point in points]
        return values, values, values
    if len({len(point.groups) for point in points}) == 1 and len({len(g) for p in points for g in p.groups}) == 1:
        return median_intervals(np.array([point.groups for point in points]))
    found = [median_interval(point.groups) for point in points]
    return [i.median for i in found], [i.low for i in found], [i.high for i in found]


def _series(points: list[Merged], measured: list[Measured], seed: int, draws: int) -> Series:
    drawn, parts = bootstrap.joint_draws([point.groups for point in points], seed, draws)
    seconds = np.array([point.seconds for point in measured])
    return Series(
        nbytes=np.array([float(point.nbytes) for point in points]),
        seconds=seconds,
        low=np.array([point.low for point in measured]),
        high=np.array([point.high for point in measured]),
        draws=drawn,
        widening=bootstrap.widening(parts),
        weights=_weights(drawn, seconds),
        parts=parts,
        launches=_launches(points),
        extra={name: np.array([point.extra[name] for point in measured]) for name in measured[0].extra},
        aggregate=next((point.aggregate for point in points if point.aggregate), ""),
    )


def _weights(draws: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """Return what each size counts for in a relative fit, mean 1: the less its samples scatter the more.

    A spread of a few launches is itself uncertain, so half of it is that of the series; and no size is so
    exact that the others stop to count (_MISFIT).
    """
    own = draws.std(axis=1) / seconds
    weights = 1 / (_MISFIT**2 + (own**2 + np.median(own) ** 2) / 2)
    return np.asarray(weights / weights.mean())


def _launches(points: list[Merged]) -> np.ndarray | None:
    counts = {len(point.groups) for point in points}
    if len(counts) != 1 or counts == {1}:
        return None
    if len({len(group) for point in points for group in point.groups}) == 1:
        return np.asarray(np.median(np.array([point.groups for point in points]), axis=2))
    return np.array([[np.median(group) for group in point.groups] for point in points])
