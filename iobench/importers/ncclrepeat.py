"""Runs of nccl-tests like one before: read as a block, checked together, their figures added to points that exist.

A long log is the same few runs thousands of times. Of a run whose like was sound only the figures are looked at here,
those of many runs at once; what is not usual is read again row by row (``ncclreading``), with the same outcome.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from iobench.importers.collective import Collector, Point, Sweep
from iobench.importers.torun import MOST_LAUNCHES
from iobench.units import US

if TYPE_CHECKING:
    from iobench.importers.ncclrun import NcclRun

ROUNDING = 0.00501  # of two decimals
CLOSE = 0.005
_END = "\0"  # between rows: a log's text holds none
_SPACED_END = f" {_END} "
_MOST_WAITING = 4_000  # figures
_HEAD = 5  # words of a row before its figures, or some of these: never more than stand there


@dataclass(frozen=True)
class Table:
    """The first words of each row of a table that was read before, and how many words its rows have."""

    heads: tuple[tuple[str, ...], ...]
    width: int

    @property
    def key(self) -> tuple[str, ...]:
        return self.heads[0]

    def block(self, number: int, lines: list[str], longest: int) -> Block | None:
        """Return the rows that begin at line ``number``; None where they are not this table's, each on its line."""
        count, stride = len(self.heads), self.width + 1
        lines = lines[number - 1 : number - 1 + count]
        text = _SPACED_END.join(lines)
        words = text.split()
        if len(words) != count * stride - 1 or words[self.width :: stride].count(_END) != count - 1:
            return None
        if "NCCL" in text or max(map(len, lines)) >= longest:
            return None
        if tuple(zip(*(words[at::stride] for at in range(_HEAD)), strict=True)) != self.heads:
            return None
        return Block(self, range(number, number + count), words)


@dataclass(frozen=True)
class Block:
    """The words of a table's rows one after the other, a mark between the rows, and the numbers of their lines."""

    table: Table
    numbers: Sequence[int]
    words: list[str]

    @property
    def rows(self) -> list[tuple[int, list[str]]]:
        """Each row by itself."""
        width = self.table.width
        starts = range(0, len(self.words), width + 1)
        return [(number, self.words[at : at + width]) for number, at in zip(self.numbers, starts, strict=True)]


def heads_of(rows: list[tuple[int, list[str]]]) -> tuple[tuple[str, ...], ...]:
    """Return what stands before the figures of each row."""
    return tuple(tuple(tokens[:_HEAD]) for _, tokens in rows)


def _joined(table: Table, rows: list[tuple[int, list[str]]]) -> Block:
    words = [word for _, tokens in rows for word in (*tokens, _END)]
    return Block(table, [number for number, _ in rows], words[:-1])


class Repeat:
    """A sound run whose like comes again: its points, where they have all their launches, in the order of columns."""

    def __init__(
        self,
        run: NcclRun,
        heads: tuple[tuple[str, ...], ...],
        sweeps: Mapping[tuple[str, str, int, bool], tuple[Sweep, int]],
        bus: float,
    ) -> None:
        self.bus = bus
        self.places: list[Point] = []
        self.sizes: list[float] = []
        self.starts: list[int] = []
        self.identities: list[list[int]] = []
        layout = run.layout
        self.table = Table(heads, layout.width if layout else 0)
        if not layout or layout.side != ("time", "algbw", "busbw", "wrong") or layout.stamped:
            return
        if len(run.rows) != len(heads):
            return
        first = 3 + layout.redop + layout.root
        sides = range(layout.sides)
        self.identities = [
            [sweeps[(row.dtype, row.redop, row.root, side == 1)][1] for side in sides]
            for row in run.rows
            if row.nbytes and (row.dtype, row.redop, row.root, False) in sweeps
        ]
        if len(self.identities) == len(heads):
            self.starts = [first + 4 * side for side in sides]

    def ready(self, collector: Collector) -> bool:
        """Tell whether every point has all its launches, so that further figures only join them."""
        if self.starts and not self.places:
            sizes = [int(head[0]) for head in self.table.heads]
            found = [
                collector.full(identities[side], nbytes)
                for side in range(len(self.starts))
                for nbytes, identities in zip(sizes, self.identities, strict=True)
            ]
            self.places = [point for point in found if point] if all(found) else []
            self.sizes = [float(nbytes) for nbytes in sizes] * len(self.starts)
        return bool(self.places)


