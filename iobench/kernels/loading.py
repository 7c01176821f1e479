"""A pointer chase under load: one thread follows pointers while the others move bytes at a set pace."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from iobench import hostmem
from iobench.errors import Unavailable, WrongData
from iobench.kernels import load
from iobench.kernels.chasing import Chasing
from iobench.kernels.ops import LANES
from iobench.kernels.team import Team
from iobench.mempolicy import Policy

Driver = Callable[..., None]
_START_SECONDS = 300.0  # long after any start: other processes may have the CPUs
_SETTLE_SECONDS = 200e-6  # of load before the chase begins: caches and prefetchers are in their steady state
_FAR = 2 * LANES  # int64 words between two counters: neighbouring lines are fetched in pairs


@dataclass
class Loading:
    """``chase`` beside ``team``, whose threads each visit the chunks of one slice of ``parts``.

    ``every`` is the mix (a value of load.MIXES), ``delay`` the multiplications between two chunks.
    ``windows`` holds for each call of ``take``: its samples, the bytes that the team moved on the bus
    meanwhile, and how many seconds that took.
    """

    chase: Chasing
    team: Team
    parts: list[NDArray[np.uint64]]
    every: int
    delay: int
    windows: list[tuple[int, int, float]] = field(default_factory=list)
    _shared: NDArray[np.int64] = field(init=False)
    _states: NDArray[np.uint64] = field(init=False)

    def __post_init__(self) -> None:
        self._shared = np.zeros((len(self.parts) + 1) * _FAR, np.int64)  # the stop sign, then each thread's progress
        self._states = np.zeros((len(self.parts), load.STATE_WORDS), np.uint64)

    @classmethod
    def over(cls, data: NDArray[np.uint8], mix: str, delay: int, chase: Chasing, team: Team) -> Loading:
        """Cut ``data`` into a slice per thread of ``team``; each thread fills its own, first of all."""
        parts = slices(data, len(team.cpus))
        work = cls(chase, team, parts, load.MIXES[mix], delay)
        team.run(lambda thread: load.fill(parts[thread], work._origin(thread)))
        work._shared[0] = 1  # told to stop before it begins: compiled here, and not while somebody waits for it
        team.run(lambda thread: work._load(thread, load.drive))
        return work

    def take(self, loads: int, count: int, driver: Driver | None = None) -> NDArray[np.float64]:
        """Return ``count`` samples of ``loads`` loads in seconds, all of them under load.

        ``driver`` replaces ``load.drive``. Raises Unavailable where a sample is shorter than a step of the clock.
        """
        self._shared[0] = 0
        self.team.start(lambda thread: self._load(thread, driver or load.drive))
        try:
            self._await_load()
            before, start = self._moved(), time.perf_counter_ns()
            seconds = self.chase.take(loads, count)
            after, end = self._moved(), time.perf_counter_ns()
        finally:
            self._shared[0] = 1
            self.team.wait()
        self.windows.append((count, after - before, (end - start) * 1e-9))
        if not seconds.all():
            raise Unavailable("the clock of this machine may not go on during a load: measure several (sample=mean)")
        return seconds

    def moved_during(self, samples: int) -> tuple[int, float]:
        """Return the bytes that the team moved while the last ``samples`` samples were taken, and the seconds."""
        nbytes, seconds = 0, 0.0
        for count, moved, took in reversed(self.windows):
            if samples <= 0:
                break
            samples, nbytes, seconds = samples - count, nbytes + moved, seconds + took
        return nbytes, seconds

    def check(self) -> None:
        """Raise WrongData unless every word and every sum is what the visits must have made of it."""
        self.team.run(self._check)

    def _load(self, thread: int, drive: Driver) -> None:
        base, far = self._shared.ctypes.data, 8 * _FAR
        progress = np.uint64(base + far * (thread + 1))
        drive(self.parts[thread], self.every, self.delay, np.uint64(base), progress, self._states[thread])

    def _await_load(self) -> None:
        """Wait until every thread has moved something in this call, then as long again as steadies it."""
        progress, start = self._shared[_FAR::_FAR], time.perf_counter()
        before = self._states[:, load.DONE].astype(np.int64)
        while not np.all(progress > before):
            if time.perf_counter() - start > _START_SECONDS:
                raise Unavailable(f"a load thread did not begin within {_START_SECONDS:g} s: the CPUs are taken")
            time.sleep(20e-6)
        time.sleep(_SETTLE_SECONDS)

    def _moved(self) -> int:
        """Return the bytes that all threads have moved on the bus up to now."""
        done = self._shared[_FAR::_FAR].tolist()
        return sum(self._bus_nbytes(thread, chunks) for thread, chunks in enumerate(done))

    def _bus_nbytes(self, thread: int, chunks: int) -> int:
        if self.every <= 0:
            return chunks * load.CHUNK
        rounds, rest = divmod(chunks, self.parts[thread].size // load.WORDS)
        each = self.parts[thread].size // load.WORDS
        modified = rounds * -(-each // self.every) + -(-rest // self.every)
        return (chunks + modified) * load.CHUNK

    def _origin(self, thread: int) -> int:
        return thread * (self.parts[0].size // load.WORDS)

    def _check(self, thread: int) -> None:
        words, state = self.parts[thread], self._states[thread]
        done = int(state[load.DONE])
        wrong, total = load.verify(words, self.every, self._origin(thread), done)
        where = f"load thread {thread} of {len(self.parts)}"
        if wrong >= 0:
            raise WrongData(f"{where}: word {wrong} is {int(words[wrong]):#x} after {done} chunks")
        if int(total) != int(state[load.SUM]):
            raise WrongData(f"{where}: sum is {int(state[load.SUM])}, not {int(total)}, after {done} chunks")


def slices(data: NDArray[np.uint8], threads: int) -> list[NDArray[np.uint64]]:
    """Cut ``data`` into equal slices of whole chunks; Unavailable where there is none for each thread."""
    each = data.nbytes // threads // load.CHUNK * load.CHUNK
    if each == 0:
        raise Unavailable(f"{data.nbytes} bytes are less than {load.CHUNK} for each of {threads} threads: ask for more")
    return [data[n * each : (n + 1) * each].view(np.uint64) for n in range(threads)]


@dataclass(frozen=True)
class Stage:
    """What points of one size share: the chase and its thread, the load's threads and their memory.

    ``loads`` fill a sample of the chase alone, ``clock_seconds`` is what an empty sample reads.
    """

    chase: Chasing
    team: Team
    area: hostmem.Buffer
    pages: hostmem.Pages
    loads: int
    clock_seconds: float


@contextlib.contextmanager
def stage(nbytes: int, pages: str, cpus: Sequence[int], seed: int, node: int | None = None) -> Iterator[Stage]:
    """Chase ``nbytes`` on the first of ``cpus``, load as much from the others; both on ``pages`` ("base", "huge").

    Memory is bound to ``node``; None: each thread's lies where it runs. Raises Unavailable where memory, pages or CPUs
    are not there.
    """
    policy = None if node is None else Policy((node,))
    with (
        Team(cpus[:1]) as first,
        Team(cpus[1:]) as others,
        hostmem.buffer(nbytes, pages, policy=policy) as chased,
        hostmem.buffer(nbytes, pages, policy=policy) as area,
    ):
        chase = Chasing.over(chased.data, seed, first)
        parts = slices(area.data, len(others.cpus))
        others.run(lambda thread: load.fill(parts[thread], 0))
        for each in (chased, area):
            hostmem.require(each, hostmem.inspect(each))
        chase.check()
        loads = chase.settle()
        clock = float(np.median(chase.take(0, 1001)))
        yield Stage(chase, others, area, hostmem.inspect(chased), loads, clock)
