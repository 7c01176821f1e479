"""CPU time of a session's processes, and of the kernel's threads, out of one scan of /proc."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

_KERNEL_THREAD = 0x00200000  # PF_KTHREAD (include/linux/sched.h): in a container process 2 may be anybody
# Index of a field in /proc/<pid>/stat after the closing bracket of the name (proc(5) counts from 3 there).
_PPID, _SESSION, _FLAGS, _UTIME, _STIME, _CUTIME, _CSTIME = 1, 3, 6, 11, 12, 13, 14


@dataclass(frozen=True)
class Process:
    """One process: its parent, its session, its CPU seconds and those of the children it waited for."""

    parent: int
    session: int
    seconds: float
    reaped: float
    kernel: bool = False


@dataclass
class Scan:
    """What the processes had used at one moment: our own by process id, the kernel's threads in all."""

    own: dict[int, Process] = field(default_factory=dict)
    kernel_seconds: float = 0.0


def scan(root: Path, session: int, tick: float, self_pid: int) -> Scan:
    """Read every process once: ``session`` with all descendants and ``self_pid`` are our own."""
    base = f"{root}/proc".replace("//", "/")
    table = {pid: process for pid in _pids(root) if (process := _read(f"{base}/{pid}/stat", tick)) is not None}
    result = Scan()
    for pid, process in table.items():
        if pid == self_pid or _descends(table, pid, session):
            result.own[pid] = _precise(process, pid) if root == Path("/") else process
        elif process.kernel:
            result.kernel_seconds += process.seconds
    return result


def own_seconds(before: Scan, after: Scan, self_pid: int) -> float:
    """Return the CPU seconds that our own processes used between two scans.

    A process that ended in between was waited for by one that is still there, so its time is in that
    one's ``reaped``. Of the parent process only its own time counts: its other children are not ours.
    """
    total = 0.0
    for scan_, sign in ((before, -1), (after, 1)):
        for pid, process in scan_.own.items():
            total += sign * (process.seconds + (0.0 if pid == self_pid else process.reaped))
    return max(total, 0.0)


def leader_gone(before: Scan, after: Scan, session: int) -> bool:
    """Tell whether the session's first process ended in between: its time is lost with it."""
    return session in before.own and session not in after.own


def _pids(root: Path) -> list[int]:
    try:
        with os.scandir(root / "proc") as entries:
            return [int(entry.name) for entry in entries if entry.name.isdigit()]
    except OSError:
        return []


def _read(path: str, tick: float) -> Process | None:
    """Read one process; plain system calls, because there may be thousands of processes."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.read(fd, 1024)
        finally:
            os.close(fd)
        # A name may hold blanks and brackets.
        fields = data[data.rindex(b")") + 2 :].split(None, _CSTIME + 1)
        seconds = (int(fields[_UTIME]) + int(fields[_STIME])) * tick
        reaped = (int(fields[_CUTIME]) + int(fields[_CSTIME])) * tick
        kernel = bool(int(fields[_FLAGS]) & _KERNEL_THREAD)
        return Process(int(fields[_PPID]), int(fields[_SESSION]), seconds, reaped, kernel)
    except (OSError, ValueError, IndexError):
        return None  # ended while we looked, or hidden from us


def _precise(process: Process, pid: int) -> Process:
    """Put in CPU seconds to the nanosecond: the clock id is clock_getcpuclockid(3)'s for this process."""
    try:
        return replace(process, seconds=time.clock_gettime((~pid << 3) | 2))
    except OSError:
        return process


def _descends(table: dict[int, Process], pid: int, session: int) -> bool:
    """Follow the parents: a rank that opened a session of its own is still ours."""
    for _ in range(64):
        process = table.get(pid)
        if process is None:
            return False
        if process.session == session or pid == session:
            return True
        pid = process.parent
    return False
