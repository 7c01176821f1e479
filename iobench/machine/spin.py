"""Looks for time that vanished while a CPU was spinning: preemption that no counter shows."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

GAP_SECONDS = 20e-6


def gaps(cpus: Iterable[int], seconds: float = 0.02) -> dict[str, float]:
    """Spin ``seconds`` on each of ``cpus`` and return the fraction of time lost in gaps over 20 us.

    Keys: "fraction" lost over all CPUs, "longest_seconds", "cpus" that were tried. Affects only the
    calling thread, whose affinity is restored. CPUs that can't be used are left out.
    """
    before = os.sched_getaffinity(0)
    lost, spun, longest, tried = 0, 0, 0, 0
    try:
        for cpu in sorted(cpus):
            try:
                os.sched_setaffinity(0, {cpu})
            except OSError:
                continue  # gone offline or outside of the cpuset
            found = _spin(int(seconds * 1e9))
            lost, spun, longest, tried = lost + found[0], spun + found[1], max(longest, found[2]), tried + 1
    finally:
        os.sched_setaffinity(0, before)
    return {"fraction": lost / spun if spun else 0.0, "longest_seconds": longest * 1e-9, "cpus": tried}


def _spin(length: int) -> tuple[int, int, int]:
    """Return nanoseconds lost in gaps, nanoseconds spun and the longest gap."""
    now, limit = time.perf_counter_ns, int(GAP_SECONDS * 1e9)
    lost, longest = 0, 0
    start = last = now()
    while last - start < length:
        at = now()
        gap = at - last
        if gap > limit:
            lost += gap
            longest = max(longest, gap)
        last = at
    return lost, last - start, longest
