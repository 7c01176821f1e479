"""Statistics of raw samples: median with a confidence interval, tails that n allows, nothing else.

Definitions, so that two tools can be compared:
- A *group* is one process launch: a 1-D array of seconds per operation, in the order measured.
- The estimate is the median over groups of each group's median (one group: its median).
- The interval is the wider of (a) the distribution-free interval of the median from order statistics
  of all samples (binomial, Conover 1999, ch. 3) and (b) Student's t on the log of the group medians,
  taken as an interval of repeatability (ISO 5725): it holds the median that a second run of as many
  launches would give, so the variance of this run's mean and that of a median of k launches add up
  (pi/2 / (k + pi/2 - 1) of the launches' variance, Kenney & Keeping 1962). That is what a reader wants
  who runs again and compares; it is wider than an interval of this run's own mean.
  One launch is split into consecutive batches first (batch means, Law & Kelton), because neighbouring
  samples are correlated and (a) alone would be too narrow. Two batches are too few: Student's factor of
  one degree of freedom is 12.7, and few batches widen an interval fast (Schmeiser, Operations Research 30
  (1982) 556). Below twelve samples, three batches of four, each sample is therefore taken as one; then the
  interval holds for samples that don't depend on each other (simulated, 1,500 trials: 97 to 99 % of the
  medians for 5 to 11 samples, but 75 to 89 % where neighbours correlate by 0.6: so sampling goes on to twelve
  where there is time, iobench.timing.sampler). Below six samples (a) is the
  whole range, which holds the median in 94 % (five) or fewer cases, and (b) makes the interval.
  How launches differ can't be seen in one launch: its interval is that of this launch only. A single
  sample has no interval at all.
- Quantiles are by linear interpolation (NumPy's default); P99 needs 100 samples, P99.9 needs 1,000.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special  # scipy.stats takes four times as long to import, in every worker

CONFIDENCE = 0.95
_BATCHES = 5
_MIN_BATCH = 4
_MIN_BATCHES = 3
_MOST_HALF = 50.0  # of a logarithm: a factor of 5e21 says "unknown" without overflow


@dataclass(frozen=True)
class Interval:
    """A median and its confidence interval, in the unit of the samples.

    ``known`` is False for one value that is an aggregate already: ``low`` and ``high`` are the value itself then
    and say nothing.
    """

    median: float
    low: float
    high: float
    n: int
    groups: int
    known: bool = True

    @property
    def fraction(self) -> float:
        """Half the interval's width as a fraction of the median (0.02 = +-2 %); infinite for one sample."""
        return (self.high - self.low) / 2 / self.median if self.median > 0 and self.n > 1 else float("inf")


@dataclass(frozen=True)
class Tails:
    """Tail quantiles; None where n is too small for the quantile to mean anything."""

    p5: float | None
    p95: float | None
    p99: float | None
    p999: float | None
    n: int


def median_interval(groups: Sequence[np.ndarray], confidence: float = CONFIDENCE) -> Interval:
    """Return the median over ``groups`` with its confidence interval; ValueError without samples."""
    arrays = [np.asarray(g, dtype=float) for g in groups if len(g)]
    if not arrays:
        raise ValueError("no samples: a median needs at least one")
    pooled = np.concatenate(arrays)
    centre = float(np.median([np.median(a) for a in arrays]))
    low_o, high_o = _order_statistics(pooled, confidence)
    low_t, high_t = _log_t(_medians_for_spread(arrays), confidence, repeat=len(arrays) > 1)
    low, high = min(low_o, low_t, centre), max(high_o, high_t, centre)
    return Interval(centre, low, high, len(pooled), len(arrays))


def median_intervals(samples: np.ndarray, confidence: float = CONFIDENCE) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return medians, lower and upper ends [point] of samples [point][group][sample], as ``median_interval`` does."""
    points, groups, count = samples.shape
    if groups == count == 1:
        return samples[:, 0, 0], samples[:, 0, 0], samples[:, 0, 0]
    medians = np.median(samples, axis=2)
    centres = np.median(medians, axis=1)
    ordered = np.sort(samples.reshape(points, groups * count), axis=1)
    k = _rank(groups * count, confidence)
    if groups == 1:
        parts = np.array_split(samples[:, 0, :], _parts(count), axis=1)
        medians = np.stack([np.median(part, axis=1) for part in parts], axis=1)
    low, high = _log_ts(medians, confidence, repeat=groups > 1)
    lows, highs = np.minimum(low, ordered[:, k]), np.maximum(high, ordered[:, -1 - k])
    return centres, np.minimum(lows, centres), np.maximum(highs, centres)


def tails(groups: Sequence[np.ndarray]) -> Tails:
    """Return the tail quantiles of all samples together."""
    pooled = np.concatenate([np.asarray(g, dtype=float) for g in groups])
    n = len(pooled)

    def at(q: float, need: int) -> float | None:
        return float(np.quantile(pooled, q)) if n >= need else None

    return Tails(float(np.quantile(pooled, 0.05)), at(0.95, 20), at(0.99, 100), at(0.999, 1000), n)


def _order_statistics(pooled: np.ndarray, confidence: float) -> tuple[float, float]:
    ordered = np.sort(pooled)
    k = _rank(len(ordered), confidence)
    return float(ordered[k]), float(ordered[-1 - k])


@functools.cache
def _rank(n: int, confidence: float) -> int:
    """Return which order statistic from either end bounds the median of ``n`` samples."""
    k = int(np.searchsorted(special.bdtr(np.arange(n + 1), n, 0.5), (1 - confidence) / 2))
    # With few samples no order statistic reaches the confidence: the whole range is all there is.
    return max(k - 1, 0)


def _medians_for_spread(arrays: list[np.ndarray]) -> np.ndarray:
    if len(arrays) > 1:
        return np.array([np.median(a) for a in arrays])
    return np.array([np.median(batch) for batch in np.array_split(arrays[0], _parts(len(arrays[0])))])


def _parts(count: int) -> int:
    """Return into how many parts the samples of one launch are split: batches, or single samples where they are few."""
    batches = min(_BATCHES, count // _MIN_BATCH)
    return batches if batches >= _MIN_BATCHES else count


def _log_t(medians: np.ndarray, confidence: float, repeat: bool) -> tuple[float, float]:
    k = len(medians)
    if k < 2 or np.any(medians <= 0):
        return float(np.min(medians)), float(np.max(medians))
    logs = np.log(medians)
    variance = 1 / k + (math.pi / 2 / (k + math.pi / 2 - 1) if repeat else 0.0)
    half = special.stdtrit(k - 1, (1 + confidence) / 2) * logs.std(ddof=1) * math.sqrt(variance)
    half = min(half, _MOST_HALF)
    return float(np.exp(logs.mean() - half)), float(np.exp(logs.mean() + half))


def _log_ts(medians: np.ndarray, confidence: float, repeat: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return what ``_log_t`` gives for each row of ``medians`` [point][part], all positive."""
    k = medians.shape[1]
    if k < 2:
        return medians[:, 0], medians[:, 0]
    logs = np.log(medians)
    variance = 1 / k + (math.pi / 2 / (k + math.pi / 2 - 1) if repeat else 0.0)
    half = special.stdtrit(k - 1, (1 + confidence) / 2) * logs.std(axis=1, ddof=1) * math.sqrt(variance)
    half = np.minimum(half, _MOST_HALF)
    return np.exp(logs.mean(axis=1) - half), np.exp(logs.mean(axis=1) + half)
