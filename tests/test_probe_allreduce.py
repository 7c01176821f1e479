"""The all-reduce probe: its points, its check of the data, its proof of the path, one real run on gloo."""

from __future__ import annotations

import importlib.util
import itertools
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from iobench import probe as probes
from iobench.collectives import gloo, hosts
from iobench.errors import Unavailable, UserError, WrongData
from iobench.ranks import RankFailed, launcher, sockets
from iobench.record import Line, Record
from iobench.timing.sampler import Sampler, Timed
from iobench.topology.graph import Topology

from processes import PATIENCE_SECONDS

PROBE = probes.load("allreduce")
HAS_GLOO = importlib.util.find_spec("torch") is not None and Path("/sys/class/net/lo").exists()


def _machine(cpus: int, allowed: int | None = None) -> Topology:
    graph = Topology("box")
    for number in range(cpus):
        graph.add(f"cpu:{number}", "cpu", allowed=number < (cpus if allowed is None else allowed))
    return graph


def _points(machine: Topology, *narrowed: str) -> list[dict[str, Any]]:
    return list(PROBE.points(machine, probes.narrow(PROBE, narrowed)))


@pytest.mark.parametrize(
    ("cpus", "allowed", "expected"),
    [(0, None, {2}), (1, None, {2}), (2, None, {2}), (6, None, {2, 4}), (64, 3, {2}), (64, None, {2, 4, 8})],
)
def test_default_ranks_fit_the_allowed_cpus(cpus: int, allowed: int | None, expected: set[int]) -> None:
    assert {point["ranks"] for point in _points(_machine(cpus, allowed))} == expected


def test_default_sizes_go_from_8_bytes_to_64_mib_by_two() -> None:
    sizes = [point["nbytes"] for point in _points(_machine(2))]
    assert sizes[0] == 8
    assert sizes[-1] == 64 << 20
    assert all(b == 2 * a for a, b in itertools.pairwise(sizes))


def test_the_user_may_ask_for_more_ranks_than_cpus() -> None:
    assert [point["ranks"] for point in _points(_machine(2), "ranks=5", "nbytes=12")] == [5]


@pytest.mark.parametrize(
    ("narrowed", "sentence"), [("nbytes=10", "whole number of float32"), ("ranks=2000", "at most 1024 ranks")]
)
def test_sizes_and_ranks_that_cannot_be_checked_are_refused(narrowed: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        _points(_machine(2), narrowed)


def test_one_rank_is_no_all_reduce() -> None:
    with pytest.raises(UserError, match="1 is below 2"):
        _points(_machine(2), "ranks=1")


def test_event_loop_never_shares_a_cpu_with_its_ranks_other_threads() -> None:
    assert hosts._placement("apart", [[0], [1], [2]]) == {
        "pins": [[0], [1], [2]],
        "config": {"event_loop_cpu": [1, 2, 0]},
    }
    assert hosts._placement("apart", [[0, 1], [2, 3]]) == {
        "pins": [[0], [2]],
        "config": {"event_loop_cpu": [1, 3]},
    }
    assert hosts._placement("free", [[0], [1]]) == {}
    assert hosts._placement("apart", None) == {}


def test_missing_torch_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Unavailable, match="pip install torch"):
        PROBE.measure(
            {"engine": "gloo", "op": "all_reduce", "ranks": 2, "nodes": 1, "placement": "apart", "nbytes": 8}, Sampler()
        )


# --- the data


def _sum(torch: Any, contributors: list[int], items: int, spoil: Callable[[int, Any], None] | None = None) -> Any:
    total = torch.zeros(items)
    for rank in contributors:
        share = torch.empty(items)
        gloo.Pattern(torch, rank, 1 + max(contributors)).fill(share)
        if spoil:
            spoil(rank, share)
        total += share
    return total


@pytest.mark.parametrize("items", [1, 2, 1020, 1021, 1022, 70000])
@pytest.mark.parametrize("size", [2, 3, 9])
def test_the_right_sum_passes(items: int, size: int) -> None:
    torch = pytest.importorskip("torch")
    gloo.Pattern(torch, 0, size).check(_sum(torch, list(range(size)), items))


@pytest.mark.parametrize("items", [2, 70000])
@pytest.mark.parametrize(
    "contributors", [[0], [1], [0, 0], [1, 1], [0, 1, 2], [0, 1, 1]], ids=lambda ranks: f"ranks-{ranks}"
)
def test_a_wrong_set_of_ranks_is_caught_at_the_smallest_size_too(contributors: list[int], items: int) -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(WrongData, match="elements differ from the sum, the first is element 0"):
        gloo.Pattern(torch, 0, 2).check(_sum(torch, contributors, items))


def test_three_of_one_rank_are_not_three_ranks() -> None:
    torch = pytest.importorskip("torch")
    for rank in range(3):
        with pytest.raises(WrongData):
            gloo.Pattern(torch, 0, 3).check(_sum(torch, [rank] * 3, 2))


def _lose_chunk(rank: int, share: Any) -> None:
    if rank == 1:
        share[4096:8192] = 0


def _swap_chunks(rank: int, share: Any) -> None:
    if rank == 1:
        share[:4096], share[4096:8192] = share[4096:8192].clone(), share[:4096].clone()


def _half_precision(rank: int, share: Any) -> None:
    share.copy_(share.bfloat16())


def _last_element(rank: int, share: Any) -> None:
    if rank == 0:
        share[-1] += 1


