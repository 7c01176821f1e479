"""The ring: threads read parts of files into slots of host memory while what they read before moves on to the target.

Reads and moves overlap as long as a lane has more than one slot. The memory it takes is lanes x slots x block,
whatever the checkpoint's size. Reads are ``preadv`` by threads: it releases the interpreter's lock, and from blocks of
256 KiB on Python threads equal fio's libaio and io_uring (make crosscheck-storage, crosscheck-weights), which
containers often forbid.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from iobench.storage import plan, read
from iobench.storage.plan import Area, Plan

if TYPE_CHECKING:
    from iobench.storage.target import Lane


@dataclass(frozen=True)
class Request:
    """One read: ``length`` bytes from ``offset`` on, both aligned; ``area`` begins ``head`` bytes into it.

    ``wanted`` bytes of it must arrive: at a file's end there are no more.
    """

    area: Area
    offset: int
    length: int
    head: int

    @property
    def wanted(self) -> int:
        return self.head + self.area.span


@dataclass
class Spent:
    """Seconds that the threads of one load spent, added up over them: reading, waiting for slots, giving."""

    read: float = 0.0
    wait: float = 0.0
    give: float = 0.0
    asked: int = 0  # bytes that the reads asked for, with what alignment adds

    def add(self, other: Spent) -> None:
        self.read += other.read
        self.wait += other.wait
        self.give += other.give
        self.asked += other.asked


@dataclass
class Ring:
    """A load that can be run again and again: the requests, the lanes, the threads."""

    requests: Sequence[Request]
    lanes: Sequence[Lane]
    pool: ThreadPoolExecutor
    alignment: int = 1
    parts: dict[int, Spent] = field(default_factory=dict)  # of the last run, by lane

    @property
    def spent(self) -> Spent:
        """Return what the last run's threads spent together."""
        together = Spent()
        for part in self.parts.values():
            together.add(part)
        return together

    def run(self, fds: Sequence[int]) -> None:
        """Bring every request's area to the target; returns when all have arrived."""
        self.parts = {}
        read.spread(lambda queue, number: self._fill(number, queue, fds), self.requests, self.pool, len(self.lanes))

    def give(self) -> None:
        """Move every area from the slots, whatever they hold: what moving alone takes."""

        def work(queue: deque[Request], number: int) -> None:
            lane = self.lanes[number]
            for turn, request in enumerate(read.until_empty(queue)):
                slot = turn % len(lane.slots)
                lane.wait(slot)
                lane.give(slot, request.head, request.area)
            lane.drain()

        read.spread(work, self.requests, self.pool, len(self.lanes))

    def _fill(self, number: int, queue: deque[Request], fds: Sequence[int]) -> None:
        lane, spent, now = self.lanes[number], Spent(), time.perf_counter
        self.parts[number] = spent
        try:
            for turn, request in enumerate(read.until_empty(queue)):
                slot = turn % len(lane.slots)
                began = now()
                lane.wait(slot)
                free = now()
                view = lane.slots[slot][: request.length].data
                read.read_in_full(fds[request.area.shard], view, request.offset, request.wanted, self.alignment)
                full = now()
                lane.give(slot, request.head, request.area)
                spent.wait += free - began
                spent.read += full - free
                spent.give += now() - full
                spent.asked += request.length
        finally:
            began = now()
            lane.drain()
            spent.wait += now() - began


def requests(wanted: Plan, block: int, alignment: int = 1) -> list[Request]:
    """Cut a plan into aligned reads of at most ``block`` bytes."""
    return [_request(part, alignment) for area in wanted.areas for part in plan.cut(area, block, alignment)]


def _request(area: Area, alignment: int) -> Request:
    offset = area.offset // alignment * alignment
    end = -(-(area.offset + area.span) // alignment) * alignment
    return Request(area, offset, end - offset, area.offset - offset)
