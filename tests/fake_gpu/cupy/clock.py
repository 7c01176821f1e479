"""The ranks' clock: every operation takes as long as the last, whatever else this machine does meanwhile."""

import os
import time

# Long, and longer with more ranks, so that samples hold few operations: in truth the ranks take turns on a few CPUs.
OPERATION_NS = 200_000 * (int(os.environ.get("WORLD_SIZE", "2")) // 2) ** 3
LOOK_NS = 100
_NOW = [0]


def look() -> int:
    _NOW[0] += LOOK_NS
    return _NOW[0]


def operation() -> None:
    """Let the time of one operation pass."""
    _NOW[0] += OPERATION_NS


if "RANK" in os.environ:
    time.perf_counter_ns = look
