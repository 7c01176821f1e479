"""Walks over KV blocks in a buffer: cut among a team of threads, timed, and every sum checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from iobench.errors import Unavailable, WrongData
from iobench.kernels import walk
from iobench.kernels.ops import LANES, LINE
from iobench.kernels.repeating import Repeated
from iobench.kernels.team import Team

Driver = Callable[..., None]


@dataclass
class Walking(Repeated):
    """One walk per thread over its own blocks of ``block`` bytes, ``ahead`` chunks of software prefetch (0: none)."""

    parts: list[NDArray[np.uint64]]
    tables: list[NDArray[np.uint64]]
    block: int
    ahead: int
    team: Team
    repeats: int = 1
    _barrier: NDArray[np.int64] = field(default_factory=lambda: np.zeros(2 * LANES, np.int64))

    @classmethod
    def over(cls, data: NDArray[np.uint8], block: int, lines: int, seed: int, team: Team) -> Walking:
        """Cut ``data`` into blocks and fill them; ``lines`` is the distance of the prefetch.

        Raises Unavailable where a block is no whole number of chunks, or where there are fewer than two per thread.
        """
        threads = len(team.cpus)
        count = data.nbytes // threads // block
        if block % walk.CHUNK or count < 2:
            raise Unavailable(f"{data.nbytes} bytes hold no two blocks of {block} bytes for each of {threads} threads")
        parts = [data[n * count * block : (n + 1) * count * block].view(np.uint64) for n in range(threads)]
        tables = [_table(count, seed + n) for n in range(threads)]
        team.run(lambda thread: walk.fill(parts[thread]))
        return cls(parts, tables, block, -(-lines * LINE // walk.CHUNK), team)

    @property
    def moved(self) -> int:
        """Bytes that one walk reads in all threads."""
        return sum(part.nbytes for part in self.parts)

    def settle(self) -> None:
        """Choose how often a sample repeats the walk."""
        self.fill_sample(self.take)

    def take(self, count: int, driver: Driver | None = None) -> NDArray[np.float64]:
        """Return ``count`` samples in seconds, first start to last end; WrongData where a sum is wrong.

        ``driver`` replaces ``walk.drive``.
        """
        drive, threads = driver or walk.drive, len(self.parts)
        clock, sums = np.zeros((2, threads, count), np.int64), np.zeros((threads, count), np.uint64)
        self._barrier[:] = 0
        chunks, place = np.uint64(self.block // walk.CHUNK), np.uint64(self._barrier.ctypes.data)

        def job(thread: int) -> None:
            base, table = np.uint64(self.parts[thread].ctypes.data), self.tables[thread]
            out = (clock[0, thread], clock[1, thread], sums[thread])
            drive(base, table, chunks, np.uint64(self.ahead), self.repeats, place, threads, *out)

        self.team.run(job)
        for thread, table in enumerate(self.tables):
            want = int(walk.expected(table, chunks)) * self.repeats % (1 << 64)
            wrong = sums[thread][sums[thread] != np.uint64(want)]
            if len(wrong):
                raise WrongData(f"walk in thread {thread} of {threads}: sum is {int(wrong[0]):#x}, not {want:#x}")
        return np.asarray((clock[1].max(axis=0) - clock[0].min(axis=0)) * 1e-9)


def _table(count: int, seed: int) -> NDArray[np.uint64]:
    return np.random.default_rng(seed).permutation(count).astype(np.uint64)
