"""The pointer chase: one cycle through every node, walked as far as it says."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from iobench.errors import Unavailable, WrongData
from iobench.kernels import chase
from iobench.kernels.chasing import Chasing
from iobench.kernels.team import Team

SIZES = [2, 3, 7, 8, 9, 64, 1000, 4099]


@contextmanager
def chasing(nodes: int, seed: int = 1) -> Iterator[Chasing]:
    raw = np.zeros(nodes * 64 + 64, np.uint8)
    data = raw[-raw.ctypes.data % 64 :][: nodes * 64]
    with Team([min(os.sched_getaffinity(0))]) as team:
        yield Chasing.over(data, seed, team)


def _walk(work: Chasing) -> list[int]:
    """Follow the pointers in Python from the first node until it comes back."""
    base, place, seen = int(work.words.ctypes.data), int(work.order[0]), []
    while not seen or place != seen[0]:
        seen.append(place)
        place = (int(work.words[place * 8]) - base) // 64
    return seen


@pytest.mark.parametrize("nodes", SIZES)
def test_the_cycle_visits_every_node_once(nodes: int) -> None:
    with chasing(nodes) as work:
        work.check()
        assert sorted(_walk(work)) == list(range(nodes))


@pytest.mark.parametrize("nodes", [n for n in SIZES if n > 3])
def test_two_cycles_are_caught(nodes: int) -> None:
    with chasing(nodes) as work:
        first, middle = (int(work.order[k]) * 8 for k in (0, nodes // 2))
        work.words[first], work.words[middle] = work.words[middle], work.words[first]
        assert len(_walk(work)) < nodes
        with pytest.raises(WrongData, match="no single cycle"):
            work.check()


@pytest.mark.parametrize("nodes", [n for n in SIZES if n > 2])
def test_a_node_left_out_is_caught(nodes: int) -> None:
    with chasing(nodes) as work:
        a, b = (int(work.order[k]) * 8 for k in (1, 2))
        work.words[a] = work.words[b]
        with pytest.raises(WrongData):
            work.check()


@pytest.mark.parametrize("wild", [0, 8, -64, 10**15])
def test_a_pointer_out_of_the_buffer_is_caught_not_followed(wild: int) -> None:
    with chasing(100) as work:
        place = wild if wild in (0, 10**15) else int(work.words.ctypes.data) + wild
        work.words[int(work.order[50]) * 8] = place
        with pytest.raises(WrongData):
            work.check()


def test_the_order_differs_by_seed_and_repeats_with_it() -> None:
    one, same, other = (chase.random_order(1000, seed) for seed in (1, 1, 2))
    assert (one == same).all()
    assert (one != other).any()


def test_samples_go_on_where_the_last_stopped() -> None:
    with chasing(1000) as work:
        for loads, count in ((7, 3), (1000, 1), (333, 5)):
            seconds = work.take(loads, count)
            assert seconds.shape == (count,)
            assert (seconds >= 0).all()  # 0 where the clock's steps are longer than seven loads
        assert work.step == (7 * 3 + 1000 + 333 * 5) % 1000


@pytest.mark.parametrize("short", [1, 8, 50])
def test_a_chase_that_does_fewer_loads_is_caught(short: int) -> None:
    def driver(start: Any, loads: int, *out: Any) -> None:
        chase.drive(start, loads - short, *out)

    with chasing(1000) as work, pytest.raises(WrongData, match="loads ended at"):
        work.take(100, 2, driver)


def test_settle_asks_for_an_odd_number_that_fills_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    with chasing(64) as work:
        monkeypatch.setattr(work, "take", lambda loads, count: np.full(count, loads * 2e-9))  # 2 ns a load
        assert work.settle() == (1 << 18) + 1


def test_settle_is_not_misled_by_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    with chasing(64) as work:
        paused = np.array([0.3, 0.1, 0.0, 1.2, 0.1])
        monkeypatch.setattr(work, "take", lambda loads, count: paused + loads * 2e-9)
        assert work.settle() == (1 << 18) + 1


def test_loads_depend_on_each_other() -> None:
    """A load that hits the first cache takes at least three cycles: faster than 0.3 ns means it was not done."""
    with chasing(64) as work:
        assert work.take(1 << 16, 3).min() / (1 << 16) > 0.3e-9


def test_less_than_two_nodes_is_unavailable() -> None:
    with Team([min(os.sched_getaffinity(0))]) as team, pytest.raises(Unavailable):
        Chasing.over(np.zeros(64, np.uint8), 1, team)
