"""Timing of several streams at once: every GPU of a machine that copies to the host at the same time."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from iobench.timing import cuda
from iobench.timing import gate as gates

if TYPE_CHECKING:
    from iobench.timing.cuda import Enqueue
    from iobench.timing.gate import Gate
    from iobench.timing.sampler import Sampler, Timed

METHOD = "all streams start together, and each goes on for half as long again once its timed part is over"
_LEAST_SECONDS = 1e-3  # streams of several GPUs start some us apart


def events_together(sampler: Sampler, lanes: Sequence[tuple[Enqueue, Any]]) -> Timed:
    """Time streams (each with its ``enqueue``, of one device or of several) while all of them are busy.

    ``seconds`` has a row per stream: its own time for ``ops`` operations. One gate at the head of the first stream
    holds all. Streams much slower than the others are alone at their end: no proof of overlap crosses devices.
    """
    gate = gates.shared(sampler, lanes[0][1].device_id)
    with contextlib.ExitStack() as stack:
        sides = [stack.enter_context(cuda.measured(enqueue, stream)) for enqueue, stream in lanes]
        ops = max(cuda.alone(side, gate, _LEAST_SECONDS) for side in sides)
        _sample(sides, gate, ops)
        gate.reset()
        timed = sampler.collect(
            lambda count: list(zip(*(_sample(sides, gate, ops) for _ in range(count)), strict=True)), ops=ops
        )
    timed.notes += gate.notes
    return timed


def _sample(sides: Sequence[cuda.Side], gate: Gate, ops: int) -> list[float]:
    """Return the seconds that each stream took for ``ops`` operations."""
    leader = sides[0]
    with leader.current(), gate.closed():
        leader.mark(leader.start)
        for side in sides[1:]:
            side.api.streamWaitEvent(side.stream.ptr, leader.start)
        for side in sides:  # the leader's event is recorded anew: the others wait for what it was when they asked
            with side.current():
                side.put(side.lead)
                side.mark(side.start)
                side.put(ops)
                side.mark(side.end)
                side.put(ops // 2 + 1)
    for side in sides:
        side.stream.synchronize()
    gate.count_late()
    return [side.seconds() for side in sides]
