"""A pointer chase over a buffer: built, timed and checked by one pinned thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from iobench.errors import Unavailable, WrongData
from iobench.kernels import chase
from iobench.kernels.team import Team

Driver = Callable[..., None]
SAMPLE_SECONDS = 500e-6
_PILOT_LOADS = 2049
_MOST_LOADS = 1 << 20


@dataclass
class Chasing:
    """A random single cycle in ``words``; the walk goes on where the last sample stopped."""

    words: NDArray[np.uint64]
    order: NDArray[np.uint32]
    team: Team
    step: int = 0

    @classmethod
    def over(cls, data: NDArray[np.uint8], seed: int, team: Team) -> Chasing:
        """Link all whole lines of ``data`` into a cycle; the team's thread touches them first."""
        count = data.nbytes // chase.LINE
        if count < 2:
            raise Unavailable(f"{data.nbytes} bytes hold no chain of two lines: ask for more")
        words = data[: count * chase.LINE].view(np.uint64)
        order = chase.random_order(count, seed)
        team.run(lambda _: chase.link(words, order))
        return cls(words, order, team)

    def take(self, loads: int, count: int, driver: Driver | None = None) -> NDArray[np.float64]:
        """Return ``count`` samples of ``loads`` loads in seconds; WrongData where the walk went astray.

        ``driver`` replaces ``chase.drive``.
        """
        starts, ends = np.zeros(count, np.int64), np.zeros(count, np.int64)
        places = np.zeros(count, np.uint64)
        drive, start = driver or chase.drive, np.uint64(self._address(self.step))
        self.team.run(lambda _: drive(start, loads, starts, ends, places))
        self._check_places(loads, places)
        return np.asarray((ends - starts) * 1e-9)

    def settle(self) -> int:
        """Return how many loads take about SAMPLE_SECONDS: one more than a power of two.

        Odd, so that a walk of half the loads never ends at the right node after whole rounds. The fastest pilot
        counts: others may have been paused.
        """
        per_load = float(np.min(self.take(_PILOT_LOADS, 5))) / _PILOT_LOADS
        wanted = max(SAMPLE_SECONDS / max(per_load, 1e-10), 1.0)
        return int(min(1 << round(float(np.log2(wanted))), _MOST_LOADS)) + 1

    def check(self) -> None:
        """Raise WrongData unless a walk visits every node exactly once; leaves the caches full of nodes."""
        (single,) = self.team.run(lambda _: bool(chase.is_single_cycle(self.words, self.order)))
        if not single:
            raise WrongData(f"chase: the {self.order.size} nodes are no single cycle")

    def _check_places(self, loads: int, places: NDArray[np.uint64]) -> None:
        for place in places:
            self.step = (self.step + loads) % self.order.size
            if int(place) != self._address(self.step):
                raise WrongData(f"chase: {loads} loads ended at {int(place):#x}, not {self._address(self.step):#x}")

    def _address(self, step: int) -> int:
        return int(self.words.ctypes.data) + int(self.order[step]) * chase.LINE
