"""Merges points of one size, from however many runs or launches, and leaves out what cannot be fitted."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from iobench.errors import UserError
from iobench.fit.model import FitPoint


@dataclass
class Merged:
    """One size (and further regressors) with all its launches: seconds per operation, one array for each."""

    nbytes: int
    extra: tuple[tuple[str, Any], ...]
    groups: list[np.ndarray] = field(default_factory=list)
    aggregate: str = ""


def merge(points: Iterable[FitPoint], extras: tuple[str, ...] = ()) -> tuple[list[Merged], list[str]]:
    """Return the points in rising order (a repeated size is one), and sentences on what was left out.

    ``extras`` are the regressors that each point must have. Raises UserError for one that lacks them, and for
    a time that is no positive number.
    """
    merged: dict[tuple[Any, ...], Merged] = {}
    for point in points:
        extra = _extra(point, extras)
        here = merged.setdefault((int(point.nbytes), extra), Merged(int(point.nbytes), extra))
        here.groups += _groups(point)
        here.aggregate = here.aggregate or point.aggregate
    findings = []
    if any(point.nbytes <= 0 for point in merged.values()):
        findings.append("sizes of 0 bytes were left out: they say nothing about the rate")
    empty = sum(not point.groups for point in merged.values() if point.nbytes > 0)
    if empty:
        findings.append(f"{empty} sizes without samples were left out")
    if not _positive([group for point in merged.values() for group in point.groups]):
        bad = next(point.nbytes for point in merged.values() if not _positive(point.groups))
        raise UserError(f"size {bad} holds a time that is no positive number; measure it again")
    kept = [point for point in merged.values() if point.nbytes > 0 and point.groups]
    return sorted(kept, key=lambda point: (point.nbytes, [str(value) for _, value in point.extra])), findings


def _extra(point: FitPoint, extras: tuple[str, ...]) -> tuple[tuple[str, Any], ...]:
    missing = [name for name in extras if name not in point.extra]
    if missing:
        raise UserError(
            f"a point of {point.nbytes} lacks '{missing[0]}': give FitPoint(..., extra={{'{missing[0]}': ...}})"
        )
    return tuple((name, point.extra[name]) for name in extras)


def _groups(point: FitPoint) -> list[np.ndarray]:
    return [np.asarray(group, dtype=float) for group in point.groups if len(group)]


def _positive(groups: list[np.ndarray]) -> bool:
    together = np.concatenate(groups) if groups else np.ones(1)
    # NaN compares as false, and so fails both
    return bool(together.min() > 0 and together.max() < math.inf)
