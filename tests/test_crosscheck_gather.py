"""The gather's crosscheck: a C twin that is right, rows that judge both sides of the bar."""

from __future__ import annotations

import os
import shutil

import numpy as np
import pytest
from iobench import crosscheck
from iobench.crosscheck import dram, gather
from iobench.errors import WrongData
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
    assert len(found) == len(said) >= len(gather.BLOCKS)
    for row in found:
        assert row.passed is bool(0.97 <= row.ratio.median <= 1.03)
        assert row.ratio.median > 0
    assert crosscheck.find("cxl") is crosscheck.find("gather") is gather.run
