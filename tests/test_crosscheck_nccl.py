"""The NCCL crosscheck without GPUs: the peer's command and output, the rows, the verdict."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from iobench import topology
from iobench.collectives.transport import Way
from iobench.crosscheck import nccl, nccl_sweep
from iobench.errors import IobenchError, UserError

OUTPUT = """# nccl-tests version 2.19.6 nccl-headers=22809 nccl-library=22809
# Collective test starting: all_reduce_perf
# nThread 2 nGpus 1 minBytes 8 maxBytes 1048576 step: 2(factor) warmup iters: 20 iters: 100
#
# Using devices
#  Rank  0 Group  0 Pid    100 on node-1 device  0 [0000:06:00] NVIDIA H200
#  Rank  1 Group  0 Pid    100 on node-1 device  1 [0000:07:00] NVIDIA H200
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
           8             2     float     sum      -1     5.45    0.00    0.00       0     5.47    0.00    0.00       0
     1048576        262144     float     sum      -1    13.25   79.14   79.14     {wrong}    13.31   78.78   78.78     0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 39.4800
#
# Collective test concluded: all_reduce_perf
"""


def test_the_peers_times_by_size_and_place() -> None:
    found = nccl.peer_times(OUTPUT.format(wrong=0))
    assert found == {
        (8, False): pytest.approx(5.45e-6), (8, True): pytest.approx(5.47e-6),
        (1048576, False): pytest.approx(13.25e-6), (1048576, True): pytest.approx(13.31e-6),
    }  # fmt: skip


def test_wrong_data_of_the_peer_is_no_comparison() -> None:
    with pytest.raises(IobenchError, match="nccl-tests found wrong data at 1 MiB"):
        nccl.peer_times(OUTPUT.format(wrong=7))


def test_commands_of_the_modes() -> None:
    graph = nccl.command("/x/all_reduce_perf", "graph", 2)
    assert graph[:5] == ["/x/all_reduce_perf", "-t", "2", "-g", "1"]
    assert graph[-2:] == ["-G", "5"]
    assert nccl.command("p", "blocking", 2)[-2:] == ["-z", "1"]
    assert "-G" not in nccl.command("p", "eager", 2)


def test_rows_cover_every_size_of_the_bar() -> None:
    table = nccl.rows("nvlink")
    sweep = [row.nbytes for row in table if row.mode == "graph" and not row.inplace]
    assert (sweep[0], sweep[-1], len(sweep)) == (8, 512 << 20, 27)
    assert {row.bar for row in table if row.mode == "graph"} == {1.02}
    assert {row.bar for row in table if row.mode == "eager"} == {None, 1.05}


@pytest.mark.parametrize(("ours", "met"), [(5.5e-6, True), (5.7e-6, False)])
def test_verdict_by_the_median_of_the_rounds_ratios(ours: float, met: bool) -> None:
    row = nccl.Row("nvlink", "graph", False, 8, 2, "auto", [5.45e-6, 5.5e-6, 5.6e-6], [ours, ours, 9e-6])
    said: list[str] = []
    assert nccl.judge([row], said.append) is met
    assert ("PASS" if met else "FAIL") in said[1]


def test_no_row_is_no_pass() -> None:
    assert not nccl.judge([], lambda _: None)
    small = nccl.Row("nvlink", "eager", False, 8, 2, "auto", [1e-5], [2e-5])
    assert not nccl.judge([small], lambda _: None)


def test_a_missing_peer_says_how_to_name_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("PEER", raising=False)
    with pytest.raises(UserError, match="all_reduce_perf is not on the PATH: build nccl-tests and give PEER="):
        nccl.find()
    monkeypatch.setenv("PEER", sys.executable)
    assert nccl.find() == str(Path(sys.executable).resolve())


def test_a_peer_that_fails_says_its_last_line(tmp_path: Path) -> None:
    program = tmp_path / "all_reduce_perf"
    program.write_text("#!/bin/sh\necho one >&2\necho Test NCCL failure >&2\nexit 3\n")
    program.chmod(0o755)
    with pytest.raises(UserError, match=r"ended with status 3 \(.*all_reduce_perf\): Test NCCL failure"):
        nccl.output([str(program)], Way("nvlink"))


def test_numbers_of_ranks_are_the_users_or_all_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANKS", raising=False)
    assert nccl._counts(8) == [8]
    monkeypatch.setenv("RANKS", "2,4,8")
    assert nccl._counts(8) == [2, 4, 8]
    for wrong in ("16", "1", "two"):
        monkeypatch.setenv("RANKS", wrong)
        with pytest.raises(UserError, match=f"RANKS={wrong} names no numbers of ranks from 2 to 8"):
            nccl._counts(8)


@pytest.mark.parametrize(("ours", "met"), [(20.0, True), (31.0, False), (0.0, False)])
def test_a_sweep_may_take_no_longer_than_the_peers(ours: float, met: bool) -> None:
    said: list[str] = []
    assert nccl_sweep.judge({"nccl-tests": 30.0, "iobench": ours}, said.append) is met
    assert said[0].startswith("PASS" if met else "FAIL")


def test_a_sweep_takes_the_transports_that_the_machine_has() -> None:
    machines = Path(__file__).resolve().parents[1] / "topologies"
    assert nccl_sweep._transports(topology.load(machines / "2x-h200.json")) == ["nvlink", "shm", "socket"]
    assert nccl_sweep._transports(topology.load(machines / "1x-h200.json")) == []
