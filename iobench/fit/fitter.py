"""Fits one series: checks the points, draws the bootstrap, hands both to the kind of model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from iobench.errors import UserError
from iobench.fit import bootstrap, kinds
from iobench.fit.model import FitPoint, Measured, Model, between_error
from iobench.fit.series import Kind, Series
from iobench.stats import median_interval

_ENOUGH_LAUNCHES = 3


def fit(points: Iterable[FitPoint], kind: str = "hockney", seed: int = 0, **options: Any) -> Model:
    """Fit a model of ``kind`` to ``points`` (seconds per operation at each size).

    The same points and ``seed`` give the same model. ``options`` are the kind's own: "levels" takes
    ``edges``, (name, nbytes) of each cache. Sizes of 0 bytes and sizes without samples are left out with a
    finding. Raises UserError for an unknown kind or option, for times that are no positive numbers and for
    fewer sizes than the kind needs.
    """
    chosen = kinds.get(kind)
    _check_options(chosen, options)
    merged, findings = _merge(points)
    if len(merged) < chosen.least:
        count = "1 size" if len(merged) == 1 else f"{len(merged)} sizes"
        raise UserError(f"{count}: a {kind} model needs {chosen.least}; measure more, as in -a nbytes=8:64M")
    launches = max(len(groups) for groups in merged.values())
    if launches < _ENOUGH_LAUNCHES:
        count = "1 launch" if launches == 1 else f"{launches} launches"
        findings.append(f"only {count}: the intervals do not hold what differs between processes; run at least three")
    series, measured = _series(merged, seed)
    estimate = chosen.estimate(series, options)
    values = {name: parameter.value for name, parameter in estimate.parameters.items()}
    between = between_error(measured, lambda nbytes: chosen.curve(values, nbytes))
    return Model(
        kind=kind,
        parameters=estimate.parameters,
        valid=(measured[0].nbytes, measured[-1].nbytes),
        error=estimate.error,
        between=between,
        measured=tuple(measured),
        findings=findings + estimate.findings,
    )


def _check_options(kind: Kind, options: dict[str, Any]) -> None:
    unknown = [name for name in options if name not in kind.options]
    if unknown:
        takes = ", ".join(kind.options) or "none"
        raise UserError(f"a {kind.name} model has no option '{unknown[0]}'; it takes {takes}")


def _merge(points: Iterable[FitPoint]) -> tuple[dict[int, list[np.ndarray]], list[str]]:
    """Return size -> groups in rising order (a repeated size is one size), and what was left out."""
    merged: dict[int, list[np.ndarray]] = {}
    for point in points:
        groups = [np.asarray(group, dtype=float) for group in point.groups if len(group)]
        if any(not np.all(np.isfinite(group) & (group > 0)) for group in groups):
            raise UserError(f"size {point.nbytes} holds a time that is no positive number; measure it again")
        merged.setdefault(int(point.nbytes), []).extend(groups)
    findings = []
    if any(nbytes <= 0 for nbytes in merged):
        findings.append("sizes of 0 bytes were left out: they say nothing about the rate")
    empty = sum(not groups for nbytes, groups in merged.items() if nbytes > 0)
    if empty:
        findings.append(f"{empty} sizes without samples were left out")
    kept = {nbytes: merged[nbytes] for nbytes in sorted(merged) if nbytes > 0 and merged[nbytes]}
    return kept, findings


def _series(merged: dict[int, list[np.ndarray]], seed: int) -> tuple[Series, list[Measured]]:
    intervals = [median_interval(groups) for groups in merged.values()]
    measured = [Measured(n, i.median, i.low, i.high) for n, i in zip(merged, intervals, strict=True)]
    draws, parts = bootstrap.joint_draws(list(merged.values()), seed)
    series = Series(
        nbytes=np.array([float(nbytes) for nbytes in merged]),
        seconds=np.array([point.seconds for point in measured]),
        low=np.array([point.low for point in measured]),
        high=np.array([point.high for point in measured]),
        draws=draws,
        widening=bootstrap.widening(parts),
    )
    return series, measured
