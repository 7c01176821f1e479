"""Timing on a GPU without one: gates, how many operations a sample has, two streams at once."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import numpy as np
import pytest
from iobench.timing import cuda
from iobench.timing.gate import Gate


class Kernel:
    """Stands for the gate's kernel: keeps what it was launched with, and gives up where told to."""

    def __init__(self) -> None:
        self.launched: list[int] = []
        self.words = np.zeros(32, dtype=np.uint32)
        self.gives_up = False

    def __call__(self, grid: Any, block: Any, arguments: Any) -> None:
        ticket = int(arguments[2])
        assert int(self.words[0]) < ticket, "the gate stands open before it is closed"
        self.launched.append(ticket)
        if self.gives_up:
            self.words[16] = ticket


def made_gate() -> tuple[Gate, Kernel]:
    kernel = Kernel()
    return Gate(kernel.words, 0, kernel), kernel


def test_a_gate_opens_once_all_is_enqueued() -> None:
    gate, kernel = made_gate()
    for ticket in (1, 2, 3):
        with gate.closed():
            assert int(kernel.words[0]) == ticket - 1
        assert int(kernel.words[0]) == ticket
        assert not gate.count_late()
    assert kernel.launched == [1, 2, 3]
    assert gate.notes == []


def test_a_gate_opens_after_an_error_too() -> None:
    gate, kernel = made_gate()
    with pytest.raises(KeyboardInterrupt), gate.closed():
        raise KeyboardInterrupt
    assert int(kernel.words[0]) == 1


def test_a_gate_that_gave_up_is_in_the_notes() -> None:
    gate, kernel = made_gate()
    for gives_up in (False, True, False):
        kernel.gives_up = gives_up
        with gate.closed():
            pass
        assert gate.count_late() is gives_up
    assert gate.notes == [
        "the gate gave up after 0.5 s in 1 of 3 samples (the launch queue was full or the host was late): launch cost "
        "is inside them"
    ]


class Side:
    """Stands for a stream whose operations take ``each`` seconds, and whose queue holds ``room`` of them."""

    lead = 1

    def __init__(self, each: float, room: int = 10**6, fixed: float = 1.5e-6) -> None:
        self.each, self.room, self.fixed, self.alone = each, room, fixed, 0.0
        self.asked: list[int] = []

    def sample(self, gate: Gate, ops: int) -> float:
        self.asked.append(ops)
        gate.late += ops > self.room
        return self.fixed + ops * self.each


@pytest.mark.parametrize("each", [0.02, 1e-3, 60e-6, 30e-6, 2e-6, 1e-6])
def test_enough_operations_for_the_events_resolution(each: float) -> None:
    gate, _ = made_gate()
    side = Side(each)
    ops = cuda._choose(side, gate, cuda.RESOLUTION / 0.01)
    assert side.fixed + ops * each >= 50e-6
    assert ops == 1 or ops <= 3 * math.ceil(50e-6 / each), "more than needed"
    assert side.alone == pytest.approx(each + side.fixed / ops)


def test_never_more_operations_than_the_launch_queue_holds() -> None:
    gate, _ = made_gate()
    side = Side(1e-9)
    assert cuda._choose(side, gate, 50e-6) == cuda.MOST_OPS
    assert max(side.asked) == cuda.MOST_OPS


def test_a_full_queue_asks_for_fewer_operations() -> None:
    gate, _ = made_gate()
    assert cuda._choose(Side(1e-6, room=20), gate, 50e-6) <= 32


@pytest.mark.parametrize(("one", "two"), [(1e-3, 1e-3), (1e-3, 3e-4), (3e-4, 1e-3)])
def test_the_other_stream_outlasts_the_measured_one(one: float, two: float) -> None:
    measured, other = Side(one), Side(two)
    measured.alone, other.alone = one, two
    assert cuda._outlasting(4, measured, other) * two > (4 + measured.lead) * one


class Fake:
    """Stands for the CUDA runtime and two streams: an operation takes ``each`` seconds, the second stream's start
    holds the first's, and both begin when the gate opens."""

    def __init__(self, each: tuple[float, float]) -> None:
        self.each, self.clock, self.marks = each, [0.0, 0.0], {}

    def eventRecord(self, event: int, stream: int) -> None:  # noqa: N802
        self.marks[event] = self.clock[stream]

    def streamWaitEvent(self, stream: int, event: int) -> None:  # noqa: N802
        self.clock[stream] = self.marks[event] + 3e-6

    def eventSynchronize(self, event: int) -> None:  # noqa: N802
        self.clock = [max(self.clock)] * 2

    def eventQuery(self, event: int) -> int:  # noqa: N802
        return 0

    def eventElapsedTime(self, start: int, end: int) -> float:  # noqa: N802
        return (self.marks[end] - self.marks[start]) * 1e3

    def side(self, number: int) -> Any:
        def work(turn: int) -> None:
            self.clock[number] += self.each[number]

        made = cuda.Side(work, FakeStream(number), 2 * number, 2 * number + 1, self)
        made.current = contextlib.nullcontext  # type: ignore[method-assign]
        made.alone = self.each[number] / 2  # half as fast with the other beside it
        return made


class FakeStream:
    def __init__(self, number: int) -> None:
        self.ptr, self.device_id = number, 0


@pytest.mark.parametrize("each", [(1e-4, 1e-4), (1e-4, 3e-5), (3e-5, 1e-3)])
def test_each_stream_is_timed_while_the_other_outlasts_it(each: tuple[float, float]) -> None:
    gate, _ = made_gate()
    fake = Fake(each)
    duel = cuda._Duel(fake.side(0), fake.side(1), gate, ops=5)
    duel.calibrate()
    duel.overlapped.clear()
    rows = duel.take(7)
    assert all(duel.overlapped)
    assert len(duel.overlapped) == 14
    for row, seconds in zip(rows, each, strict=True):
        assert row == pytest.approx([5 * seconds] * 7)


def test_an_opponent_that_is_too_short_works_longer_next_time() -> None:
    gate, _ = made_gate()
    fake = Fake((1e-4, 1e-4))
    one, two = fake.side(0), fake.side(1)
    two.alone *= 10  # taken for slow: too few operations against the first
    duel = cuda._Duel(one, two, gate, ops=50)
    duel.calibrate()
    duel.overlapped.clear()
    duel.take(2)
    assert all(duel.overlapped)
