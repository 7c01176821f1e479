"""Bus bytes of a collective: what each of n ranks must send at least, over the time its bus bandwidth.

k(n-1)/n times S of the algorithm bandwidth, or S itself where k is 0 (nccl-tests, doc/PERFORMANCE.md).
"""

from __future__ import annotations

ROUNDS = {
    "all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1, "gather": 1, "scatter": 1,
    "broadcast": 0, "reduce": 0, "sendrecv": 0,
}  # fmt: skip
OPS = tuple(ROUNDS)


def factor(op: str, ranks: int) -> float:
    """Return bus bytes over S, which is busbw over algbw; 1 for an operation that has no definition."""
    return of_rounds(ROUNDS.get(op, 0), ranks)


def of_rounds(rounds: int, ranks: int) -> float:
    """Return k(n-1)/n, 1 for k = 0."""
    return rounds * (ranks - 1) / ranks if rounds else 1.0
