"""The ring: threads read parts of files into slots of host memory while what they read before moves on to the target.

Reads and moves overlap as long as a lane has more than one slot. The memory it takes is lanes x slots x block,
whatever the checkpoint's size. Reads are ``preadv`` by threads, which releases the interpreter's lock, or each thread
has a read in flight for every slot that is free, through io_uring or native AIO (``engine``); make crosscheck-storage
compares all three with fio's.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from iobench.storage import plan, read
from iobench.storage.flight import PREADV, Reads, reads
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
    engine: str = PREADV
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
        fill = self._fill if self.engine == PREADV else self._fly
        read.spread(lambda queue, number: fill(number, queue, fds), self.requests, self.pool, len(self.lanes))

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

    def _fly(self, number: int, queue: deque[Request], fds: Sequence[int]) -> None:
        """Keep a read in flight for every slot that is free; what has arrived moves on at once."""
        lane, spent = self.lanes[number], Spent()
        self.parts[number] = spent
        places = [(int(slot.ctypes.data), slot.nbytes) for slot in lane.slots]
        try:
            with reads(self.engine, len(places), places) as flying:
                flights = _Flights(lane, flying, spent, places, self.alignment)
                for request in read.until_empty(queue):
                    flights.start(request, fds[request.area.shard])
                flights.land_all()
        finally:
            began = time.perf_counter()
            lane.drain()
            spent.wait += time.perf_counter() - began


class _Flights:
    """The slots of one lane: free, being read into, or on their way to the target."""

    def __init__(
        self, lane: Lane, flying: Reads, spent: Spent, places: Sequence[tuple[int, int]], alignment: int
    ) -> None:
        self._lane, self._flying, self._spent, self._places = lane, flying, spent, places
        self._alignment = alignment
        self._free, self._held = deque(range(len(places))), dict[int, Request]()

    def start(self, request: Request, fd: int) -> None:
        """Begin to read into the slot that has been free, or on its way, for longest."""
        while not self._free:
            self._land()
        slot, began = self._free.popleft(), time.perf_counter()
        self._lane.wait(slot)
        self._spent.wait += time.perf_counter() - began
        self._spent.asked += request.length
        self._held[slot] = request
        self._flying.start(
            slot, fd, self._places[slot][0], request.length, request.offset, request.wanted, self._alignment
        )

    def land_all(self) -> None:
        """Give what is still being read."""
        while self._held:
            self._land()

    def _land(self) -> None:
        began = time.perf_counter()
        slots = self._flying.finished()
        full = time.perf_counter()
        for slot in slots:
            request = self._held.pop(slot)
            self._lane.give(slot, request.head, request.area)
            self._free.append(slot)
        self._spent.read += full - began
        self._spent.give += time.perf_counter() - full


def requests(wanted: Plan, block: int, alignment: int = 1) -> list[Request]:
    """Cut a plan into aligned reads of at most ``block`` bytes."""
    return [_request(part, alignment) for area in wanted.areas for part in plan.cut(area, block, alignment)]


def _request(area: Area, alignment: int) -> Request:
    offset = area.offset // alignment * alignment
    end = -(-(area.offset + area.span) // alignment) * alignment
    return Request(area, offset, end - offset, area.offset - offset)
