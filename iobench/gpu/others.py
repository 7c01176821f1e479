"""Other processes on a GPU: which of those that NVML lists are not ours, and which keep it busy."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from iobench.gpu.nvml import Process


@dataclass(frozen=True)
class Other:
    """Another process: number, name ("unknown" where the system does not show it), whether it used the GPU."""

    pid: int
    name: str
    busy: bool

    def __str__(self) -> str:
        return f"{self.pid} ({self.name})"


def others(
    listed: Iterable[Process],
    ours: Callable[[int], bool] | None = None,
    name_of: Callable[[int], str | None] | None = None,
) -> list[Other]:
    """Return the listed processes that are not of this session, busy or not.

    A process that computes is busy unless NVML says that it used nothing; one that only draws is busy where NVML
    says so. In a container NVML may list us under a number of another namespace: where none listed is ours, one
    that the system does not know is taken for us.
    """
    ours, name_of = ours or _ours, name_of or process_name
    processes = list(listed)
    foreign = [process for process in processes if not ours(process.pid)]
    if len(foreign) == len(processes):
        unknown = [process for process in foreign if name_of(process.pid) is None]
        foreign = [process for process in foreign if process not in unknown[:1]]
    return [Other(process.pid, name_of(process.pid) or "unknown", _busy(process)) for process in foreign]


def process_name(pid: int) -> str | None:
    """Return a process's name without its arguments, None where there is no such process here."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None


def _ours(pid: int) -> bool:
    """Tell a process of our session: the engine's ranks and helpers start none of their own.

    Session 0 is led from outside this container and says nothing: there the next of kin are ours.
    """
    if pid == os.getpid():
        return True
    try:
        session = os.getsid(0)
        return os.getsid(pid) == session and (session != 0 or _is_kin(pid))
    except OSError:
        return False


def _is_kin(pid: int) -> bool:
    """Tell our parent, our children and our siblings; a parent that is process 1 brings up everybody: none is kin."""
    parent = os.getppid()
    parents = {os.getpid(), *([parent] if parent > 1 else [])}
    return pid in parents or _parent(pid) in parents


def _parent(pid: int) -> int:
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    return int(stat.rpartition(")")[2].split()[1])


def _busy(process: Process) -> bool:
    return bool(process.used) if process.graphics else process.used is None or process.used > 0
