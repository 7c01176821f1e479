"""Waiting for what other processes and threads do; minutes pass only where something hangs."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

PATIENCE_SECONDS = 300.0  # a hang, not a busy machine


def eventually(condition: Callable[[], bool]) -> bool:
    """Tell whether the condition comes true before anybody would call it a hang."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > end:
            return condition()
        time.sleep(0.01)
    return True


def state(pid: int) -> str:
    """Return the letter of a process's state in /proc, "" for one that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def gone(pid: int) -> bool:
    """Tell whether the process ends; one that nobody has asked for its end yet (a zombie) has ended too."""
    return eventually(lambda: state(pid) in ("", "Z", "X"))
