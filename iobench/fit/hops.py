"""The least time that the way of a collective takes: hops in a row times the least that one hop takes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from iobench.units import NS

# One way, below everything that was measured. NVLink: a peer load on H100 takes 822 ns there and back
# (nvbandwidth 0.10); InfiniBand: published ib_write_lat halves of 0.88 us (QDR) and
# 1.77 us (HDR, virtual) at best; shared memory: a cache line between two cores of a socket.
SECONDS = {
    "nvlink": 300 * NS,
    "pcie": 300 * NS,
    "shm": 30 * NS,
    "ib": 500 * NS,
    "roce": 500 * NS,
    "efa": 500 * NS,
    "socket": 500 * NS,
}
_TWICE = ("all_reduce",)  # a ring goes round twice
_WITHIN = "nvlink"  # how ranks of one node reach each other where the axes name the network


def hops_seconds(axes: Mapping[str, Any]) -> float | None:
    """Return the least seconds of a collective with these axes; None where transport or ranks are unknown.

    A ring passes every rank in turn. Anything else needs one hop between nodes and one within at least: all could
    read from all.
    """
    transport, ranks, nodes = axes.get("transport"), axes.get("ranks"), axes.get("nodes", 1)
    if not isinstance(transport, str) or transport not in SECONDS:
        return None
    if not isinstance(ranks, int) or not isinstance(nodes, int) or ranks < 2:
        return None
    hop = SECONDS[transport]
    if str(axes.get("algo") or "").lower() == "ring":
        steps = (ranks - 1) * (2 if axes.get("op") in _TWICE else 1)
        between = math.ceil(steps * nodes / ranks) if nodes > 1 else steps
        return between * hop + (steps - between) * SECONDS[_WITHIN]
    inside = SECONDS[_WITHIN] if 1 < nodes < ranks else 0.0
    return hop + inside
