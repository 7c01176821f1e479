"""Timing on the GPU: CUDA events behind a gate, CUDA graphs, and the host's clock from call to completion.

An ``enqueue`` puts operation ``turn`` (0, 1, 2, ... so that buffers can rotate: pool.at(turn)) on its stream and
returns without waiting. It is called with its device and its stream current, so a cupy kernel goes to the right place.
Streams come from gpu.stream(device).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from iobench.timing.sampler import Sampler, Timed

Enqueue = Callable[[int], Any]
EVENTS, GRAPH, HOST_CALL = "events", "graph", "host-call"


@dataclass(frozen=True)
class Pair:
    """Two streams measured while both are busy. ``timed.seconds`` has two rows: the first stream's own times, then
    the second's, each per ``timed.ops`` operations. ``overlapped`` is the part of the samples in which the other
    stream provably outlasted the measured one; ``method`` says how that was done, in words."""

    timed: Timed
    overlapped: float
    method: str


def events(sampler: Sampler, enqueue: Enqueue, stream: Any, ops: int | None = None) -> Timed:
    """Time ``ops`` operations between two events on a stream that a gate blocks until all are enqueued.

    ``ops`` None: as many as make the events' resolution (0.5 us) less than 1 %, few enough for the launch queue.
    A gate that gave up (launch cost is then inside a sample) is recorded in the notes.
    """
    raise NotImplementedError


def events_pair(sampler: Sampler, first: Enqueue, first_stream: Any, second: Enqueue, second_stream: Any) -> Pair:
    """Time two streams at once (of one device or of two): each in turn is measured while the other outlasts it."""
    raise NotImplementedError


def graph(sampler: Sampler, enqueue: Enqueue, stream: Any, ops: int | None = None) -> Timed:
    """Capture ``ops`` operations into a CUDA graph and time back-to-back replays between two events."""
    raise NotImplementedError


def host_call(sampler: Sampler, call: Callable[[], Any]) -> Timed:
    """Time ``call`` by the host's clock; it must return after completion (enqueue, then synchronise)."""
    raise NotImplementedError
