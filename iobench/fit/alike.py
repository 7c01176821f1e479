"""Fits many series of one shape at once, to the models that ``fitter.fit`` gives for each alone.

A fleet's records hold tens of thousands of series; one by one, most of the time goes into calls on small arrays.
Each series keeps draws of its own, so neither their order nor the size of a chunk changes any model.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import repeat

import numpy as np

from iobench.fit import bootstrap, kinds
from iobench.fit.fitter import told
from iobench.fit.model import Measured, Model, neighbours_errors
from iobench.fit.series import Batch
from iobench.stats import median_intervals

CHUNK = 64  # series whose arrays stay in the cache


@dataclass(frozen=True)
class Plain:
    """A series to fit: sizes as measured, seconds per operation [size][launch][iteration], the seed of its draws."""

    nbytes: Sequence[int]
    samples: Sequence[Sequence[Sequence[float]]]
    seed: int
    aggregate: str = ""

    @property
    def shape(self) -> tuple[int, int, int, str]:
        """What series must share to be fitted together: numbers of sizes, launches, iterations; the aggregate."""
        launches = self.samples[0]
        return len(self.nbytes), len(launches), len(launches[0]), self.aggregate


def plain(
    nbytes: Sequence[int], samples: Sequence[Sequence[Sequence[float]]], seed: int, aggregates: Iterable[str]
) -> Plain | None:
    """Return the series where each of its sizes, all different, has as many launches and iterations; else None."""
    said = set(aggregates)
    widths = {tuple(map(len, launches)) for launches in samples}
    if len(said) != 1 or len(widths) != 1 or len(set(nbytes)) != len(nbytes) or min(nbytes) <= 0:
        return None
    width = widths.pop()
    if len(set(width)) != 1 or not width[0] or not all(_positive(row) for launches in samples for row in launches):
        return None
    return Plain(nbytes, samples, seed, said.pop())


def _positive(row: Sequence[float]) -> bool:
    return min(row) > 0 and sum(row) < math.inf  # a sum with NaN in it is less than nothing


def suits(kind: str, sizes: int) -> bool:
    """Return whether many series of this kind, of so many sizes, can be fitted at once."""
    chosen = kinds.get(kind)
    return chosen.estimates is not None and not chosen.extras and sizes >= chosen.least


def fit_alike(kind: str, series: Sequence[Plain], draws: int) -> list[Model]:
    """Return the model of each of ``series``, all of one shape; a chunk on each CPU at a time."""
    chunks = [series[first : first + CHUNK] for first in range(0, len(series), CHUNK)]
    made: Iterator[list[Model]] = map(partial(_fit, kind), chunks, repeat(draws))
    if len(chunks) > 1:
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:  # NumPy lets others run while it computes
            made = iter(list(pool.map(partial(_fit, kind), chunks, repeat(draws))))
    return [model for models in made for model in models]


def _fit(kind: str, series: Sequence[Plain], draws: int) -> list[Model]:
    estimates = kinds.get(kind).estimates
    assert estimates is not None
    sizes, batch = _batch(series, draws)
    between = neighbours_errors(batch.nbytes, batch.seconds).tolist()
    findings = told(len(series[0].samples[0]), series[0].aggregate)
    return [
        Model(kind, found.parameters, (points[0].nbytes, points[-1].nbytes), found.error, missed, points,
              findings + found.findings, found.steps)
        for found, missed, points in zip(estimates(batch), between, _points(sizes, batch), strict=True)
    ]  # fmt: skip


def _batch(series: Sequence[Plain], draws: int) -> tuple[np.ndarray, Batch]:
    """Return the sizes [series][size] in rising order as integers, and what a kind fits."""
    sizes = np.array([one.nbytes for one in series], dtype=np.int64)
    samples = np.array([one.samples for one in series], dtype=float)
    order = np.argsort(sizes, axis=1)
    sizes = np.take_along_axis(sizes, order, axis=1)
    samples = np.take_along_axis(samples, order[:, :, None, None], axis=1)
    middle, low, high = (
        np.reshape(row, sizes.shape) for row in median_intervals(samples.reshape(-1, *samples.shape[2:]))
    )
    drawn, parts = bootstrap.batch_draws(samples, [one.seed for one in series], draws)
    return sizes, Batch(sizes.astype(float), middle, low, high, drawn, bootstrap.widening(parts))


def _points(sizes: np.ndarray, batch: Batch) -> list[tuple[Measured, ...]]:
    columns = (column.tolist() for column in (sizes, batch.seconds, batch.low, batch.high))
    return [tuple(map(Measured, *rows)) for rows in zip(*columns, strict=True)]
