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
from iobench.importers.torun import MOST_LAUNCHES
from iobench.units import US

if TYPE_CHECKING:
    from iobench.importers.ncclrun import NcclRun

ROUNDING = 0.00501  # of two decimals
CLOSE = 0.005
_MOST_WAITING = 2_000  # figures
_MOST_HELD = 4_000  # runs


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
        self.held: list[tuple[Any, str]] = []  # seconds and rows of runs that no point has yet
        self.alone: tuple[object, bool] = (None, False)  # whether no other run's points are among them, as of when
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
    """A run whose figures wait to be looked at; its rows as printed, all of one placement before the other's."""

    run: NcclRun
    like: tuple[Any, ...]
    known: Repeat
    block: Block
    printed: list[str]


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
        places, printed = [f"line {number}: " for number in block.numbers], list[str]()
        for start in starts:
            figures = (words[start + at :: stride] for at in range(3))
            printed += [
                f"{at}{time} {algbw} {busbw} 0" for at, time, algbw, busbw in zip(places, *figures, strict=True)
            ]
        block.forget()
        self.runs.append(Waiting(run, like, known, block, printed))
        self.count += len(printed)
        return True

    def sound(self) -> list[tuple[Waiting, Any]]:
        """Return each run that waits with its seconds; with None where a figure of it is not sound at first look.

        Rates in GB/s follow closely from times in us, or to two decimals where they are small.
        """
        if not self.runs:
            return []
        import numpy as np  # a log without repeats needs none

        counts = [len(waiting.printed) for waiting in self.runs]
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
        seconds = time * US
        odd = set(np.searchsorted(ends, np.flatnonzero(bad), side="right").tolist())
        return [
            (waiting, None if place in odd else seconds[end - count : end])
            for place, (waiting, end, count) in enumerate(zip(self.runs, ends.tolist(), counts, strict=True))
        ]


def _figures(runs: list[Waiting]) -> tuple[Any, Any]:
    """Return time, algbw and busbw of all runs (NaN: no number), and whether both rates have two decimals."""
    import numpy as np

    if found := digits_of([waiting.block for waiting in runs]):
        return found, True
    texts: list[list[str]] = [[], [], []]
    for waiting in runs:
        words, stride = waiting.block.words, waiting.known.table.stride
        for at, column in enumerate(texts):
            column += chain.from_iterable(words[start + at :: stride] for start in waiting.known.starts)
    two = [algbw[-3:-2] == "." == busbw[-3:-2] for algbw, busbw in zip(*texts[1:], strict=True)]
    return [np.array(list(map(_float, column))) for column in texts], np.array(two)


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def join(waiting: Waiting, seconds: Any) -> None:
    """Add the figures of a sound run to its points, or hold them until ``settle``."""
    waiting.known.held.append((seconds, "\n".join(waiting.printed)))
    if len(waiting.known.held) >= _MOST_HELD:
        settle(waiting.known)


def settle(known: Repeat) -> None:
    """Give the points what is held for them, in the order of the runs: point by point, so that memory is gone along."""
    held, known.held = known.held, []
    if not held:
        return
    import numpy as np

    columns = np.stack([seconds for seconds, _ in held]).T.tolist()
    texts = zip(*(printed.split("\n") for _, printed in held), strict=True)
    for turn, column, rows in zip(known.turns, columns, texts, strict=True):
        for at in range(min(len(held), MOST_LAUNCHES)):
            have, printed, _ = turn()
            have += column[at::MOST_LAUNCHES]
            printed += rows[at::MOST_LAUNCHES]
        for _ in range((len(held) - 1) // MOST_LAUNCHES and len(held) % MOST_LAUNCHES):
            turn()
