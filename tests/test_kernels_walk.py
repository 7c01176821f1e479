"""Walks over KV blocks: the right sum in the right order, with and without prefetch, and faults that show."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from iobench import hostmem
from iobench.errors import Unavailable, WrongData
from iobench.kernels import walk
from iobench.kernels.team import Team, pinned
from iobench.kernels.walking import Walking
from iobench.units import KIB, MIB

CPUS = len(os.sched_getaffinity(0))


@pytest.fixture
def team() -> Iterator[Team]:
    with pinned(1) as made:
        yield made


def over(team: Team, nbytes: int = 256 * KIB, block: int = 2 * KIB, lines: int = 0, seed: int = 1) -> Walking:
    return Walking.over(hostmem_array(nbytes), block, lines, seed, team)


def hostmem_array(nbytes: int) -> np.ndarray:
    with hostmem.buffer(nbytes) as area:
        return area.data


@pytest.mark.parametrize("lines", [0, 1, 8, 32])
@pytest.mark.parametrize("block", [2 * KIB, 32 * KIB])
def test_every_distance_reads_the_same(team: Team, block: int, lines: int) -> None:
    work = over(team, MIB, block, lines)
    assert (work.take(3) > 0).all()
    assert work.moved == MIB
    assert work.ahead == -(-lines * 64 // walk.CHUNK)


def test_the_sum_is_that_of_plain_python(team: Team) -> None:
    work = over(team, 16 * KIB)
    words = work.parts[0].reshape(-1, 2 * KIB // 8)
    total = 0
    for block in work.tables[0]:
        total = (total * 31 + sum(int(word) for word in words[int(block)])) % (1 << 64)
    assert int(walk.expected(work.tables[0], np.uint64(4))) == total
    assert sorted(work.tables[0]) == list(range(8))


def test_settle_fills_a_sample(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    work = over(team, 64 * KIB)
    monkeypatch.setattr(work, "take", lambda count, driver=None: np.full(count, work.repeats * 1e-6))  # 1 us a pass
    work.settle()
    assert 150 <= work.repeats <= 600


def test_a_wrong_word_is_wrong_data(team: Team) -> None:
    work = over(team)
    work.parts[0][1000] += np.uint64(1)
    with pytest.raises(WrongData, match="walk in thread 0 of 1"):
        work.take(1)


def reverses(base: Any, table: Any, *rest: Any) -> None:
    walk.drive(base, table[::-1].copy(), *rest)


def skips(base: Any, table: Any, *rest: Any) -> None:
    walk.drive(base, table[:-1], *rest)


def shortens(base: Any, table: Any, chunks: Any, *rest: Any) -> None:
    walk.drive(base, table, chunks - np.uint64(1), *rest)


@pytest.mark.parametrize("fault", [reverses, skips, shortens])
def test_another_order_a_skipped_block_and_a_skipped_chunk_are_wrong_data(team: Team, fault: Any) -> None:
    with pytest.raises(WrongData):
        over(team).take(1, fault)


@pytest.mark.skipif(CPUS < 2, reason="needs two CPUs")
def test_threads_have_blocks_of_their_own() -> None:
    with pinned(2) as team:
        work = over(team)
        assert len(work.parts) == 2
        assert not np.shares_memory(*work.parts)
        assert (work.take(3) > 0).all()


def test_too_few_blocks_are_said(team: Team) -> None:
    with pytest.raises(Unavailable, match="no two blocks"):
        over(team, 2 * KIB)
    with pytest.raises(Unavailable, match="no two blocks"):
        over(team, 8 * KIB, block=700)