def _not_a_number(rank: int, share: Any) -> None:
    share[7] = float("nan")


@pytest.mark.parametrize("spoil", [_lose_chunk, _swap_chunks, _half_precision, _last_element, _not_a_number])
def test_spoiled_data_is_caught(spoil: Callable[[int, Any], None]) -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(WrongData):
        gloo.Pattern(torch, 0, 2).check(_sum(torch, [0, 1], 10000, spoil))


def test_sums_of_the_most_ranks_are_exact_in_float32() -> None:
    assert gloo.MOST_RANKS * gloo.PERIOD < 2**24


# --- the proof


def _timed(iterations: int) -> Timed:
    return Timed([[1e-4] * iterations] * 2, [[1e-4]] * 2, 1, "budget")


def test_proof_counts_only_what_loopback_connections_carried_during_sampling() -> None:
    before = {("a", "b"): (1000, True)}
    after = {("a", "b"): (1000 + 800, True), ("b", "a"): (900, True), ("c", "d"): (10**9, False)}
    proof = hosts._proof(100, 2, _timed(8), before, after)
    assert proof == {
        "loopback_connections": 2,
        "other_connections": 1,
        "bytes_received": 1700,
        "bytes_expected": 2 * 100 * 9,
    }


def test_slowest_rank_is_named_with_its_share() -> None:
    timed = Timed([[1.0, 1.0, 5.0], [2.0, 3.0, 1.0]], [[1.0], [1.0]], 1, "budget")
    skew = hosts._skew(timed, [[0, 10, 20], [5, 10, 21]])
    assert skew["slowest_rank"] == 1
    assert skew["slowest_share"] == pytest.approx(2 / 3)
    assert skew["rank_median_seconds"] == [1.0, 2.0]
    assert skew["entry_skew_seconds"] == {"median": pytest.approx(1e-9), "max": pytest.approx(5e-9)}


# --- the real thing

PLANTED = '''
import os, signal

from iobench.collectives.gloo import Gloo

class Planted(Gloo):
    """Rank 1 adds a wrong element in the timed loop at 64 bytes, and kills itself there at 4000."""

    def time(self, count):
        if self.rank.rank == 1 and self.nbytes in (64, 4000):
            doomed, right = self.nbytes == 4000, self.all_reduce
            def all_reduce(buffer):
                if doomed:
                    os.kill(os.getpid(), signal.SIGKILL)
                buffer[3] += 1
                right(buffer)
            self.all_reduce = all_reduce
        try:
            return super().time(count)
        finally:
            if "right" in locals():
                self.all_reduce = right
'''


def _kernel_counts() -> bool:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()),
        server.accept()[0],
    ):
        own = sockets.own()
        return bool(own) and all(entry["received"] is not None for entry in own)


@pytest.fixture(scope="module")
def sampler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sampler]:
    """One launch: the ranks import torch once for all tests below, which run in this order."""
    if not HAS_GLOO or not _kernel_counts():
        pytest.skip("needs torch with gloo, a loopback interface, and a kernel that counts a connection's bytes")
    file = tmp_path_factory.mktemp("planted") / "planted.py"
    file.write_text(PLANTED)
    sampler = Sampler(budget=0.05, max_samples=60)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hosts, "TARGET", f"{file}:Planted")
        for module, name in ((hosts, "_START_SECONDS"), (hosts, "_DEADLINE_SECONDS"), (launcher, "_GRACE_SECONDS")):
            patch.setattr(module, name, PATIENCE_SECONDS)
        yield sampler
        sampler.close()


def _point(nbytes: int) -> dict[str, Any]:
    return {"engine": "gloo", "op": "all_reduce", "ranks": 2, "nodes": 1, "placement": "apart", "nbytes": nbytes}


@pytest.mark.parametrize("nbytes", [8, 4100, 1 << 20])
def test_real_ranks_give_verified_and_proven_samples(sampler: Sampler, nbytes: int) -> None:
    samples = PROBE.measure(_point(nbytes), sampler)
    assert samples.verified
    assert samples.proven
    assert samples.evidence["bytes_received"] >= 2 * nbytes * len(samples.timed.seconds[0])
    assert len(samples.timed.seconds) == 2
    assert len(samples.timed.seconds[0]) == len(samples.timed.seconds[1]) >= 5
    assert samples.moved == nbytes
    assert samples.legs[0].moved == 2 * nbytes
    assert samples.mode == "blocking"
    loops, cpus = samples.evidence["event_loop_cpus"], samples.evidence["rank_cpus"]
    assert all(not set(loop) & set(rank) for loop, rank in zip(loops, cpus, strict=True))
    line = Line("allreduce", "", _point(nbytes), seconds=samples.timed.seconds, moved=samples.moved)
    record = Record("allreduce", _point(nbytes), [line])
    assert min(record.groups[0]) >= max(map(min, samples.timed.seconds))


def test_a_rank_that_adds_something_wrong_while_timed_is_caught(sampler: Sampler) -> None:
    with pytest.raises(WrongData, match=r"all_reduce of 64 bytes: 1 of 16 elements differ .* element 3: "):
        PROBE.measure(_point(64), sampler)
    assert PROBE.measure(_point(8), sampler).verified


def test_a_killed_rank_is_named_not_the_one_whose_connection_it_closed(sampler: Sampler) -> None:
    with pytest.raises(RankFailed, match="rank 1 killed by signal 9 while in all_reduce of 4000 bytes"):
        PROBE.measure(_point(4000), sampler)