@dataclass(frozen=True)
class Waiting:
    """A run whose figures wait to be looked at; their texts by columns, all of one placement before the other's."""

    run: NcclRun
    like: tuple[Any, ...]
    known: Repeat
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
        self.figures: tuple[list[float], list[float], list[float]] = ([], [], [])
        self.algbws: list[str] = []
        self.busbws: list[str] = []

    @property
    def full(self) -> bool:
        return len(self.figures[0]) >= _MOST_WAITING

    def add(self, run: NcclRun, like: tuple[Any, ...], known: Repeat) -> bool:
        """Let a run wait; False (and nothing done) where a figure is no number or data are not right."""
        block = run.block or _joined(known.table, run.raw)
        words, stride = block.words, known.table.width + 1
        texts: list[list[str]] = []
        for column in range(3):
            texts.append([text for start in known.starts for text in words[start + column :: stride]])
        if any(words[start + 3 :: stride].count("0") != len(block.numbers) for start in known.starts):
            return False
        try:
            found = [list(map(float, column)) for column in texts]
        except ValueError:
            return False
        for have, more in zip(self.figures, found, strict=True):
            have += more
        self.algbws += texts[1]
        self.busbws += texts[2]
        self.runs.append(Waiting(run, like, known, [*block.numbers] * len(known.starts), *texts))
        return True

    def sound(self) -> list[tuple[Waiting, list[float]]]:
        """Return each run that waits with its seconds; without any where a figure of it is not sound at first look.

        Rates in GB/s follow closely from times in us, or to two decimals where they are small.
        """
        if not self.runs:
            return []
        import numpy as np  # a log without repeats needs none

        time, algbw, busbw = map(np.array, self.figures)
        counts = [len(waiting.times) for waiting in self.runs]
        ends = np.cumsum(counts)
        sizes = np.array([size for waiting in self.runs for size in waiting.known.sizes])
        bus = np.repeat([waiting.known.bus for waiting in self.runs], counts)
        with np.errstate(all="ignore"):
            plain = sizes / (time * 1e3)
            bad = ~((time > 0) & (time < np.inf))
            for rates, wanted, texts in ((algbw, plain, self.algbws), (busbw, plain * bus, self.busbws)):
                off = np.abs(rates - wanted)
                far = ~(off <= CLOSE * wanted)
                bad |= far & ~(off <= ROUNDING)
                for at in np.flatnonzero(far & ~bad).tolist():
                    if texts[at][-3:-2] != ".":
                        bad[at] = True
        seconds = (time * US).tolist()
        odd = set(np.searchsorted(ends, np.flatnonzero(bad), side="right").tolist())
        return [
            (waiting, [] if place in odd else seconds[end - count : end])
            for place, (waiting, end, count) in enumerate(zip(self.runs, ends.tolist(), counts, strict=True))
        ]


def join(waiting: Waiting, seconds: list[float]) -> None:
    """Add the figures of a sound run to its points."""
    this = waiting.run.number
    figures = zip(waiting.numbers, waiting.times, waiting.algbws, waiting.busbws, strict=True)
    printed = [f"line {number}: {time} {algbw} {busbw} 0" for number, time, algbw, busbw in figures]
    for point, value, text in zip(waiting.known.places, seconds, printed, strict=True):
        if point.run != this:
            point.run, point.launch = this, (point.launch + 1) % MOST_LAUNCHES
        have, rows = point.sinks[point.launch]
        have.append(value)
        rows.append(text)
