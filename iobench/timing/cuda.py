"""Timing on the GPU: CUDA events behind a gate, CUDA graphs, and the host's clock from call to completion.

An ``enqueue`` puts operation ``turn`` (0, 1, 2, ... so that buffers can rotate: pool.at(turn)) on its stream and
returns without waiting. It is called with its device and its stream current, so a cupy kernel goes to the right place.
Streams come from gpu.stream(device).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from iobench.timing import gate as gates
from iobench.timing.clock import COST_FRACTION

if TYPE_CHECKING:
    from iobench.timing.gate import Gate
    from iobench.timing.sampler import Sampler, Timed

Enqueue = Callable[[int], Any]
EVENTS, GRAPH, HOST_CALL = "events", "graph", "host-call"
RESOLUTION = 0.5e-6  # of CUDA events ("resolution of approximately 0.5 us", CUDA runtime API, cudaEventElapsedTime)
MOST_OPS = 128  # a launch queue holds about a thousand entries and one operation may take several
_MOST_REPLAYS = 32
_GRAPH_OPS = 64
_LEAST_SECONDS = 1e-3  # a sample's: what the first operation waits for and events cost is small in it
_LONG_SECONDS = 10e-3  # an operation that long needs none before it: starting cold costs some 10 us
_TRIES, _IN_A_ROW = 12, 4


@dataclass(frozen=True)
class Pair:
    """Two streams measured while both are busy.

    ``timed.seconds`` has two rows: the first stream's own times, then the second's, each per ``timed.ops``
    operations. ``overlapped`` is the part of the samples in which the other stream provably outlasted the measured
    one; ``method`` says how that was done, in words.
    """

    timed: Timed
    overlapped: float
    method: str = "each stream timed while the other, started before it, outlasts it"


def events(sampler: Sampler, enqueue: Enqueue, stream: Any, ops: int | None = None) -> Timed:
    """Time ``ops`` operations between two events on a stream that a gate blocks until all are enqueued.

    One more runs ahead of the first event: an operation that finds the GPU idle starts later (a copy of a peer's
    memory by 12 us). ``ops`` None: as many as last 1 ms, few enough for the launch queue.
    A gate that gave up (launch cost is then inside a sample) is recorded in the notes. Not for pageable host memory:
    the call of such a copy waits for its stream, and so for the gate; use ``host_call``.
    """
    gate = gates.shared(sampler, stream.device_id)
    with measured(enqueue, stream) as side, side.current():
        side.warm()
        number = ops or _choose(side, gate, _LEAST_SECONDS)
        gate.reset()
        timed = sampler.collect(lambda count: [[side.sample(gate, number) for _ in range(count)]], ops=number)
    timed.notes += [*_resolution_note(timed), *gate.notes]
    return timed


def events_pair(sampler: Sampler, first: Enqueue, first_stream: Any, second: Enqueue, second_stream: Any) -> Pair:
    """Time two streams at once (of one device or of two): each in turn is measured while the other outlasts it."""
    gate = gates.shared(sampler, first_stream.device_id)
    with measured(first, first_stream) as one, measured(second, second_stream) as two:
        ops = max(alone(side, gate, _LEAST_SECONDS) for side in (one, two))
        duel = _Duel(one, two, gate, ops)
        duel.calibrate()
        gate.reset()
        duel.overlapped.clear()
        timed = sampler.collect(duel.take, ops=ops)
    timed.notes += [*_resolution_note(timed), *gate.notes]
    return Pair(timed, sum(duel.overlapped) / len(duel.overlapped))


def graph(sampler: Sampler, enqueue: Enqueue, stream: Any, ops: int | None = None) -> Timed:
    """Capture ``ops`` operations (64 unless said) into a CUDA graph and time back-to-back replays between two events.

    Operation ``turn`` of every replay is the same: for buffers to rotate over the cache, ``ops`` of them must.
    """
    gate = gates.shared(sampler, stream.device_id)
    each = ops or _GRAPH_OPS
    with measured(enqueue, stream) as side, side.current():
        side.warm()
        replay = captured(enqueue, stream, each)
        with measured(lambda _: replay.launch(stream), stream) as whole:
            whole.warm()
            replays = _choose(whole, gate, RESOLUTION / COST_FRACTION, _MOST_REPLAYS)
            gate.reset()
            number = each * replays
            timed = sampler.collect(lambda count: [[whole.sample(gate, replays) for _ in range(count)]], ops=number)
    timed.notes += [*_resolution_note(timed), *gate.notes]
    return timed


def host_call(sampler: Sampler, call: Callable[[], Any]) -> Timed:
    """Time ``call`` by the host's clock; it must return after completion (enqueue, then synchronise)."""
    call()  # loads the kernel and maps memory
    return sampler.host(call)


