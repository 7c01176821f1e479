"""The most host memory that this process had resident (VmHWM), counted anew from a moment on."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from iobench.units import KIB

_RESET_PEAK = "5"  # proc_pid_clear_refs(5): the peak becomes what is resident now


def reset() -> None:
    """Count the peak from now on; where the kernel doesn't let, it goes on from the process's start."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text(_RESET_PEAK)


def now() -> int | None:
    """Return the peak so far in bytes, None where the kernel doesn't tell."""
    try:
        found = re.search(r"^VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * KIB if found else None


def growth(before: int | None) -> int | None:
    """Return by how many bytes the peak has grown since it was ``before``."""
    after = now()
    return None if before is None or after is None else after - before
