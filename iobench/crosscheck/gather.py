"""The gather of KV blocks against C (gcc -O3 -march=native), interleaved on the same pages and with one block table.

It runs on CXL memory where there is some (a NUMA node without CPUs), else on local memory: the loop is the same.
The table is gathered piece by piece, a millisecond each, in turn by both sides: a disturbance hits few of many rounds.

Bar: bandwidth iobench/C within 3 % on either side, for every size of block and number of threads: a loop that beats C
by more does other work.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from iobench.crosscheck import dram
from iobench.crosscheck.dram import BANDWIDTH, Library, Row
from iobench.errors import Unavailable
from iobench.units import KIB, MIB, format_size

if TYPE_CHECKING:
    from iobench.kernels.gathering import Driver, Gathering
    from iobench.mempolicy import Policy

Say = Callable[[str], None]
BLOCKS = (18 * KIB, 32 * KIB, 64 * KIB, 256 * KIB)
NBYTES = 128 * MIB
_PIECES = 15  # odd, so that every piece comes to both sides; all together are larger than the caches
_IN_A_ROW = 3
_SECONDS, _QUICK_SECONDS = 2.0, 0.3
WITHIN = dataclasses.replace(BANDWIDTH, met=lambda ratio: 0.97 <= ratio <= 1.03)


def run(say: Say, quick: bool = False) -> bool:
    """Compare every size of block; return True where every bar is met. Raises UserError without a C compiler."""
    from iobench import topology
    from iobench.cxl import forms
    from iobench.mempolicy import Policy

    far = [form for form in forms.forms(topology.discover()) if form.kind == forms.NODE and form.node is not None]
    policy = Policy((far[0].node,)) if far and far[0].node is not None else None
    say(f"pool in {far[0].label if far else 'local memory: this machine has no CXL memory'}")
    with dram.library() as code:
        say(f"C: {code.compiler}; iobench and C run in turn on the same pages")
        say(f"{'':40} {'iobench':>11} {'C':>11}  {'iobench / C':38}")
        made = list(rows(code, policy, _QUICK_SECONDS if quick else _SECONDS, say))
    return bool(made) and all(row.passed for row in made)


def rows(code: Library, policy: Policy | None, seconds: float, say: Say, nbytes: int = NBYTES) -> Iterator[Row]:
    """Yield a row for each size of block and number of threads (1 and all)."""
    for threads in sorted({1, len(os.sched_getaffinity(0))}):
        for block in BLOCKS:
            try:
                row = _row(code, policy, block, threads, seconds, nbytes)
            except Unavailable as reason:
                say(f"{_name(block, threads):40} skipped: {reason}")
                continue
            say(row.text())
            yield row


def _row(code: Library, policy: Policy | None, block: int, threads: int, seconds: float, nbytes: int) -> Row:
    from iobench import hostmem
    from iobench.kernels.gathering import Gathering
    from iobench.kernels.team import pinned

    with pinned(threads) as team, hostmem.buffer(nbytes, policy=policy) as pool, hostmem.buffer(nbytes) as target:
        work = Gathering.over(pool.data, target.data, block, 1, team)
        for driver in (code.gather, None):  # each side alone first, on a poisoned target: both must be right
            work.poison()
            work.take(1, driver)
            work.check()
        work.poison()
        parts = pieces(work)
        cut = itertools.cycle(parts)
        sides = (lambda: _seconds(cut), lambda: _seconds(cut, code.gather))
        ours, theirs, ratio = dram.in_turn(sides, seconds, WITHIN)
        for piece in parts:
            piece.check()
        return Row(_name(block, threads), ours, theirs, ratio, WITHIN, work.moved)


def pieces(work: Gathering) -> list[Gathering]:
    """Cut a gather into gathers of its table's pieces, each to its place in the target; all of it where it is short."""
    each = max(work.tables[0].size // _PIECES, 1)
    nbytes = each * work.block * len(work.tables)
    return [
        dataclasses.replace(
            work,
            target=work.target[k * nbytes : (k + 1) * nbytes],
            tables=[table[k * each : (k + 1) * each] for table in work.tables],
        )
        for k in range(min(_PIECES, work.tables[0].size))
    ]


def _seconds(cut: Iterator[Gathering], driver: Driver | None = None) -> list[float]:
    """Gather the next few pieces; return the seconds that the whole table would take at each one's pace."""
    taken = [next(cut) for _ in range(_IN_A_ROW)]
    return [float(piece.take(1, driver)[0]) / piece.target.nbytes * piece.pool.nbytes for piece in taken]


def _name(block: int, threads: int) -> str:
    return f"gather {format_size(block)}, {threads} threads"