@dataclass
class Side:
    """One stream with its operation, two events and the number of the next operation."""

    enqueue: Enqueue
    stream: Any
    start: int
    end: int
    api: Any
    turn: int = 0
    alone: float = 0.0  # seconds of one operation with nothing beside it

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Make the stream and its device current."""
        from cupy.cuda import Device

        with Device(self.stream.device_id), self.stream:
            yield

    def warm(self) -> None:
        """Run one operation without a gate: it may load a kernel, which waits for whatever runs."""
        self.enqueue(0)
        self.stream.synchronize()

    def put(self, ops: int) -> None:
        """Enqueue the next ``ops`` operations."""
        for turn in range(self.turn, self.turn + ops):
            self.enqueue(turn)
        self.turn += ops

    @property
    def lead(self) -> int:
        """How many operations run ahead of the timed ones."""
        return int(self.alone < _LONG_SECONDS)

    def mark(self, event: int) -> None:
        self.api.eventRecord(event, self.stream.ptr)

    def seconds(self) -> float:
        """Return what lay between the two events, once the second has passed."""
        return float(self.api.eventElapsedTime(self.start, self.end)) * 1e-3

    def sample(self, gate: Gate, ops: int) -> float:
        """Time ``ops`` operations alone; the stream is current."""
        with gate.closed():
            self.put(self.lead)
            self.mark(self.start)
            self.put(ops)
            self.mark(self.end)
        self.api.eventSynchronize(self.end)
        gate.count_late()
        return self.seconds()


class _Duel:
    """Two sides that interfere with each other."""

    def __init__(self, one: Side, two: Side, gate: Gate, ops: int) -> None:
        self._sides, self._gate, self._ops = (one, two), gate, ops
        self._against = [_outlasting(ops, one, two), _outlasting(ops, two, one)]
        self.overlapped: list[bool] = []

    def calibrate(self) -> None:
        """Let each side's opponent work longer until it outlasts the side several times in a row."""
        for number in (0, 1):
            for _ in range(_TRIES):
                self.overlapped.clear()
                self._sample(number)
                while self.overlapped[-1] and len(self.overlapped) < _IN_A_ROW:
                    self._sample(number)
                if self.overlapped[-1]:
                    break
                self._lengthen(number, 1.5)

    def take(self, count: int) -> list[list[float]]:
        """Return ``count`` samples of each side."""
        rows: list[list[float]] = [[], []]
        for _ in range(count):
            for number, row in enumerate(rows):
                row.append(self._sample(number))
        return rows

    def _sample(self, number: int) -> float:
        """Time one side from when the other has begun; the gate before the other's start holds both."""
        side, other = self._sides[number], self._sides[1 - number]
        with other.current(), self._gate.closed():
            other.mark(other.start)
            with side.current():
                side.api.streamWaitEvent(side.stream.ptr, other.start)
                side.put(side.lead)
                side.mark(side.start)
                side.put(self._ops)
                side.mark(side.end)
            other.put(self._against[number])
            other.mark(other.end)
        side.api.eventSynchronize(side.end)
        busy = other.api.eventQuery(other.end) != 0
        other.api.eventSynchronize(other.end)
        self._gate.count_late()
        if not busy and side.stream.device_id == other.stream.device_id:
            with side.current():
                busy = float(side.api.eventElapsedTime(side.end, other.end)) > 0
        self.overlapped.append(busy)
        if not busy:
            self._lengthen(number, 1.1)
        return side.seconds()

    def _lengthen(self, number: int, factor: float) -> None:
        """Let a side's opponent work longer from now on."""
        self._against[number] = min(math.ceil(self._against[number] * factor) + 1, 2 * MOST_OPS)


@contextlib.contextmanager
def measured(enqueue: Enqueue, stream: Any) -> Iterator[Side]:
    """Make the two events on the stream's device; they are destroyed however the block ends."""
    from cupy.cuda import Device
    from cupy.cuda import runtime as api

    with contextlib.ExitStack() as stack:
        with Device(stream.device_id):
            made = []
            for _ in range(2):
                made.append(api.eventCreate())
                stack.callback(api.eventDestroy, made[-1])
        yield Side(enqueue, stream, made[0], made[1], api)


def _choose(side: Side, gate: Gate, least: float, most: int = MOST_OPS) -> int:
    """Return how many operations make a sample last ``least`` seconds, at most ``most``; sets ``side.alone``."""
    gate.reset()
    ops = 1
    while True:
        taken = side.sample(gate, ops)
        if taken < _LONG_SECONDS:
            taken = min(taken, *(side.sample(gate, ops) for _ in range(2)))
        side.alone = max(taken, RESOLUTION) / ops
        if gate.late:
            return max(ops // 2, 1)  # the queue was full: fewer must do
        if taken >= least or ops >= most:
            return ops
        ops = min(most, max(ops * 2, math.ceil(1.1 * least / side.alone)))


def alone(side: Side, gate: Gate, least: float) -> int:
    with side.current():
        side.warm()
        return _choose(side, gate, least)


def _outlasting(ops: int, side: Side, other: Side) -> int:
    """Return how many operations of ``other`` last longer than ``ops`` of ``side``: one more than is just enough."""
    return min(math.ceil((ops + side.lead) * side.alone / other.alone) + 1, 2 * MOST_OPS)


def captured(enqueue: Enqueue, stream: Any, ops: int) -> Any:
    """Return the graph of ``ops`` operations, uploaded; a capture that fails leaves the stream as it was."""
    from cupy.cuda import runtime as api

    stream.begin_capture()
    try:
        for turn in range(ops):
            enqueue(turn)
    except BaseException:
        with contextlib.suppress(api.CUDARuntimeError):
            stream.end_capture()
        raise
    made = stream.end_capture()
    made.upload(stream)
    stream.synchronize()
    return made


def _resolution_note(timed: Timed) -> list[str]:
    """Say so where the events are too coarse for the samples."""
    shortest = min(min(row) for row in timed.seconds)
    if COST_FRACTION * shortest * (1 + 1e-6) >= RESOLUTION:
        return []
    return [f"the events' resolution of 0.5 us is {RESOLUTION / shortest:.0%} of the shortest sample"]
