"""Load beside a chase: what it moves, that it stops, that wrong data is caught."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from iobench.errors import Unavailable, WrongData
from iobench.kernels import load, loading
from iobench.kernels.loading import Loading, Stage
from iobench.kernels.team import Team, neighbours
from iobench.units import KIB

CPUS = sorted(os.sched_getaffinity(0))
pytestmark = pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs: one chases, one loads")


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with loading.stage(64 * KIB, "base", CPUS[:2], seed=1) as made:
        yield made


def over(stage: Stage, mix: str, delay: int = 0) -> Loading:
    return Loading.over(stage.area.data, mix, delay, stage.chase, stage.team)


@pytest.mark.parametrize("mix", load.MIXES)
def test_every_mix_is_counted_and_verified(stage: Stage, mix: str) -> None:
    work = over(stage, mix)
    seconds = work.take(1025, 3)
    again = work.take(1025, 2)
    assert (seconds > 0).all()
    assert len(again) == 2
    work.check()
    nbytes, took = work.moved_during(2)
    assert nbytes >= 0  # 0 where the load's thread was kept from its CPU meanwhile
    assert took > 0
    assert work.moved_during(5)[0] == sum(moved for _, moved, _ in work.windows)
    assert work._states[0, load.DONE] > 0  # each call waits for the load to begin


@pytest.mark.parametrize(("mix", "factor"), [("read", 1), ("write", 1), ("1:1", 2), ("2:1", 1.5), ("3:1", 4 / 3)])
def test_a_modified_chunk_crosses_the_bus_twice(stage: Stage, mix: str, factor: float) -> None:
    work = over(stage, mix)
    chunks = work.parts[0].size // load.WORDS
    assert chunks == 128
    assert work._bus_nbytes(0, chunks) == pytest.approx(chunks * load.CHUNK * factor, rel=0.01)
    # the chunks of a part of a round: 0, every, 2 * every ... are the modified ones
    done = [work._bus_nbytes(0, count) for count in range(2 * chunks + 2)]
    steps = {after - before for before, after in itertools.pairwise(done)}
    assert steps <= {load.CHUNK, 2 * load.CHUNK}


def test_a_delay_waits_as_many_steps() -> None:
    def stepped(value: int, steps: int) -> int:
        for _ in range(steps):
            value = (value * load._FACTOR + load._TERM) % (1 << 64)
        return value

    assert [int(load.wait(steps, np.uint64(3))) for steps in (0, 1, 64)] == [stepped(3, n) for n in (0, 1, 64)]


def test_the_load_waits_between_chunks(stage: Stage) -> None:
    for delay in (0, 65536):
        work = over(stage, "read", delay)
        work.take(1025, 1)
        state = work._states[0]
        assert bool(state[load.SINK]) is bool(delay), "each chunk's multiplications go on from the last one's"


@pytest.mark.parametrize("chunks", [1, load.BURST - 1, load.BURST, load.BURST + 5])
def test_reads_without_a_delay_end_with_their_slice(stage: Stage, chunks: int) -> None:
    data = stage.area.data[: chunks * load.CHUNK]
    work = Loading.over(data, "read", 0, stage.chase, stage.team)
    work.take(1025, 2)
    work.check()


@pytest.mark.parametrize("mix", ["read", "2:1", "write"])
def test_a_wrong_word_is_wrong_data(stage: Stage, mix: str) -> None:
    work = over(stage, mix)
    work.take(1025, 1)
    work.parts[0][77] ^= np.uint64(1 << 33)
    with pytest.raises(WrongData, match="load thread 0 of 1: word 77"):
        work.check()


@pytest.mark.parametrize("mix", ["read", "1:1", "write"])
def test_a_load_that_skips_its_tail_is_wrong_data(stage: Stage, mix: str) -> None:
    def skips(words: Any, *rest: Any) -> None:
        load.drive(words[:-64], *rest)

    work = over(stage, mix)
    while work._states[0, load.DONE] < 2 * work.parts[0].size // load.WORDS:  # on a busy machine one call may be short
        work.take(1025, 1, skips)
    with pytest.raises(WrongData):
        work.check()


def test_a_chase_that_goes_astray_ends_the_load(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    work = over(stage, "read")

    def lost(loads: int, count: int) -> None:
        raise WrongData("astray")

    monkeypatch.setattr(stage.chase, "take", lost)
    with pytest.raises(WrongData, match="astray"):
        work.take(1025, 1)
    monkeypatch.undo()
    assert len(work.take(1025, 2)) == 2  # the threads are there for the next call


def test_slices_need_a_chunk_for_each_thread() -> None:
    data = np.zeros(4096, np.uint8)
    assert [part.size for part in loading.slices(data, 3)] == [128, 128, 128]
    with pytest.raises(Unavailable, match="ask for more"):
        loading.slices(data, 9)


def test_a_team_starts_and_waits() -> None:
    with Team(CPUS[:2]) as team:
        team.start(lambda thread: thread + 10)
        assert team.wait() == [10, 11]


def test_neighbours_stay_on_one_node() -> None:
    split = {cpu: number % 2 for number, cpu in enumerate(CPUS)}
    (first,) = neighbours(1, split)
    assert first in CPUS
    with pytest.raises(Unavailable, match="CPUs of one NUMA node"):
        neighbours(len(CPUS), split)
    assert sorted(neighbours(len(CPUS), {})) == CPUS
