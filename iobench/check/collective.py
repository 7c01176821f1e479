"""The highest bus bandwidth that a collective can show, by operation, algorithm and place.

Bus bandwidth is what each of n ranks must send at least when the ranks themselves add up (nccl-tests,
doc/PERFORMANCE.md): it can't pass the rate of a rank's link. Where the switches add up (NVLS), each rank sends
S(1 + 1/n) instead of 2S(n-1)/n, so the bus bandwidth of an all-reduce may reach link * 2(n-1)/(n+1).

Between k nodes of g ranks each, a node must send 2S(k-1)/k through its g ports when it adds up its own part
first: the bus bandwidth may reach port * (n-1)/(k-1), above the sum of a node's ports for k = 2. Where the
network's switches add up (SHARP) a node sends S only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

NVLS_FROM = 5  # ranks from which NCCL takes NVLS by itself (8 x H200, NCCL 2.27.7: 4 ring, 5 NVLS; ml-engineering)
_IN_SWITCH = re.compile(r"nvls|collnet|sharp", re.IGNORECASE)
_NETWORKS = frozenset(("ib", "roce", "efa", "socket"))


@dataclass(frozen=True)
class Cap:
    """The highest possible bus bandwidth and a name for what sets it."""

    bytes_per_s: float
    where: str


def in_switch(op: str, ranks: int, algo: str, switch: bool) -> bool:
    """Tell whether NVLink switches may add up: as ``algo`` says, else as NCCL would choose ("" for unknown)."""
    if op != "all_reduce" or not switch:
        return False
    return bool(_IN_SWITCH.search(algo)) if algo else ranks >= NVLS_FROM


def nvlink_cap(op: str, ranks: int, link: float, algo: str = "", switch: bool = True) -> Cap:
    """Return the cap of one NVLink domain; ``link`` is a GPU's rate per direction, ``switch``: it can add up."""
    ring = Cap(link, "NVLink")
    if not in_switch(op, ranks, algo, switch):
        return ring
    # a rank also has the choice not to use it: with two ranks the ring is faster
    share = 2 * (ranks - 1) / (ranks + 1)
    return max(Cap(link * share, f"NVLink (NVLS: {share:.3g} times the link)"), ring, key=lambda cap: cap.bytes_per_s)


def network_cap(op: str, ranks: int, nodes: int, port: float, algo: str = "") -> Cap:
    """Return the cap of ``nodes`` nodes with one port of ``port`` bytes/s and direction for each rank."""
    local = max(ranks / nodes, 1.0)
    if op == "all_to_all":
        return Cap(port * (ranks - 1) / (local * (nodes - 1)), "the node's ports (what leaves the node)")
    if op not in ("all_reduce", "all_gather", "reduce_scatter"):
        return Cap(port * local, "the node's ports (each byte crosses once)")
    if op != "all_reduce":
        return Cap(port * (ranks - 1) / (nodes - 1), "the node's ports (each byte crosses once)")
    if _may_reduce_in_network(algo):
        return Cap(port * local * 2 * (ranks - 1) / ranks, "the node's ports (summed once or in the switches)")
    return Cap(port * (ranks - 1) / (nodes - 1), "the node's ports (summed in the node first)")


def is_network(transport: str) -> bool:
    """Tell whether ``transport`` leaves the node."""
    return transport in _NETWORKS


def _may_reduce_in_network(algo: str) -> bool:
    return not algo or bool(_IN_SWITCH.search(algo))
