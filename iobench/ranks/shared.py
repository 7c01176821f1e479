"""Memory that a group's ranks and their parent share: each rank's last state, and a barrier's counters."""

from __future__ import annotations

import mmap
import os

_STATE_NBYTES = 248  # with the 8 bytes of the counter: 256 per rank, so ranks never share a cache line
_SLOT_NBYTES = 256
_SPINS_PER_YIELD = 200


class SharedState:
    """One slot per rank: a counter for the barrier and a text that outlives a killed rank."""

    def __init__(self, fd: int, size: int) -> None:
        self.size = size
        self._map = mmap.mmap(fd, size * _SLOT_NBYTES)
        self._counters = memoryview(self._map).cast("q")
        self._stride = _SLOT_NBYTES // 8

    @staticmethod
    def create(size: int) -> int:
        """Return the file descriptor of zeroed memory for ``size`` ranks."""
        fd = os.memfd_create("iobench-ranks")
        os.ftruncate(fd, size * _SLOT_NBYTES)
        return fd

    def write(self, rank: int, text: str) -> None:
        data = text.encode("utf-8", "replace")[:_STATE_NBYTES]
        at = rank * _SLOT_NBYTES + 8
        self._map[at : at + _STATE_NBYTES] = data.ljust(_STATE_NBYTES, b"\0")

    def read(self, rank: int) -> str:
        at = rank * _SLOT_NBYTES + 8
        return self._map[at : at + _STATE_NBYTES].rstrip(b"\0").decode("utf-8", "replace")

    def meet(self, rank: int, crowded: bool) -> None:
        """Wait until every rank has called this equally often (one rank: its own slot only).

        Spins, because a rank that sleeps is woken tens of microseconds late and would enter the timed
        operation late. ``crowded`` (more ranks than CPUs) gives the CPU away on every look.
        """
        counters, stride = self._counters, self._stride
        mine = rank * stride
        turn = counters[mine] + 1
        counters[mine] = turn
        spins = _SPINS_PER_YIELD - 1 if crowded else 0
        for other in range(0, self.size * stride, stride):
            while counters[other] < turn:
                spins += 1
                if crowded or spins % _SPINS_PER_YIELD == 0:
                    os.sched_yield()

    def close(self) -> None:
        self._counters.release()
        self._map.close()
