"""Adaptive sampling: warm up until two windows agree, stop when the interval is narrow or time is up.

The probe hands over a closure that holds only the timed operation (``host``), or a function that
times itself and returns durations (``collect``: kernels that read the clock inside, groups of ranks).
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from iobench import stats
from iobench.timing.clock import Clock

TARGET_FRACTION = 0.01  # stop when half the interval is narrower than this part of the median
MIN_SAMPLES = 5
MAX_SAMPLES = 2000
_AGREE_FRACTION = 0.05
_WARMUP_SHARE = 0.25  # of the point's budget
_WINDOW = 5


@dataclass
class Timed:
    """Raw durations in order, seconds per batch of ``ops`` operations: [rank][iteration]."""

    seconds: list[list[float]]
    warmup: list[list[float]]
    ops: int
    stop: str
    notes: list[str] = field(default_factory=list)


@dataclass
class Sampler:
    """Handed to ``measure``: how long to sample, how precisely, and what the launch shares.

    ``budget`` is the seconds this point may take. ``launch`` counts process launches from 0.
    ``shared`` keeps expensive things (rank groups, files) for the whole launch.
    """

    budget: float = 1.0
    target: float = TARGET_FRACTION
    min_samples: int = MIN_SAMPLES
    max_samples: int = MAX_SAMPLES
    launch: int = 0
    scratch: str = ""
    clock: Clock = field(default_factory=Clock)
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _shared: dict[Hashable, Any] = field(default_factory=dict)

    def shared(self, key: Hashable, make: Callable[[], contextlib.AbstractContextManager[Any]]) -> Any:
        """Return what ``make()`` yields on entering; made once per launch, closed when it ends."""
        if key not in self._shared:
            self._shared[key] = self._stack.enter_context(make())
        return self._shared[key]

    def close(self) -> None:
        """Close everything that ``shared`` opened."""
        self._shared.clear()
        self._stack.close()

    def host(self, operation: Callable[[], Any], before: Callable[[], Any] | None = None) -> Timed:
        """Time ``operation`` by the host clock; too short ones are batched so that the clock costs < 1 %.

        ``before`` runs ahead of each sample outside the clock (eviction, rewinding); nothing is batched
        then. The clock's own cost per sample is subtracted nowhere: it is recorded as a note.
        """
        ops = 1 if before else self.clock.batch(operation)
        now = time.perf_counter_ns

        def run(count: int) -> list[float]:
            out = []
            for _ in range(count):
                if before:
                    before()
                start = now()
                for _ in range(ops):
                    operation()
                out.append((now() - start) * 1e-9)
            return out

        timed = self.collect(lambda count: [run(count)], ops=ops)
        if ops > 1:
            timed.notes.append(f"batched: {ops} operations per sample, one is too short for the clock")
        return timed

    def collect(self, take: Callable[[int], Any], ops: int = 1) -> Timed:
        """Call ``take(count)`` -> [rank][count] seconds until the interval is narrow or time is up."""
        start = time.perf_counter()
        warm, per_sample = self._warm_up(take, start)
        kept: list[np.ndarray] = []
        stop = "budget"
        while True:
            done = sum(a.shape[1] for a in kept)
            left = self.budget - (time.perf_counter() - start)
            if done >= self.min_samples and left <= 0:
                break
            if done >= self.max_samples:
                stop = "max_samples"
                break
            count = self._next_count(done, left, per_sample)
            block = _as_ranks(take(count))
            kept.append(block)
            slowest = np.concatenate([a.max(axis=0) for a in kept])
            per_sample = max(float(np.mean(slowest)), 1e-9)
            if len(slowest) >= self.min_samples and stats.median_interval([slowest]).fraction <= self.target:
                stop = "converged"
                break
        return Timed(np.concatenate(kept, axis=1).tolist(), warm, ops, stop)

    def _warm_up(self, take: Callable[[int], Any], start: float) -> tuple[list[list[float]], float]:
        """Run windows until two medians in a row agree or a quarter of the budget is gone."""
        windows = [_as_ranks(take(1))]  # the very first operation alone: it may cost 1,000 times the rest
        count, last = 1, math.inf
        while time.perf_counter() - start < self.budget * _WARMUP_SHARE:
            block = _as_ranks(take(count))
            windows.append(block)
            median = float(np.median(block.max(axis=0)))
            if count >= _WINDOW and abs(median - last) <= _AGREE_FRACTION * last:
                break
            last = median
            count = min(count * 2, 64) if median * count * 8 < self.budget * _WARMUP_SHARE else count
            count = max(count, _WINDOW) if median * _WINDOW * 4 < self.budget * _WARMUP_SHARE else count
        warm = np.concatenate(windows, axis=1)
        return warm.tolist(), max(float(np.median(windows[-1].max(axis=0))), 1e-9)

    def _next_count(self, done: int, left: float, per_sample: float) -> int:
        fits = int(max(left, 0.0) / per_sample)
        wanted = max(self.min_samples, done)  # double what is there each time, so checks cost little
        return max(1, min(wanted, max(fits, self.min_samples - done), self.max_samples - done))


def _as_ranks(block: Any) -> np.ndarray:
    array = np.asarray(block, dtype=float)
    return array.reshape(1, -1) if array.ndim == 1 else array
