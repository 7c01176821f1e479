"""A gather over buffers: a pool of KV blocks, a random block table cut between threads, timed and verified."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from iobench.errors import Unavailable, WrongData
from iobench.kernels import gather
from iobench.kernels.ops import LANES, LINE
from iobench.kernels.repeating import Repeated
from iobench.kernels.team import Team

Driver = Callable[..., None]
_POISON = 0xA5


@dataclass
class Gathering(Repeated):
    """Blocks of ``block`` bytes from ``pool`` to ``target`` in the order of ``tables`` (uint64), one per thread.

    Every block of the pool is read once in a pass: the table is a random permutation.
    """

    pool: NDArray[np.uint8]
    target: NDArray[np.uint8]
    tables: list[NDArray[np.uint64]]
    block: int
    team: Team
    repeats: int = 1
    _barrier: NDArray[np.int64] = field(default_factory=lambda: np.zeros(2 * LANES, np.int64))

    @classmethod
    def over(cls, pool: NDArray[np.uint8], target: NDArray[np.uint8], block: int, seed: int, team: Team) -> Gathering:
        """Cut ``pool`` into blocks and fill it; ``target`` must hold as many bytes and is poisoned.

        Raises Unavailable where there are fewer blocks than threads, ValueError for blocks that are no whole lines.
        """
        if block % LINE or pool.ctypes.data % LINE or target.ctypes.data % LINE:
            raise ValueError(f"blocks must be whole lines of {LINE} bytes")
        threads = len(team.cpus)
        each = pool.nbytes // block // threads
        if each == 0:
            raise Unavailable(f"{pool.nbytes} bytes hold no block of {block} for each of {threads} threads")
        count = each * threads
        order = np.random.default_rng(seed).permutation(count).astype(np.uint64)
        tables = [order[thread * each : (thread + 1) * each] for thread in range(threads)]
        work = cls(pool[: count * block], target[: count * block], tables, block, team)
        team.run(work._fill)
        return work

    @property
    def moved(self) -> int:
        """Bytes that one pass reads from the pool in all threads."""
        return self.pool.nbytes

    def settle(self, driver: Driver | None = None) -> None:
        """Choose how often a sample repeats the pass; ``driver`` as for ``take``."""
        self.fill_sample(lambda count: self.take(count, driver))

    def take(self, count: int, driver: Driver | None = None) -> NDArray[np.float64]:
        """Return ``count`` samples in seconds: from the first thread's start to the last one's end.

        ``driver`` replaces ``gather.drive``.
        """
        threads, drive = len(self.tables), driver or gather.drive
        clock = np.zeros((2, threads, count), np.int64)
        self._barrier[:] = 0
        place = np.uint64(self._barrier.ctypes.data)

        def job(thread: int) -> None:
            out = (clock[0, thread], clock[1, thread])
            drive(self.part(thread), self.pool, self.tables[thread], self.block, self.repeats, place, threads, *out)

        self.team.run(job)
        return np.asarray((clock[1].max(axis=0) - clock[0].min(axis=0)) * 1e-9)

    def poison(self) -> None:
        """Overwrite what was gathered, so that the next pass must write all of it."""
        self.target[:] = _POISON

    def check(self) -> None:
        """Compare every word of every gathered block with what its place in the pool must hold."""
        found = self.team.run(self._first_wrong)
        for thread, wrong in enumerate(found):
            if wrong >= 0:
                block, word = divmod(int(wrong), self.block // 8)
                number, value = int(self.tables[thread][block]), int(self.part(thread).view(np.uint64)[wrong])
                raise WrongData(
                    f"gather in thread {thread} of {len(found)}: word {word} of block {number} is {value:#x}"
                )

    def part(self, thread: int) -> NDArray[np.uint8]:
        """Return the thread's slice of the target."""
        nbytes = self.tables[thread].size * self.block
        return self.target[thread * nbytes : (thread + 1) * nbytes]

    def _fill(self, thread: int) -> None:
        """The thread touches its slice of the pool and of the target first."""
        part = self.part(thread)
        words = part.nbytes // 8
        gather.fill(self.pool[thread * part.nbytes : (thread + 1) * part.nbytes].view(np.uint64), thread * words)
        part[:] = _POISON

    def _first_wrong(self, thread: int) -> int:
        words, table = self.part(thread).view(np.uint64), self.tables[thread]
        return int(gather.first_wrong(words, table, self.block // 8))
