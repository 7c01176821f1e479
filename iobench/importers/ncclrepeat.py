"""Runs of nccl-tests like one before: read as a block, checked together, their figures added to points that exist.

A long log is the same few runs thousands of times. Of a run whose like was sound only the figures are looked at here,
those of many runs at once; what is not usual is read again row by row (``ncclreading``), with the same outcome.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from iobench.importers.collective import Collector, Sweep, Turn
from iobench.importers.ncclblock import Block, Table, digits_of, joined
from iobench.units import US

if TYPE_CHECKING:
    from iobench.importers.ncclrun import NcclRun

ROUNDING = 0.00501  # of two decimals
CLOSE = 0.005
_MOST_WAITING = 4_000  # figures


class Repeat:
    """A sound run whose like comes again: the launches of its points, by turns, in the order of columns."""

    def __init__(
        self,
        run: NcclRun,
        heads: tuple[tuple[str, ...], ...],
        sweeps: Mapping[tuple[str, str, int, bool], tuple[Sweep, int]],
        bus: float,
    ) -> None:
        self.bus = bus
        self.turns: list[Callable[[], Turn]] = []
        self.sizes: list[float] = []
        self.starts: list[int] = []
        self.identities: list[list[int]] = []
        layout = run.layout
        self.table = Table(heads, layout.width if layout else 0, layout.lead if layout else 0)
        if not layout or layout.side != ("time", "algbw", "busbw", "wrong") or layout.trailing:
            return
        if len(run.rows) != len(heads):
            return
        sides = range(layout.sides)
        self.identities = [
            [sweeps[(row.dtype, row.redop, row.root, side == 1)][1] for side in sides]
            for row in run.rows
            if row.nbytes and (row.dtype, row.redop, row.root, False) in sweeps
        ]
        if len(self.identities) == len(heads):
            self.starts = [4 * side for side in sides]

    def ready(self, collector: Collector) -> bool:
        """Tell whether every point has all its launches, so that further figures only join them."""
        if self.starts and not self.turns:
            sizes = [int(head[0]) for head in self.table.heads]
            found = [
                collector.turn(identities[side], nbytes)
                for side in range(len(self.starts))
                for nbytes, identities in zip(sizes, self.identities, strict=True)
            ]
            different = len(set(found)) == len(found)  # else one run's figures would go to several launches
            self.turns = [turn for turn in found if turn] if all(found) and different else []
            self.sizes = [float(nbytes) for nbytes in sizes] * len(self.starts)
        return bool(self.turns)


@dataclass(frozen=True)
class Waiting:
    """A run whose figures wait to be looked at; their texts by columns, all of one placement before the other's."""

    run: NcclRun
    like: tuple[Any, ...]
    known: Repeat
    block: Block
    numbers: list[int]
    times: list[str]
    algbws: list[str]
    busbws: list[str]


class Batch:
    """The figures of many runs, looked at together."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.runs: list[Waiting] = []
        self.count = 0

    @property
    def full(self) -> bool:
        return self.count >= _MOST_WAITING

    def add(self, run: NcclRun, like: tuple[Any, ...], known: Repeat) -> bool:
        """Let a run wait; False (and nothing done) where the test found wrong data or did not look."""
        block = run.block or joined(known.table, run.raw)
        words, stride, starts = block.words, known.table.stride, known.starts
        if any(words[start + 3 :: stride].count("0") != len(block.numbers) for start in starts):
            return False
        texts = [list(chain.from_iterable(words[start + at :: stride] for start in starts)) for at in range(3)]
        self.runs.append(Waiting(run, like, known, block, [*block.numbers] * len(starts), *texts))
        self.count += len(texts[0])
        return True

    def sound(self) -> list[tuple[Waiting, list[float]]]:
        """Return each run that waits with its seconds; without any where a figure of it is not sound at first look.

        Rates in GB/s follow closely from times in us, or to two decimals where they are small.
        """
        if not self.runs:
            return []
        import numpy as np  # a log without repeats needs none

        counts = [len(waiting.times) for waiting in self.runs]
        ends = np.cumsum(counts)
        sizes = np.array([size for waiting in self.runs for size in waiting.known.sizes])
        bus = np.repeat([waiting.known.bus for waiting in self.runs], counts)
        (time, algbw, busbw), rounded = _figures(self.runs)
        with np.errstate(all="ignore"):
            plain = sizes / (time * 1e3)
            bad = ~((time > 0) & (time < np.inf))
            for rates, wanted in ((algbw, plain), (busbw, plain * bus)):
                off = np.abs(rates - wanted)
                far = ~(off <= CLOSE * wanted)
                bad |= far & ~(rounded & (off <= ROUNDING))
        seconds = (time * US).tolist()
        odd = set(np.searchsorted(ends, np.flatnonzero(bad), side="right").tolist())
        return [
            (waiting, [] if place in odd else seconds[end - count : end])
            for place, (waiting, end, count) in enumerate(zip(self.runs, ends.tolist(), counts, strict=True))
        ]


def _figures(runs: list[Waiting]) -> tuple[Any, Any]:
    """Return time, algbw and busbw of all runs (NaN: no number), and whether both rates have two decimals."""
    import numpy as np

    if found := digits_of([waiting.block for waiting in runs]):
        return found, True
    columns: list[list[float]] = [[], [], []]
    for waiting in runs:
        for column, texts in zip(columns, (waiting.times, waiting.algbws, waiting.busbws), strict=True):
            column += _floats(texts)
    two = [
        algbw[-3:-2] == "." == busbw[-3:-2]
        for waiting in runs
        for algbw, busbw in zip(waiting.algbws, waiting.busbws, strict=True)
    ]
    return tuple(map(np.array, columns)), np.array(two)


def _floats(texts: list[str]) -> list[float]:
    try:
        return list(map(float, texts))
    except ValueError:
        return [math.nan] * len(texts)


def join(waiting: Waiting, seconds: list[float]) -> None:
    """Add the figures of a sound run to its points."""
    figures = zip(waiting.numbers, waiting.times, waiting.algbws, waiting.busbws, strict=True)
    printed = [f"line {number}: {time} {algbw} {busbw} 0" for number, time, algbw, busbw in figures]
    for turn, value, text in zip(waiting.known.turns, seconds, printed, strict=True):
        have, rows, _ = turn()
        have(value)
        rows(text)
