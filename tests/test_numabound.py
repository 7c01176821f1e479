"""Threads on one node, memory on another."""

from __future__ import annotations

import os

import pytest
from iobench import numabound
from iobench.errors import Unavailable
from iobench.kernels.team import Team
from iobench.topology.graph import Topology

MINE = sorted(os.sched_getaffinity(0))


def graph() -> Topology:
    made = Topology("made-up")
    made.add("numa:0", "numa", cpus=[MINE[0], 5000])
    made.add("numa:1", "numa", cpus=[6000, 6001])
    made.add("numa:2", "numa", cpus=[])
    return made


def test_cpus_are_those_that_this_process_may_use() -> None:
    assert numabound.cpus_of(graph(), 0) == [MINE[0]]
    assert numabound.cpus_of(graph(), None) == MINE


@pytest.mark.parametrize(
    ("node", "words"), [(1, "Cpus_allowed_list"), (2, "node 2 has no CPUs"), (3, "no NUMA node 3 on this machine")]
)
def test_a_node_whose_cpus_cannot_be_had_says_why(node: int, words: str) -> None:
    with pytest.raises(Unavailable, match=words):
        numabound.cpus_of(graph(), node)


def test_running_on_is_undone() -> None:
    with numabound.running_on(MINE[:1]):
        assert sorted(os.sched_getaffinity(0)) == MINE[:1]
    assert sorted(os.sched_getaffinity(0)) == MINE
    with pytest.raises(Unavailable), numabound.running_on([100_000]):
        pass
    assert sorted(os.sched_getaffinity(0)) == MINE


def test_a_team_that_is_not_pinned_runs_anywhere() -> None:
    with Team(MINE[:1], pin=False) as team:
        assert team.affinity() == [MINE]


def test_a_chain_can_be_followed_by_any_thread() -> None:
    from iobench.kernels.chasing import Chasing

    with Team(MINE[:1]) as maker, Team(MINE[-1:]) as user, numabound.chain(65536, "base", None, 1, maker) as chain:
        assert (Chasing(chain.words, chain.order, user).take(1025, 3) > 0).all()
