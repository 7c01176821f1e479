"""Loads a checkpoint into host memory again and again, under the clock, each time proven and verified."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iobench import hostmem
from iobench.errors import Unavailable
from iobench.storage import cache, proof, read, verify
from iobench.storage.checkpoint import Checkpoint, open_checkpoint
from iobench.storage.device import Counted, Device, count, device_of
from iobench.storage.filesystem import NOT_STORAGE, Filesystem, filesystem_of
from iobench.storage.make import check_room, made
from iobench.units import format_size

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from iobench.timing.sampler import Sampler, Timed

_FEW_SAMPLES = 3  # a load takes long; more launches give more samples
_SLOW = 5.0  # times the budget: one load alone takes so long that one sample a launch must do
_HUGE_ENOUGH = 0.95


@dataclass
class Stage:
    """A checkpoint with its expected sums, the memory it goes to, and what holds it."""

    checkpoint: Checkpoint
    sums: tuple[NDArray[np.uint64], ...]
    memory: hostmem.Buffer
    filesystem: Filesystem
    device: Device | None
    fds: list[int]
    seconds: float  # that making the files, or reading them once for their sums, took

    @property
    def nbytes(self) -> int:
        return self.checkpoint.nbytes


class Loads:
    """Prepares each load outside the clock and closes the books of the one before it."""

    def __init__(self, stage: Stage, method: str) -> None:
        self.stage, self.method = stage, method
        self.moved: list[Counted] = []  # per load
        self.resident: list[float] = []  # per load, right before it
        self._before: Counted | None = None

    def prepare(self) -> None:
        """Poison the destination, make the files cold or warm, and read the counters."""
        self.finish()
        verify.poison(self.stage.memory.data)
        if self.method.endswith("-warm"):
            self.resident.append(cache.warm(self.stage.fds))
        elif self.method.endswith("-cold"):
            self.resident.append(cache.evict(self.stage.fds))
        self._before = count(self.stage.device)

    def finish(self) -> None:
        """Read the counters and check every byte of the load that just ended."""
        if self._before is None:
            return
        self.moved.append(count(self.stage.device).since(self._before))
        self._before = None
        check(self.stage)

    @property
    def devices(self) -> list[int]:
        """Bytes that everybody read from the device during each load; empty where that is not counted."""
        return [moved.device for moved in self.moved if moved.device is not None]

    @property
    def processes(self) -> list[int]:
        """Bytes that this process read from any device during each load; empty where that is not counted."""
        return [moved.process for moved in self.moved if moved.process is not None]

    @property
    def worst(self) -> Counted:
        """What speaks most against the method's claim: least read from the device, or most where it is warm."""
        worst = max if self.method.endswith("-warm") else min
        return Counted(worst(self.devices, default=None), worst(self.processes, default=None))


@dataclass
class Loaded:
    """What the loads of one point gave: their times, the path's verdict and what it rests on."""

    timed: Timed
    verdict: proof.Verdict
    loads: Loads
    pages: hostmem.Pages
    alignment: int
    notes: list[str]

    def evidence(self) -> dict[str, Any]:
        """Return the facts behind the path's label; of what was counted per load the least and the most."""
        stage, devices = self.loads.stage, self.loads.devices
        found: dict[str, Any] = {
            "filesystem": stage.filesystem.name,
            "device": stage.device.name if stage.device else None,
            "files": len(stage.checkpoint.shards),
            "alignment": self.alignment,
            "loads": len(self.loads.moved),
            "bytes_asked": stage.nbytes,
            "device_bytes": _range(devices),
            "process_bytes": _range(self.loads.processes),
            "amplification": min(devices) / stage.nbytes if devices else None,
            "resident_before": _range(self.loads.resident),
            "residency_by": cache.residency_source(stage.fds[0]) if self.loads.resident else None,
        }
        return {name: value for name, value in found.items() if value is not None} | self.pages.evidence()


def load(stage: Stage, method: str, threads: int, block: int, sampler: Sampler) -> Loaded:
    """Load the checkpoint by ``method`` until the sampler has enough; every load is verified.

    Raises WrongData, Unavailable where the method can't be had on this file, IobenchError where a file called
    cold is not.
    """
    if method.endswith("-cold") and stage.filesystem.in_memory:
        raise Unavailable(f"{stage.filesystem.name} keeps files in memory, nothing is cold there: {NOT_STORAGE}")
    loads = Loads(stage, method)
    with _operation(stage, method, threads, block) as (operation, alignment):
        if method == "direct":
            _forget(stage.fds)
        timed = replace(sampler, min_samples=_least_samples(stage, sampler)).host(operation, loads.prepare)
        loads.finish()
    worst = (min if method.endswith("-warm") else max)(loads.resident, default=None)
    verdict = proof.judge(method, stage.nbytes, loads.worst, stage.filesystem, worst)
    pages = hostmem.inspect(stage.memory)
    return Loaded(timed, verdict, loads, pages, alignment, [*_about_pages(pages), *stage.checkpoint.notes])


