"""The ranks' clock: every operation takes as long as the last, whatever else this machine does meanwhile."""

import os
import time

# More ranks take longer, so that their samples hold few operations: in truth they take turns on a few CPUs.
OPERATION_NS = 20_000 * (int(os.environ.get("WORLD_SIZE", "2")) // 2) ** 3
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
