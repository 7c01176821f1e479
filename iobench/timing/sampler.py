"""Adaptive sampling: warm up until two windows agree, stop when the interval is narrow or time is up.

The probe hands over a closure that holds only the timed operation (``host``), or a function that
times itself and returns durations (``collect``: kernels that read the clock inside, groups of ranks).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench import stats
from iobench.timing.clock import COST_FRACTION, Clock

if TYPE_CHECKING:
    from iobench.topology.graph import Topology

TARGET_FRACTION = 0.01  # stop when half the interval is narrower than this part of the median
MIN_SAMPLES = 5
SURE_SAMPLES = 12  # below, an interval holds too seldom where neighbouring samples are alike (iobench.stats)
MAX_SAMPLES = 2000
_AGREE_FRACTION = 0.05
_WARMUP_SHARE = 0.25  # of the point's budget
_WINDOW = 5
_MOST_WINDOW = 64


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
    ``shared`` keeps expensive things (rank groups, files) for the whole launch, ``topology`` is this machine.
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

    @cached_property
    def topology(self) -> Topology:
        """This machine, discovered once in the launch."""
        from iobench.topology import discover

        return discover()

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
        then. The clock's own cost is subtracted nowhere: a note says so where it is above 1 % of a sample.
        """
        ops = 1 if before else self.clock.batch(operation)
        timed = self._host(operation, before, ops)
        more = ops if before else self.clock.more(float(np.median(timed.seconds)), ops)
        if more > ops:  # the process was paused while the batch was guessed
            timed = self._host(operation, before, more)
        if timed.ops > 1:
            timed.notes.append(f"batched: {timed.ops} operations per sample, one is too short for the clock")
        share = self.clock.cost / float(np.median(timed.seconds))
        if share > COST_FRACTION:
            timed.notes.append(f"the clock itself is {share:.0%} of each sample: one operation is too short for it")
        return timed

    def _host(self, operation: Callable[[], Any], before: Callable[[], Any] | None, ops: int) -> Timed:
        """Collect samples of ``ops`` operations each by the host clock."""
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

        return self.collect(lambda count: [run(count)], ops=ops)

    def collect(self, take: Callable[[int], Any], ops: int = 1) -> Timed:
        """Call ``take(count)`` -> [rank][count] seconds until the interval is narrow or time is up.

        Takes ``min_samples`` even where the budget does not suffice for them, and does not call an interval of
        fewer than SURE_SAMPLES narrow while there is time for more. ValueError where ``take``
        returns nothing or durations that are not positive.
        """
        # The very first operation alone, off the budget: it may compile or map memory, 1,000 times the rest.
        first = _as_ranks(take(1))
        start = time.perf_counter()
        warm, per_sample = self._warm_up(take, first, start)
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
            if len(slowest) >= self._sure and stats.median_interval([slowest]).fraction <= self.target:
                stop = "converged"
                break
        return Timed(np.concatenate(kept, axis=1).tolist(), warm, ops, stop)

    def _warm_up(self, take: Callable[[int], Any], first: np.ndarray, start: float) -> tuple[list[list[float]], float]:
        """Run windows until two full ones in a row agree or a quarter of the budget is gone.

        Returns all that was measured, ``first`` included, and the last window's median in seconds.
        """
        share = self.budget * _WARMUP_SHARE
        windows, count = [first], 1
        while time.perf_counter() - start < share:
            windows.append(_as_ranks(take(count)))
            median, before = _middle(windows[-1]), _middle(windows[-2])
            full = min(windows[-1].shape[1], windows[-2].shape[1]) >= _WINDOW
            if full and abs(median - before) <= _AGREE_FRACTION * before:
                break
            count = self._next_window(count, median, share)
        warm = np.concatenate(windows, axis=1)
        return warm.tolist(), _middle(windows[-1])

    def _next_window(self, count: int, median: float, share: float) -> int:
        """Double the window where eight of it fit into the warm-up's ``share``, and start with a full one."""
        if median * _WINDOW * 4 < share:
            count = max(count, _WINDOW)
        return min(count * 2, _MOST_WINDOW) if median * count * 8 < share else count

    def _next_count(self, done: int, left: float, per_sample: float) -> int:
        """Return how many samples to take at once: as many again as there are, so that checks cost little.

        Less where the time left or ``max_samples`` does not suffice, but always up to ``min_samples``.
        """
        fits = int(max(left, 0.0) / per_sample)
        missing = max(self.min_samples - done, 0)
        wanted = min(max(self._sure - done, done), max(fits, missing))
        return max(1, min(wanted, self.max_samples - done))

    @property
    def _sure(self) -> int:
        """The samples that an interval must hold at least to end the sampling."""
        return max(self.min_samples, min(SURE_SAMPLES, self.max_samples))


def _as_ranks(block: Any) -> np.ndarray:
    array = np.asarray(block, dtype=float)
    array = array.reshape(1, -1) if array.ndim == 1 else array
    if array.ndim != 2 or array.size == 0:
        raise ValueError(f"durations must be [rank][iteration], one at least; got the shape {array.shape}")
    if not (np.isfinite(array).all() and (array > 0).all()):
        raise ValueError("a duration is not above 0 s: more operations per sample, or an event never recorded")
    return array


def _middle(block: np.ndarray) -> float:
    """The median over iterations of the maximum over ranks, in seconds."""
    return float(np.median(block.max(axis=0)))
