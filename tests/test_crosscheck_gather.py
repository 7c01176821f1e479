"""The gather's crosscheck: a C twin that is right, rows that judge both sides of the bar."""

from __future__ import annotations

import os
import shutil

import numpy as np
import pytest
from iobench import crosscheck
from iobench.crosscheck import dram, gather
from iobench.errors import WrongData
from iobench.kernels import team
from iobench.kernels.gathering import Gathering
from iobench.kernels.team import pinned
from iobench.units import KIB, MIB

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")


def lines(nbytes: int) -> np.ndarray:
    data = np.zeros(nbytes + 64, np.uint8)
    return data[-int(data.ctypes.data) % 64 :][:nbytes]


@pytest.mark.parametrize("block", [64, 18 * KIB, 32 * KIB])
def test_the_c_twin_gathers_the_same(block: int) -> None:
    with dram.library() as code, pinned(1) as team:
        work = Gathering.over(lines(MIB), lines(MIB), block, 5, team)
        work.take(2, code.gather)
        work.check()
        ours = work.target.copy()
        work.poison()
        work.take(1)
        assert np.array_equal(ours, work.target)


def test_a_side_that_leaves_a_block_out_stops_the_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    with dram.library() as code:
        whole = code.gather
        monkeypatch.setattr(code, "gather", lambda t, p, table, *rest: whole(t, p, table[:-1], *rest))
        with pytest.raises(WrongData):
            list(gather.rows(code, None, 0.05, lambda _: None, 2 * MIB))


@pytest.mark.parametrize("threads", [1, min(2, len(os.sched_getaffinity(0)))])
def test_pieces_are_the_whole_gather(threads: int) -> None:
    with pinned(threads) as team:
        work = Gathering.over(lines(2 * MIB), lines(2 * MIB), 4 * KIB, 5, team)
        cut = gather.pieces(work)
        gathered = [np.concatenate([piece.tables[thread] for piece in cut]) for thread in range(threads)]
        for thread, blocks in enumerate(gathered):
            assert np.array_equal(blocks, work.tables[thread][: blocks.size])
            assert work.tables[thread].size - blocks.size < gather._PIECES
        for piece in cut:
            piece.take(1)
            piece.check()
        assert sum(piece.target.nbytes for piece in cut) == sum(blocks.size for blocks in gathered) * work.block


def test_rows_and_the_way_to_them() -> None:
    said: list[str] = []
    with dram.library() as code:
        found = list(gather.rows(code, None, 0.02, said.append, 2 * MIB))
    skipped = [line for line in said if "skipped: " in line]  # small blocks are too few for very many CPUs
    assert len(found) + len(skipped) == len(said)
    assert len([row for row in found if ", 1 thread" in row.name]) == len(gather.BLOCKS)
    for row in found:
        assert row.passed is gather.WITHIN.met(row.ratio.median)
        assert row.ratio.median > 0


def test_more_threads_than_blocks_are_skipped_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of 100 CPUs; all threads share one."""
    cpu = min(os.sched_getaffinity(0))
    monkeypatch.setattr(gather.os, "sched_getaffinity", lambda _: set(range(100)))
    monkeypatch.setattr(team, "pinned", lambda threads: team.Team([cpu] * threads))
    monkeypatch.setattr(gather, "BLOCKS", (256 * KIB,))
    said: list[str] = []
    with dram.library() as code:
        (one,) = gather.rows(code, None, 0.0, said.append, 2 * MIB)
    assert ", 1 thread" in one.name
    assert "skipped: 2097152 bytes hold no block of 262144 for each of 100 threads" in said[1]


def test_names_find_it() -> None:
    assert crosscheck.find("cxl") is crosscheck.find("gather") is gather.run
