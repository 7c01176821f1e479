"""Timing of several streams at once: every GPU of a machine that copies to the host at the same time."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from iobench.timing import cuda
from iobench.timing import gate as gates

if TYPE_CHECKING:
    from iobench.timing.cuda import Enqueue, Side
    from iobench.timing.gate import Gate
    from iobench.timing.sampler import Sampler, Timed

METHOD = (
    "all streams start together and are busy for 40 ms (128 operations at most) before the first sample; samples "
    "follow each other without a gap, and a stream that is through goes on until the slowest one is"
)
_LEAST_SECONDS = 1e-3  # streams of several GPUs start some us apart
_LEAD_SECONDS = 40e-3  # the host's memory and fabric, which all GPUs share, raise their clocks only under load
_MOST_QUEUED = 192  # timed operations and marks of one stream behind the gate; lead and tail come on top
_MOST_TAIL = cuda.MOST_OPS


def events_together(sampler: Sampler, lanes: Sequence[tuple[Enqueue, Any]]) -> Timed:
    """Time streams (each with its ``enqueue``, of one device or of several) while all of them are busy.

    ``seconds`` has a row per stream: its own time for ``ops`` operations. One gate at the head of the first stream
    holds all. That all are busy to the end rests on what they took before: no proof of overlap crosses devices.
    """
    gate = gates.shared(sampler, lanes[0][1].device_id)
    with contextlib.ExitStack() as stack:
        sides = [stack.enter_context(cuda.measured(enqueue, stream)) for enqueue, stream in lanes]
        ops = max(cuda.alone(side, gate, _LEAST_SECONDS) for side in sides)
        most = max(_MOST_QUEUED // (ops + 1), 1)
        together = _Together([stack.enter_context(_lane(side, most)) for side in sides], gate, ops, most)
        together.take(1)  # off the record: how long each takes beside the others
        gate.reset()
        timed = sampler.collect(together.take, ops=ops)
    timed.notes += gate.notes
    return timed


@dataclass
class _Lane:
    """One stream with an event for each end of its samples, and the seconds of one operation beside the others."""

    side: Side
    each: float
    marks: list[int] = field(default_factory=list)

    @property
    def lead(self) -> int:
        """How many operations run before the first sample."""
        return min(math.ceil(_LEAD_SECONDS / self.each), cuda.MOST_OPS)

    def put(self, ops: int, samples: int, tail: int) -> None:
        """Enqueue the lead, ``samples`` times ``ops`` operations between events, and ``tail`` operations more."""
        with self.side.current():
            self.side.put(self.lead)
            self.side.mark(self.marks[0])
            for mark in self.marks[1 : samples + 1]:
                self.side.put(ops)
                self.side.mark(mark)
            self.side.put(tail)

    def seconds(self, samples: int) -> list[float]:
        """Return what each sample took, once the stream is through."""
        passed = self.side.api.eventElapsedTime
        ends = zip(self.marks[:samples], self.marks[1:], strict=False)
        return [float(passed(start, end)) * 1e-3 for start, end in ends]


@dataclass
class _Together:
    """All lanes, and how many samples fit behind one gate."""

    lanes: list[_Lane]
    gate: Gate
    ops: int
    most: int

    def take(self, count: int) -> list[list[float]]:
        """Return ``count`` samples of each lane."""
        rows: list[list[float]] = [[] for _ in self.lanes]
        while len(rows[0]) < count:
            for row, more in zip(rows, self._chunk(min(count - len(rows[0]), self.most)), strict=True):
                row += more
        return rows

    def _chunk(self, samples: int) -> list[list[float]]:
        first = self.lanes[0].side
        with first.current(), self.gate.closed():
            first.mark(first.start)
            for lane in self.lanes[1:]:
                lane.side.api.streamWaitEvent(lane.side.stream.ptr, first.start)
            for lane, tail in zip(self.lanes, self._tails(samples), strict=True):
                lane.put(self.ops, samples, tail)
        for lane in self.lanes:
            lane.side.stream.synchronize()
        self.gate.count_late()
        rows = [lane.seconds(samples) for lane in self.lanes]
        for lane, row in zip(self.lanes, rows, strict=True):
            lane.each = median(row) / self.ops
        return rows

    def _tails(self, samples: int) -> list[int]:
        """Return how many operations each lane goes on for until the slowest is through: one more than just enough."""
        ends = [(lane.lead + samples * self.ops) * lane.each for lane in self.lanes]
        return [
            min(math.ceil((max(ends) - end) / lane.each), _MOST_TAIL) + self.ops // 2 + 1
            for lane, end in zip(self.lanes, ends, strict=True)
        ]


@contextlib.contextmanager
def _lane(side: Side, most: int) -> Iterator[_Lane]:
    """Make the events for ``most`` samples on the stream's device; they are destroyed however the block ends."""
    from cupy.cuda import Device

    with contextlib.ExitStack() as stack:
        lane = _Lane(side, side.alone)
        with Device(side.stream.device_id):
            for _ in range(most + 1):
                lane.marks.append(side.api.eventCreate())
                stack.callback(side.api.eventDestroy, lane.marks[-1])
        yield lane
