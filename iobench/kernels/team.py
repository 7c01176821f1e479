"""Threads that stay, each pinned to one CPU, and what their clocks said."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from iobench.errors import Unavailable

_SIBLINGS = "sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"


class Team:
    """One Python thread per CPU in ``cpus``; jobs run in all of them at once. Without ``pin`` they run anywhere.

    The kernels release the GIL and meet at a barrier of their own before each sample, so the time that
    Python takes to hand out a job never lies between two clock reads.
    """

    def __init__(self, cpus: Sequence[int], pin: bool = True) -> None:
        self.cpus = tuple(cpus)
        self._pins = pin
        self._jobs: list[queue.SimpleQueue[Callable[[int], Any] | None]] = [queue.SimpleQueue() for _ in cpus]
        self._done: queue.SimpleQueue[tuple[int, Any, BaseException | None]] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._serve, args=(n,), daemon=True) for n in range(len(cpus))]

    def __enter__(self) -> Team:
        for thread in self._threads:
            thread.start()
        if self._pins:
            self.run(self._pin)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for jobs in self._jobs:
            jobs.put(None)
        if error is None or isinstance(error, Exception):  # after Ctrl-C nobody waits for a running kernel
            for thread in self._threads:
                thread.join()

    def run(self, job: Callable[[int], Any]) -> list[Any]:
        """Run ``job(thread)`` in every thread; return the results in order, or raise the first error."""
        self.start(job)
        return self.wait()

    def start(self, job: Callable[[int], Any]) -> None:
        """Begin ``job(thread)`` in every thread and return at once; ``wait`` must follow."""
        for jobs in self._jobs:
            jobs.put(job)

    def wait(self) -> list[Any]:
        """Return the results of the job that ``start`` began, in order, or raise the first error."""
        answers = sorted((self._done.get() for _ in self._jobs), key=lambda answer: answer[0])
        for _, _, error in answers:
            if error is not None:
                raise error
        return [result for _, result, _ in answers]

    def affinity(self) -> list[list[int]]:
        """Read back the CPUs that each thread may run on."""
        return self.run(lambda _: sorted(os.sched_getaffinity(0)))

    def _serve(self, thread: int) -> None:
        while (job := self._jobs[thread].get()) is not None:
            try:
                self._done.put((thread, job(thread), None))
            except BaseException as error:  # noqa: BLE001 - handed to the caller of run, who raises it
                self._done.put((thread, None, error))

    def _pin(self, thread: int) -> None:
        try:
            os.sched_setaffinity(0, {self.cpus[thread]})  # 0: the calling thread, not the process
        except OSError as error:
            raise Unavailable(f"CPU {self.cpus[thread]} does not take a thread: {error.strerror}") from error


def pinned(threads: int) -> Team:
    """Return a team on the first ``threads`` of the CPUs that this process may use; Unavailable if fewer."""
    cpus = spread(os.sched_getaffinity(0))
    if threads > len(cpus):
        raise Unavailable(f"needs {threads} CPUs: this process may use {len(cpus)}")
    return Team(cpus[:threads])


def spread(cpus: Iterable[int], root: Path = Path("/")) -> list[int]:
    """Return ``cpus`` with one hardware thread of every core first, then the second ones, and so on."""
    wanted = sorted(cpus)
    return sorted(wanted, key=lambda cpu: (_rank(cpu, wanted, root), cpu))


def neighbours(count: int, numa: Mapping[int, int | None]) -> list[int]:
    """Return ``count`` CPUs of one NUMA node that this process may use, the first of them as ``pinned`` has it.

    ``numa`` is each CPU's node. Raises Unavailable where the node has fewer.
    """
    cpus = spread(os.sched_getaffinity(0))
    near = [cpu for cpu in cpus if numa.get(cpu) == numa.get(cpus[0])]
    if count > len(near):
        raise Unavailable(f"needs {count} CPUs of one NUMA node: this process may use {len(near)}")
    return near[:count]


def strangers(count: int, numa: Mapping[int, int | None]) -> list[int]:
    """Return the first CPU as ``neighbours`` has it, and ``count`` - 1 CPUs of other NUMA nodes than its own."""
    cpus = spread(os.sched_getaffinity(0))
    far = [cpu for cpu in cpus if numa.get(cpu) != numa.get(cpus[0])]
    if count - 1 > len(far):
        raise Unavailable(f"needs {count - 1} CPUs of other NUMA nodes: this process may use {len(far)}")
    return [cpus[0], *far[: count - 1]]


def cpu_list(text: str) -> list[int]:
    """Return the CPUs that a kernel list such as "0-3,8" names."""
    spans = [part.partition("-") for part in text.strip().split(",") if part.strip()]
    return [cpu for low, _, high in spans for cpu in range(int(low), int(high or low) + 1)]


def _rank(cpu: int, wanted: list[int], root: Path) -> int:
    try:
        siblings = cpu_list((root / _SIBLINGS.format(cpu=cpu)).read_text())
    except (OSError, ValueError):
        return 0
    return sum(other < cpu for other in siblings if other in wanted)
