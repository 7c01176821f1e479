"""RDMA where one side pauses: what comes late is no loss of the next message, and one slow pilot decides nothing."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from iobench.rdma import loops, measure
from iobench.rdma.setup import Setup
from iobench.timing.sampler import Sampler

from rdma_sides import Sides, sound_sides

STREAM = Setup("send", 300, "UD", depth=16, every=4)


@pytest.fixture
def sides(tmp_path: Path) -> Iterator[Sides]:
    with sound_sides(tmp_path) as made:
        yield made


@pytest.mark.parametrize("loop", ["native", "pyverbs"])
def test_datagrams_that_come_after_they_were_given_up_are_not_taken_for_later_ones(sides: Sides, loop: str) -> None:
    sides.join(replace(STREAM, loop=loop))
    sides.call("fill", turn=1)
    sides.sides[0].stream(64, [16], False)  # the other side has given up before
    assert sides.call("check", turn=1, both=False) == [0, 300]
    assert len(sides.call("exchange", count=3, verify=True)[0]) == 3
    assert sides.sides[1].loops.flush() == 0


def test_bulk_flows_flow_before_anything_is_timed_beside_them(sides: Sides) -> None:
    sides.join(Setup("send", 300, flows=2, flow_nbytes=4096))
    sides.call("load", on=True)
    assert all(one._flooded[0] > 0 for one in sides.sides)
    assert all(answer["messages"] > 0 for answer in sides.call("load", on=False))


EACH_NS = 10_000  # of a message on the device below
PAUSED_AFTER = 10  # messages


class Scheduled:
    """A pair whose sender stands still for so many seconds in the streams that are named, by their number."""

    def __init__(self, pauses: dict[int, float]) -> None:
        self.pauses, self.asked, self.numbers = pauses, [], itertools.count()

    def call(self, method: str, deadline: float = 0.0, **arguments: Any) -> list[Any]:
        if method != "stream":
            return [0, 0]
        self.asked.append(arguments)
        pause = int(self.pauses.get(next(self.numbers), 0.0) * 1e9)
        stamps = [_seen(mark, pause) for mark in arguments["marks"]]
        return [{"stamps": stamps, "received": None}, {"stamps": [], "received": arguments["total"]}]


def _seen(message: int, pause: int) -> int:
    """Return when it is known to be done: what is in flight completes during a pause and is seen at once after it."""
    if not pause or message <= PAUSED_AFTER:
        return message * EACH_NS
    return PAUSED_AFTER * EACH_NS + pause + max(message - PAUSED_AFTER - STREAM.depth, 0) * EACH_NS


@pytest.mark.parametrize("paused", [{}, {0: 0.3}, {1: 0.3}, {0: 0.3, 2: 0.01}])
def test_a_pilot_that_paused_does_not_decide_how_long_a_sample_is(paused: dict[int, float]) -> None:
    pair: Any = Scheduled(paused)
    timed, more = measure._bandwidth(pair, STREAM, Sampler(budget=60.0, max_samples=5), False)
    assert timed.ops == pytest.approx(measure._STREAM_SECONDS / (EACH_NS * 1e-9), abs=STREAM.every)
    assert more["messages"] == sum(asked["total"] for asked in pair.asked)
    assert more["lost"] == 0


def test_a_pilot_of_what_completed_at_once_is_no_rate() -> None:
    """After a pause all that was in flight is seen in one look: two neighbouring stamps would be some ns apart."""
    pair: Any = Scheduled({0: 0.3, 1: 0.3, 2: 0.3})
    timed, _ = measure._bandwidth(pair, STREAM, Sampler(budget=60.0, max_samples=5), False)
    assert timed.ops <= measure._STREAM_SECONDS / (EACH_NS * 1e-9) + STREAM.every


def test_pilots_end_with_the_budget() -> None:
    asked = iter([3.0, 2.0, 1.0])
    assert measure._fastest(lambda: next(asked), -1.0) == 3.0
    assert next(asked) == 2.0


def test_a_flush_ends_where_nothing_comes(sides: Sides) -> None:
    sides.join(STREAM)
    limit = int(sides.sides[1].loops.table[loops.LIMIT])
    assert sides.sides[1].loops.flush() == 0
    assert int(sides.sides[1].loops.table[loops.LIMIT]) == limit
