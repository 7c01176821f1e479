"""The memory crosscheck: C twins that are right, ratios that mean what they say, peers' output."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from iobench.crosscheck import dram, dram_peers
from iobench.errors import UserError, WrongData
from iobench.kernels import stream
from iobench.stats import Interval
from tests.test_kernels import CASES, streaming
from tests.test_kernels_chase import chasing

needs_compiler = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")

LIKWID = """\
Iterations:\t\t128
Data volume (Byte):\t16384000000
MByte/s:\t\t11070.01
Cycles per update:\t3.534396
"""
MBW = (
    "0\tMethod: MEMCPY\tElapsed: 0.01518\tMiB: 64.00000\tCopy: 4215.518 MiB/s\n"
    "1\tMethod: MEMCPY\tElapsed: 0.01505\tMiB: 64.00000\tCopy: 4253.622 MiB/s\n"
    "2\tMethod: MEMCPY\tElapsed: 0.02065\tMiB: 64.00000\tCopy: 3098.523 MiB/s\n"
    "AVG\tMethod: MEMCPY\tElapsed: 0.01696\tMiB: 64.00000\tCopy: 3773.362 MiB/s\n"
)


@pytest.fixture(scope="module")
def code() -> Iterator[dram.Library]:
    with dram.library() as built:
        yield built


@needs_compiler
@pytest.mark.parametrize(("kernel", "nt"), CASES)
@pytest.mark.parametrize(("nbytes", "threads"), [(192, 1), (30_000, 3), (65_536, 1)])
def test_c_kernels_are_right(code: dram.Library, kernel: str, nt: bool, nbytes: int, threads: int) -> None:
    with streaming(kernel, nt, nbytes, threads) as work:
        work.take(1, code.stream)
        work.check()


@needs_compiler
def test_c_chase_walks_as_far(code: dram.Library) -> None:
    with chasing(1000) as work:
        work.take(777, 3, code.chase)
        work.take(777, 3)
        assert work.step == 777 * 6 % 1000


@needs_compiler
def test_a_row_of_each_kind(code: dram.Library) -> None:
    copy = {"kernel": "copy", "stores": "nt", "threads": 1, "pages": "base", "nbytes": 1 << 20}
    walk = {"kernel": "chase", "pages": "base", "nbytes": 1 << 14}
    lines: list[str] = []
    bandwidth, latency = dram._rows([copy, walk], code, 0.05, lines.append)
    assert len(lines) == 2
    assert "GB/s" in lines[0]
    assert "ns" in lines[1]
    assert bandwidth.ratio.median > 0
    assert latency.ratio.median > 0
    assert bandwidth.passed is bool(bandwidth.ratio.median >= 0.97)
    assert latency.passed is bool(abs(latency.ratio.median - 1) <= 0.03)


@needs_compiler
def test_a_wrong_side_stops_the_comparison(code: dram.Library, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = stream.drive

    def skips_tail(c: int, nt: int, t: np.ndarray, a: np.ndarray, b: np.ndarray, *rest: object) -> None:
        whole(c, nt, t[:-8], a[:-8], b[:-8], *rest)

    monkeypatch.setattr(stream, "drive", skips_tail)
    point = {"kernel": "copy", "stores": "plain", "threads": 1, "pages": "base", "nbytes": 1 << 16}
    with pytest.raises(WrongData):
        list(dram._rows([point], code, 0.01, lambda line: None))


def test_ratio_of_two_sides_in_turn() -> None:
    order: list[str] = []

    def side(name: str, seconds: float) -> object:
        def take() -> np.ndarray:
            order.append(name)
            return np.array([seconds * 1.5, seconds, seconds * 3])

        return take

    ours, theirs, ratio = dram.in_turn((side("a", 2.0), side("b", 1.0)), 0.0, dram.BANDWIDTH)
    assert (ours, theirs, ratio.median) == (2.0, 1.0, 0.5)
    assert order[2:6] == ["a", "b", "b", "a"], "the order alternates after one pass of each"


def test_bars() -> None:
    assert dram.BANDWIDTH.met(0.97)
    assert dram.BANDWIDTH.met(1.5)
    assert not dram.BANDWIDTH.met(0.969)
    assert dram.LATENCY.met(1.03)
    assert dram.LATENCY.met(0.971)
    assert not dram.LATENCY.met(0.96)
    assert not dram.LATENCY.met(1.04)
    assert dram.BANDWIDTH.ratio(2.0, 1.0) == 0.5, "twice the time is half the bandwidth"
    assert dram.LATENCY.ratio(2.0, 1.0) == 2.0
    assert dram.BANDWIDTH.clear(Interval(1.0, 0.98, 1.1, 9, 1))
    assert not dram.BANDWIDTH.clear(Interval(1.0, 0.96, 1.1, 9, 1))


def test_without_a_compiler_the_next_step_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(UserError, match="apt install gcc"), dram.library():
        pass
    monkeypatch.setenv("CC", str(tmp_path / "missing"))
    with pytest.raises(UserError, match="set CC"), dram.library():
        pass


def test_peers_output() -> None:
    assert dram_peers.likwid_rate(LIKWID) == pytest.approx(11070.01e6)
    assert dram_peers.mbw_rate(MBW) == pytest.approx(2 * 4215.518 * 2**20)
    for text in ("", "MByte/s:\t\t0.00\n", "MByte/s:\t\t-nan\n", "error\n"):
        assert dram_peers.likwid_rate(text) is None
        assert dram_peers.mbw_rate(text) is None


def test_peers_commands() -> None:
    point = {"kernel": "copy", "stores": "nt", "threads": 2, "pages": "base", "nbytes": 128 << 20}
    peer = dram_peers.likwid(point)
    assert peer is not None
    assert peer.name.startswith("likwid-bench copy_mem_")
    assert peer.command[-1] == "S0:134217kB:2"
    assert dram_peers.mbw(point) is None
    one = dram_peers.mbw({**point, "threads": 1})
    assert one is not None
    assert one.command[-2:] == ["-t0", "64"]
    assert dram_peers.likwid({"kernel": "chase", "pages": "base", "nbytes": 4096}) is None


def test_missing_peers_are_said_not_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    lines = list(dram_peers.compare([], 1))
    assert [line.split(":")[0] for line in lines] == ["likwid-bench", "mbw", "mlc"]
    assert all("not installed" in line for line in lines)
