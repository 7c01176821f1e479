"""Threads on the CPUs of one NUMA node and memory on another, for the host's matrix of nodes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from iobench import hostmem
from iobench.errors import Unavailable
from iobench.mempolicy import Policy
from iobench.topology.graph import Topology

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from iobench.kernels.team import Team


@dataclass(frozen=True)
class Chain:
    """A linked chase in memory of one node; whose CPUs follow it is left open."""

    buffer: hostmem.Buffer
    words: NDArray[np.uint64]
    order: NDArray[np.uint32]


@dataclass(frozen=True)
class Area:
    """Memory for streams."""

    buffer: hostmem.Buffer


def cpus_of(topology: Topology, node: int | None) -> list[int]:
    """Return the CPUs of a NUMA node that this process may use (None: of all nodes); Unavailable with the reason."""
    mine = os.sched_getaffinity(0)
    if node is None:
        return sorted(mine)
    numa = topology.node(f"numa:{node}")
    listed = list(numa.get("cpus") or ()) if numa else []
    if not listed:
        raise Unavailable(f"NUMA node {node} has no CPUs" if numa else f"no NUMA node {node} on this machine")
    cpus = sorted(mine.intersection(listed))
    if not cpus:
        raise Unavailable(
            f"no CPU of NUMA node {node} is this process's to use: its Cpus_allowed_list leaves them out "
            "(its control group's cpuset, or taskset); run it where they are allowed"
        )
    return cpus


@contextlib.contextmanager
def running_on(cpus: Sequence[int]) -> Iterator[None]:
    """Keep the calling thread on ``cpus`` inside the block."""
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, cpus)
    except OSError as error:
        raise Unavailable(f"CPUs {list(cpus)} do not take a thread: {error.strerror}") from error
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def chain(nbytes: int, pages: str, node: int | None, seed: int, team: Team) -> Iterator[Chain]:
    """Link a chase through fresh memory that is bound to ``node`` (None: where the team's first touch puts it)."""
    from iobench.kernels.chasing import Chasing

    with hostmem.buffer(nbytes, pages, policy=_policy(node)) as area:
        work = Chasing.over(area.data, seed, team)
        hostmem.require(area, hostmem.inspect(area))
        work.check()
        yield Chain(area, work.words, work.order)


@contextlib.contextmanager
def streamed(nbytes: int, pages: str, node: int | None, team: Team) -> Iterator[Area]:
    """Give fresh memory for streams of ``nbytes`` in the team's threads, bound to ``node`` and touched once."""
    from iobench.kernels import streaming

    streaming.compile_all()
    room = streaming.room(nbytes, len(team.cpus))
    with hostmem.buffer(room, pages, policy=_policy(node)) as area:
        share = room // len(team.cpus)
        team.run(lambda thread: area.data[thread * share : (thread + 1) * share].fill(0))
        hostmem.require(area, hostmem.inspect(area))
        yield Area(area)


def _policy(node: int | None) -> Policy | None:
    return None if node is None else Policy((node,))
