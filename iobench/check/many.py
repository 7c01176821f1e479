"""Many runs at once: each judged by itself, all held against each other; a process per CPU where there are many."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path

from iobench import sources
from iobench.check.assess import assess
from iobench.check.outliers import Collector
from iobench.errors import EXIT_OK
from iobench.record import FILE_NAME, Run

ALONE = 200  # runs that one process reads faster than others start
_CHUNK = 100
_TOLD = ("wrong", "impossible", "slow", "failed")


@dataclass
class Gathered:
    """What many runs came to: their points for the outlier test, the worst exit status, lines on bad points."""

    collector: Collector = field(default_factory=Collector)
    status: int = EXIT_OK
    good: int = 0
    lines: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def add(self, path: Path, before: Run | None) -> None:
        """Read and judge one run."""
        run = sources.open(path)
        found = assess(run, before)
        name = (path.parent.name if path.name == FILE_NAME else path.name) or run.machine
        self.collector.add(run, name)
        self.status = max(self.status, found.exit_status)
        self.good += found.exit_status == EXIT_OK
        self.warnings += run.warnings
        self.lines += [
            f"{finding.word:10} {name}: {finding.point}: {finding.sentence}"
            for finding in found
            if finding.word in _TOLD
        ]
        self.lines += [f"{'slow':10} {name}: {matrix.sentence}" for matrix in found.matrices if matrix.slow]

    def join(self, other: Gathered) -> None:
        """Take what another process gathered, as if its runs had come after these."""
        self.collector.join(other.collector)
        self.status = max(self.status, other.status)
        self.good += other.good
        self.lines += other.lines
        self.warnings += other.warnings


def gather(paths: Sequence[Path], before: Run | None = None) -> Gathered:
    """Return what ``paths`` come to, in their order whatever the number of processes; UserError for a damaged one."""
    everything = Gathered()
    for part in _parts(paths, before):
        everything.join(part)
    return everything


def _parts(paths: Sequence[Path], before: Run | None) -> Iterator[Gathered]:
    """Yield what each chunk of ``paths`` comes to; what other processes can't (no semaphores, killed) is done here."""
    chunks, done = [paths[first : first + _CHUNK] for first in range(0, len(paths), _CHUNK)], 0
    cpus = len(os.sched_getaffinity(0))
    if len(paths) > ALONE and cpus > 1:
        with contextlib.suppress(OSError, ImportError, NotImplementedError, BrokenProcessPool):
            for part in _elsewhere(chunks, before, min(cpus, len(chunks))):
                done += 1
                yield part
    yield from (_gather(chunk, before) for chunk in chunks[done:])


def _elsewhere(chunks: Sequence[Sequence[Path]], before: Run | None, processes: int) -> Iterator[Gathered]:
    context = multiprocessing.get_context("spawn")  # a fork would copy what NumPy's threads hold
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        yield from pool.map(_gather, chunks, [before] * len(chunks))


def _gather(paths: Iterable[Path], before: Run | None) -> Gathered:
    found = Gathered()
    for path in paths:
        found.add(path, before)
    return found