def _least_samples(stage: Stage, sampler: Sampler) -> int:
    return 1 if stage.seconds > _SLOW * sampler.budget else min(_FEW_SAMPLES, sampler.min_samples)


def check(stage: Stage) -> None:
    """Raise WrongData unless every shard's bytes in memory are right."""
    starts = read.slots(stage.checkpoint)
    for shard, expected, start in zip(stage.checkpoint.shards, stage.sums, starts, strict=True):
        verify.check(stage.memory.data[start : start + shard.nbytes], expected, shard.path.name)


class Workspace:
    """Keeps the last stage of a launch: files and memory are made again only when another one is asked for."""

    def __init__(self) -> None:
        self._key: Any = None
        self._stack = contextlib.ExitStack()
        self._stage: Stage | None = None

    def stage(self, key: Any, make: Callable[[], contextlib.AbstractContextManager[Stage]]) -> Stage:
        """Return the stage of ``key``, closing another one first."""
        if self._stage is None or key != self._key:
            self.close()
            self._stage, self._key = self._stack.enter_context(make()), key
        return self._stage

    def close(self) -> None:
        self._stage = None
        self._stack.close()


@contextlib.contextmanager
def workspace() -> Iterator[Workspace]:
    """Yield an empty workspace and close what it holds at the end."""
    space = Workspace()
    try:
        yield space
    finally:
        space.close()


@contextlib.contextmanager
def own_stage(folder: str | Path, nbytes: int, shards: int) -> Iterator[Stage]:
    """Make a checkpoint of ``nbytes`` in ``folder`` and the memory for it; both go at the end."""
    check_room(folder, nbytes)
    _check_memory(nbytes, "a smaller -a nbytes")
    start = time.perf_counter()
    with made(folder, nbytes, shards) as files, _staged(files.checkpoint, files.sums, start) as stage:
        yield stage


@contextlib.contextmanager
def users_stage(path: str | Path) -> Iterator[Stage]:
    """Open the user's checkpoint and make the memory for it; its sums come from one buffered read."""
    checkpoint = open_checkpoint(path)
    _check_memory(checkpoint.nbytes, "one of its shards with --path")
    start = time.perf_counter()
    sums = tuple(verify.file_sums(shard.path, shard.nbytes) for shard in checkpoint.shards)
    with _staged(checkpoint, sums, start) as stage:
        yield stage


def _check_memory(nbytes: int, instead: str) -> None:
    have = hostmem.available_nbytes()
    if have is not None and nbytes > have * hostmem.MOST_OF_MEMORY:
        raise Unavailable(
            f"a checkpoint of {format_size(nbytes)} is more than half of the {format_size(have)} of memory available: "
            f"load {instead}"
        )


@contextlib.contextmanager
def _staged(checkpoint: Checkpoint, sums: tuple[NDArray[np.uint64], ...], start: float) -> Iterator[Stage]:
    first, seconds = checkpoint.shards[0].path, time.perf_counter() - start
    with hostmem.buffer(read.room(checkpoint), hostmem.HUGE) as memory, read.opened(checkpoint) as fds:
        verify.poison(memory.data)  # touches every page, so that no load pays for it
        yield Stage(checkpoint, sums, memory, filesystem_of(first), device_of(first), fds, seconds)


@contextlib.contextmanager
def _operation(stage: Stage, method: str, threads: int, block: int) -> Iterator[tuple[Callable[[], None], int]]:
    """Yield the timed operation and the alignment it reads by."""
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(threads))
        if method.startswith("mmap"):
            yield read.mapped_reader(stage.checkpoint, stage.fds, stage.memory.data, block, pool, threads), 1
            return
        fds, alignment = stage.fds, 1
        if method == "direct":
            alignment = read.alignment_of(stage.checkpoint, block)
            fds = stack.enter_context(read.opened(stage.checkpoint, direct=True))
        todo = read.pieces(stage.checkpoint, fds, block, alignment)
        yield read.reader(todo, stage.memory.data.data, pool, threads), alignment


def _about_pages(pages: hostmem.Pages) -> list[str]:
    if pages.huge_fraction is None or pages.huge_fraction >= _HUGE_ENOUGH:
        return []
    return [
        f"only {pages.huge_fraction:.0%} of the destination lies on huge pages, which slows O_DIRECT: "
        "set transparent_hugepage/enabled to madvise"
    ]


def _range(values: list[Any]) -> list[Any] | None:
    return [min(values), max(values)] if values else None


def _forget(fds: list[int]) -> None:
    """Ask the kernel to drop the files' pages; O_DIRECT doesn't need it, but nothing is left to answer from."""
    for fd in fds:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
