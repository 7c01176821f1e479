"""How long the command line takes to answer: iobench --help and iobench list, as whole processes."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from iobench.paths import source_root

BAR_SECONDS = 0.4
ROUNDS = 15
QUICK_ROUNDS = 5


def run(say: Callable[[str], Any], quick: bool = False) -> bool:
    """Time both commands in turn and say the medians; True when both are below 0.4 s."""
    commands = ("--help", "list")
    times: dict[str, list[float]] = {command: [] for command in commands}
    for _ in range(QUICK_ROUNDS if quick else ROUNDS):
        for command in commands:
            times[command].append(_time(command))
    met = True
    for command, values in times.items():
        median = statistics.median(values)
        met = met and median < BAR_SECONDS
        word = "PASS" if median < BAR_SECONDS else "FAIL"
        say(f"{word}: iobench {command}: median {median:.3f} s, worst {max(values):.3f} s (bar {BAR_SECONDS} s)")
    return met


def _time(command: str) -> float:
    env = {**os.environ, "PYTHONPATH": str(source_root())}
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "iobench", command], stdout=subprocess.DEVNULL, check=True, env=env)
    return time.perf_counter() - start
