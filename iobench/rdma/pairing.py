"""The two sides as one: two processes of this host, or one here and one behind another host's server."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from iobench import ranks
from iobench.rdma import ports
from iobench.rdma.setup import Setup
from iobench.topology.graph import Topology

TARGET: str = "iobench.rdma.side:Side"
VARIABLE = "IOBENCH_PEER"  # host:port of another host's server
START_SECONDS = 300.0  # compiling the loops for the first time included
CALL_SECONDS = 120.0


class Pair(Protocol):
    """Calls a method of both sides at once; answers are [side 0, side 1]."""

    apart: bool

    def call(self, method: str, deadline: float = CALL_SECONDS, **arguments: Any) -> list[Any]:
        """Return both answers within ``deadline`` seconds, or raise what went wrong first."""
        ...


class Local:
    """Two processes of this host."""

    apart = False

    def __init__(self, group: ranks.RankGroup) -> None:
        self.group = group

    def call(self, method: str, deadline: float = CALL_SECONDS, **arguments: Any) -> list[Any]:
        return self.group.call(method, deadline, **arguments)


@contextlib.contextmanager
def local(pins: Sequence[Sequence[int]] | None) -> Iterator[Pair]:
    """Start two processes here; ``pins`` are their CPUs."""
    with ranks.group(TARGET, 2, pins=pins, environment=_QUIET, start_seconds=START_SECONDS) as group:
        yield Local(group)


_QUIET = {"OMP_NUM_THREADS": "1"}


@contextlib.contextmanager
def apart(peer: str, pins: Sequence[Sequence[int]] | None) -> Iterator[Pair]:
    """Start one process here and take the other from the server at ``peer`` ("host:port")."""
    from iobench.rdma.remote import Remote, knock

    with (
        knock(peer) as wire,
        ranks.group(TARGET, 1, config={"side": 0}, pins=pins, environment=_QUIET, start_seconds=START_SECONDS) as group,
    ):
        yield Remote(group, wire, peer)


def join(pair: Pair, mine: Setup, theirs: Setup) -> list[dict[str, Any]]:
    """Prepare and connect both sides; return the facts of each."""
    infos = pair.call("prepare", setups=[mine.to_dict(), theirs.to_dict()])
    return pair.call("connect", peers=infos)


def cpus_near(topology: Topology, device: str) -> list[list[int]] | None:
    """Return CPUs of the NUMA node of ``device`` for two processes: two each where it has four, else one each.

    The second is for bulk flows beside the timed loop. None where this process has fewer than two CPUs.
    """
    allowed = sorted(os.sched_getaffinity(0))
    found = [port for port in ports.usable(topology) if device in ("auto", port.get("device"), _name(port.id))]
    node = topology.node(f"numa:{found[0].get('numa')}") if found and found[0].get("numa") is not None else None
    near = [cpu for cpu in allowed if cpu in set(node.get("cpus") or ())] if node else []
    chosen = near if len(near) > 1 else allowed
    if len(chosen) > 3:
        return [[chosen[0], chosen[1]], [chosen[2], chosen[3]]]
    return [[chosen[0]], [chosen[1]]] if len(chosen) > 1 else None


def _name(node: str) -> str:
    return node.removeprefix("port:")
