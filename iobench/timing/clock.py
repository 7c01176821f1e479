"""The host clock: its resolution, its cost, and how many operations a sample needs to outweigh it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import cached_property
from typing import Any

COST_FRACTION = 0.01
_MOST_OPS = 1 << 20
_MOST_READS = 100_000


class Clock:
    """time.perf_counter_ns with its measured cost."""

    @cached_property
    def cost(self) -> float:
        """Seconds that an empty timed operation reads: median of 2,000 pairs of clock reads, or the clock's step."""
        now = time.perf_counter_ns
        pairs = []
        for _ in range(2000):
            start = now()
            pairs.append(now() - start)
        return (sorted(pairs)[len(pairs) // 2] or _step()) * 1e-9

    @cached_property
    def call_cost(self) -> float:
        """Seconds that one empty Python operation costs inside the timed loop: the least of ten loops of 2,000."""
        ops = 2000
        return min(_loop(_nothing, ops) for _ in range(10)) / ops

    @property
    def need(self) -> float:
        """Seconds that a sample takes at least where the clock's own cost is below 1 % of it."""
        return self.cost / COST_FRACTION

    def batch(self, operation: Callable[[], Any]) -> int:
        """Return how many operations one sample needs so that the clock's cost is below 1 %.

        One operation is timed only once, as it may take seconds: where the process was paused in it, 1 is returned
        for an operation that is too short; ``more`` tells from its samples.
        """
        need = self.need
        ops = 1
        _loop(operation, 1)  # the first one alone may compile or fault pages in: it says nothing
        while ops < _MOST_OPS:
            taken = min(_loop(operation, ops) for _ in range(3)) if ops > 1 else _loop(operation, 1)
            if taken >= need:
                return ops
            ops = min(_MOST_OPS, max(ops * 2, int(ops * need / max(taken, 1e-9))))
        return ops

    def more(self, sample: float, ops: int) -> int:
        """Return how many operations a sample needs, now that one of ``ops`` takes typically ``sample`` seconds.

        ``ops`` itself where that is nearly enough: the clock's cost is at most 2 % then.
        """
        if sample * 2 >= self.need:
            return ops
        without_clock = max(sample - self.cost, sample / 10)
        return min(_MOST_OPS, math.ceil(ops * self.need / without_clock))


def _step() -> int:
    """Return the nanoseconds by which a clock of coarse steps goes forward; 0 where it never does."""
    first = _next(time.perf_counter_ns())
    return _next(first) - first


def _next(now: int) -> int:
    """Return the first reading after ``now``, or ``now`` where the clock stands still."""
    return next((read for _ in range(_MOST_READS) if (read := time.perf_counter_ns()) > now), now)


def _nothing() -> None:
    pass


def _loop(operation: Callable[[], Any], ops: int) -> float:
    now = time.perf_counter_ns
    start = now()
    for _ in range(ops):
        operation()
    return (now() - start) * 1e-9
