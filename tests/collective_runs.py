"""Runs of collectives for tests: a machine of known hops and bandwidth, measured without a device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from iobench import busbytes
from iobench.fit.scale import formulas
from iobench.record import Line, Run
from iobench.units import GB, US

from make_run import lines, run_of

SIZES = tuple(1024 << step for step in range(0, 18, 2))
BASE, HOP, RATE = 4 * US, 1 * US, 300 * GB


def seconds(op: str, ranks: int, nbytes: int) -> float:
    """Return the time of the known machine."""
    wire = busbytes.factor(op, ranks)
    return BASE + formulas.ring_steps(op, ranks) * HOP + wire * nbytes / RATE


def collective_lines(
    op: str, counts: Iterable[int], sizes: Iterable[int] = SIZES, noise: float = 0.005, **axes: Any
) -> list[Line]:
    """Return three launches of each point of ``op``."""
    out: list[Line] = []
    for ranks in counts:
        for nbytes in sizes:
            point = {"op": op, "engine": "nccl", "dtype": "float32", "ranks": ranks, "nodes": 1, "nbytes": nbytes}
            out += lines("allreduce", point | axes, seconds(op, ranks, nbytes), noise=noise, mode="graph")
    return out


def collective_run(
    ops: Iterable[str] = ("all_reduce", "all_gather"), counts: Iterable[int] = (2, 4), **more: Any
) -> Run:
    """Return a run of the known machine, an A100 by its name: no switch reduces there."""
    kept = tuple(counts)
    return run_of([line for op in ops for line in collective_lines(op, kept, **more)], name="4x-a100", topology={})
