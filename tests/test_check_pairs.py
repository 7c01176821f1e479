"""Matrices of pairs of GPUs: all alike, an odd pair, an odd end, on machines of three to eight GPUs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest
from iobench.check import assess, pairs
from iobench.record import Line, Run
from iobench.units import GB, MIB

from make_run import lines, run_of

Time = Callable[[int, int], float]


def matrix(gpus: int, time: Time, nbytes: int = 64 * MIB, noise: float = 0.0005, single: bool = False) -> Run:
    """Return a run with every pair of ``gpus``, each way, ``time`` times what 400 GB/s take."""
    found: list[Line] = []
    for gpu, peer in itertools.permutations(range(gpus), 2):
        point = {"op": "copy", "gpu": gpu, "peer": peer, "direction": "write", "nbytes": nbytes}
        found += lines("p2p", point, time(gpu, peer) * nbytes / (400 * GB), noise=noise, moved=nbytes)
    if single:
        found = [replace(line, seconds=[line.seconds[0][:1]]) for line in found if not line.launch]
    return run_of(found)


def sentences(run: Run) -> list[str]:
    return [found.sentence for found in pairs.matrices(run)]


@pytest.mark.parametrize("gpus", [3, 4, 8])
def test_pairs_that_are_alike(gpus: int) -> None:
    (said,) = sentences(matrix(gpus, lambda gpu, peer: 1 + 0.01 * ((gpu + peer) % 2)))
    assert said.startswith(f"p2p op=copy direction=write nbytes=64 MiB: all {gpus * (gpus - 1)} pairs lie within ")


def test_one_odd_pair_of_eight_gpus_is_named_each_way() -> None:
    run = matrix(8, lambda gpu, peer: 1.3 if {gpu, peer} == {2, 5} else 1.0)
    (said,) = sentences(run)
    assert "2 of 56 pairs are odd" in said
    assert "2 and 5 take 30.0% longer than" in said
    assert "5 and 2 take 30.0% longer than" in said
    assert pairs.matrices(run)[0].slow
    assert assess(run).exit_status == 1
    assert said in assess(run).summary


def test_one_odd_way_of_a_pair_is_named_alone() -> None:
    (said,) = sentences(matrix(8, lambda gpu, peer: 1.05 if (gpu, peer) == (6, 1) else 1.0))
    assert said.endswith("1 of 56 pairs are odd: 6 and 1 take 5.0% longer than the median")


def test_a_gpu_with_a_link_less_is_named_itself() -> None:
    (said,) = sentences(matrix(8, lambda gpu, peer: 18 / 17 if 3 in (gpu, peer) else 1.0))
    assert ": GPU 3 is odd: all its 14 pairs take 5.9% longer than the median of 56 pairs" in said


def test_two_islands_are_pairs_not_one_gpu() -> None:
    (said,) = sentences(matrix(4, lambda gpu, peer: 1.0 if gpu // 2 == peer // 2 else 0.5))
    assert "4 of 12 pairs are odd" in said


def test_a_faster_pair_is_odd_and_fails_nothing() -> None:
    run = matrix(4, lambda gpu, peer: 0.9 if {gpu, peer} == {0, 1} else 1.0)
    assert "0 and 1 take 10.0% less than" in sentences(run)[0]
    assert not pairs.matrices(run)[0].slow


def test_a_pair_whose_interval_reaches_back_is_noisy_not_odd() -> None:
    run = matrix(4, lambda gpu, peer: 1.05 if (gpu, peer) == (0, 1) else 1.0, noise=0.2)
    assert sentences(run)[0].endswith("of their median, none surely by more than 2%")
    assert assess(run).exit_status == 0


def test_a_pair_without_an_interval_is_named_and_fails_nothing() -> None:
    run = matrix(4, lambda gpu, peer: 1.3 if (gpu, peer) == (0, 1) else 1.0, single=True)
    assert sentences(run)[0].endswith("1 of 12 pairs are odd: 0 and 1 take 30.0% longer than the median")
    assert assess(run).exit_status == 0


@pytest.mark.parametrize(("gpus", "nbytes"), [(2, 64 * MIB), (8, 4096)])
def test_two_pairs_and_small_messages_are_no_matrix(gpus: int, nbytes: int) -> None:
    assert sentences(matrix(gpus, lambda gpu, peer: 1.0 + gpu, nbytes)) == []
