"""Collectives on two GPUs: right data for every operation, type and mode; the way proven; faults found; physics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from iobench import probe as probes
from iobench import topology
from iobench.collectives import gpus, transport
from iobench.collectives.ops import OPS
from iobench.collectives.torch import supports
from iobench.collectives.transport import NotTaken, Way
from iobench.errors import WrongData
from iobench.ranks import RankFailed
from iobench.timing.sampler import Sampler

pytestmark = [pytest.mark.gpu, pytest.mark.multigpu]
PROBE = probes.load("allreduce")
MIB = 1 << 20


@pytest.fixture(scope="module")
def sampler() -> Iterator[Sampler]:
    made = Sampler(budget=0.05, max_samples=40)
    yield made
    made.close()


@pytest.fixture(scope="module")
def pair() -> list[str]:
    found = [node.id for node in topology.discover().of("gpu") if node.get("vendor") == "NVIDIA"][:2]
    if len(found) < 2:
        pytest.skip("needs two NVIDIA GPUs")
    return found


def point(**more: Any) -> dict[str, Any]:
    base = {
        "engine": "nccl", "transport": "nvlink", "ranks": 2, "nodes": 1, "inplace": "no", "mode": "graph",
        "algo": "auto", "proto": "auto", "op": "all_reduce", "dtype": "float32", "nbytes": MIB,
    }  # fmt: skip
    return base | more


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float8"])
@pytest.mark.parametrize("op", OPS)
def test_every_operation_and_type_is_right(sampler: Sampler, pair: list[str], op: str, dtype: str) -> None:
    samples = gpus.measure(point(op=op, dtype=dtype), sampler, pair)
    assert samples.verified
    assert min(samples.evidence["verified_results"]) > 0
    assert samples.proven, samples.path


@pytest.mark.parametrize("op", [name for name, op in OPS.items() if op.inplace])
def test_in_place(sampler: Sampler, pair: list[str], op: str) -> None:
    assert gpus.measure(point(op=op, inplace="yes", nbytes=64 << 10), sampler, pair).verified


@pytest.mark.parametrize("nbytes", [8, 16, 4096, 4096 + 8, MIB + 64, 64 * MIB])
def test_sizes_and_what_nccl_chose_for_them(sampler: Sampler, pair: list[str], nbytes: int) -> None:
    samples = gpus.measure(point(nbytes=nbytes), sampler, pair)
    assert samples.evidence["algo"] in ("ring", "tree", "nvls")
    assert samples.evidence["proto"] in ("ll", "ll128", "simple")


def test_modes_stand_in_their_order(sampler: Sampler, pair: list[str]) -> None:
    times = {}
    for mode in ("graph", "eager", "blocking"):
        timed = gpus.measure(point(mode=mode, nbytes=8), sampler, pair).timed
        times[mode] = min(map(max, zip(*timed.seconds, strict=True))) / timed.ops
    assert 1e-6 < times["graph"] < times["eager"] * 1.1
    assert times["eager"] < times["blocking"] * 1.5


def test_bandwidth_below_the_links_and_above_half_of_them(sampler: Sampler, pair: list[str]) -> None:
    samples = gpus.measure(point(nbytes=256 * MIB), sampler, pair)
    graph = sampler.topology
    path = graph.path(pair[0], pair[1])
    assert path is not None
    limit = min(link.bytes_per_s for link in path.links if link.bytes_per_s)
    rate = samples.moved / (min(map(max, zip(*samples.timed.seconds, strict=True))) / samples.timed.ops)
    assert 0.5 * limit < rate < limit


@pytest.mark.parametrize("way", ["shm", "socket"])
def test_other_transports_are_taken_and_slower(sampler: Sampler, pair: list[str], way: str) -> None:
    samples = gpus.measure(point(transport=way, nbytes=16 * MIB), sampler, pair)
    assert samples.proven, samples.path
    assert samples.path.startswith(way)
    assert samples.moved / (min(samples.timed.seconds[0]) / samples.timed.ops) < 64e9


def test_infiniband_that_is_not_there_is_never_a_number(sampler: Sampler, pair: list[str]) -> None:
    if sampler.topology.of("port"):
        pytest.skip("this machine has RDMA ports")
    with pytest.raises((NotTaken, RankFailed)):
        gpus.measure(point(transport="ib"), sampler, pair)


@pytest.mark.parametrize("mode", ["graph", "eager"])
@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "sendrecv", "broadcast"])
def test_torch(sampler: Sampler, pair: list[str], op: str, mode: str) -> None:
    inplace = "yes" if supports(op, "float32", True) else "no"
    samples = gpus.measure(point(engine="torch", op=op, mode=mode, inplace=inplace, nbytes=MIB), sampler, pair)
    assert samples.verified
    assert "torch" in samples.evidence


def test_algorithm_and_protocol_can_be_asked_for(sampler: Sampler, pair: list[str]) -> None:
    samples = gpus.measure(point(algo="ring", proto="Simple", nbytes=4096), sampler, pair)
    assert (samples.evidence["algo"], samples.evidence["proto"]) == ("ring", "simple")


PLANTED = '''
import os, signal

from iobench.collectives.nccl import Nccl


class Planted(Nccl):
    """Rank 1 spoils a result, kills or stops itself, by the size."""

    def time_graph(self, count, replays):
        found = super().time_graph(count, replays)
        if self.rank.rank == 1 and self._current.work.nbytes == 4096:
            from cupy.cuda import runtime as api
            api.memset(self._current.receive.at(0), 0, 64)
        if self.rank.rank == 1 and self._current.work.nbytes == 8192:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.rank.rank == 1 and self._current.work.nbytes == 16384:
            os.kill(os.getpid(), signal.SIGSTOP)
        return found
'''


@pytest.fixture
def planted(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sampler]:
    file = tmp_path_factory.mktemp("planted") / "planted.py"
    file.write_text(PLANTED)
    monkeypatch.setitem(gpus.TARGETS, "nccl", f"{file}:Planted")
    monkeypatch.setattr(gpus, "_DEADLINE_SECONDS", 10.0)
    made = Sampler(budget=0.05, max_samples=10)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("nbytes", "error", "words"),
    [
        (4096, WrongData, "all_reduce: 16 of 1024 elements of rank 1's result are wrong, the first is element 0"),
        (8192, RankFailed, "rank 1 killed by signal 9 while in all_reduce of 8192 bytes"),
        (16384, RankFailed, r"rank 1 gave no answer within 10 s while in .*\(stopped by a signal\)"),
    ],
)
def test_faults_end_in_the_right_sentence(
    planted: Sampler, pair: list[str], nbytes: int, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        gpus.measure(point(nbytes=nbytes), planted, pair)
    assert gpus.measure(point(nbytes=1024), planted, pair).verified


def test_one_gpu_for_two_ranks_fails_with_a_sentence(sampler: Sampler, pair: list[str]) -> None:
    with pytest.raises(
        RankFailed, match=r"NCCL did not start on nvlink: rank . raised NcclError.*Duplicate GPU detected"
    ):
        gpus.measure(point(), sampler, [pair[0], pair[0]])


def test_the_log_of_a_live_run_names_its_channels(sampler: Sampler, pair: list[str]) -> None:
    gpus.measure(point(), sampler, pair)
    team = sampler.shared("collectives on GPUs", gpus.bench).team("nccl", gpus.way_of(point()), pair)
    log = team.log()
    assert log.told.channels
    assert transport.proof(Way("nvlink"), log)[1]
    assert log.told.version
