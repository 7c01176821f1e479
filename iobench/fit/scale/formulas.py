"""What a collective does as its ranks grow: steps one after the other, and bytes over the narrowest link.

n ranks, N nodes, S bytes as in algbw (the total for all-gather, reduce-scatter and all-to-all). Sources: NCCL
src/graph/tuning.cc (2.30: steps of ring and tree, latency per step within and between nodes), nccl-tests
doc/PERFORMANCE.md (bus factors), Thakur, Rabenseifner, Gropp 2005 (ring and tree in alpha-beta form).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from iobench import busbytes


@dataclass(frozen=True)
class Axis:
    """How time grows along one axis: ``steps`` (hops one after the other) and ``wire`` (bytes per S) of a count."""

    name: str
    steps: Callable[[int], float]
    wire: Callable[[int], float]
    algorithm: str


def within(op: str) -> Axis:
    """Return the axis of ranks inside one node: a ring (all-to-all: n-1 messages of each rank)."""
    return Axis("ranks", lambda n: ring_steps(op, n), lambda n: busbytes.factor(op, n), "ring")


def between(op: str) -> Axis:
    """Return the axis of nodes with as many ranks each: a tree's hops for all-reduce, a ring's for the others."""
    if op == "all_reduce":
        return Axis("nodes", lambda n: 2 * math.log2(n), lambda n: busbytes.factor(op, n), "tree")
    return Axis("nodes", lambda n: ring_steps(op, n), lambda n: busbytes.factor(op, n), "ring")


def ring_steps(op: str, ranks: int) -> float:
    """Return the hops of a ring that follow each other: 2(n-1) for all-reduce, n-1 for the others."""
    return float(2 * (ranks - 1) if op == "all_reduce" else ranks - 1)


def nvls_factor(ranks: int) -> float:
    """Return the bytes per S that each GPU sends where the switch reduces and multicasts: 1 + 1/n (nccl#2140)."""
    return 1 + 1 / ranks
