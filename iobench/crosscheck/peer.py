"""A peer tool: where it is, how it takes turns with a probe, and the table that all comparisons share.

A row's ratio is the median over rounds of the two figures of one round, so that what drifts in the machine cancels;
its interval is that median's. What is known to differ between the two sides stands behind it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from iobench.errors import UserError
from iobench.units import format_rate, format_seconds

if TYPE_CHECKING:
    from iobench.stats import Interval

VARIABLE = "PEER"  # what --peer sets; a path, or a name to be found on PATH
LEAST_ROUNDS = 6  # below, no order statistics hold a median with 95 % (iobench.stats)
_NAME, _FIGURE = 44, 11


def find(tool: str) -> str | None:
    """Return the program of ``tool``: the one that --peer names where it is that tool, else the one on PATH."""
    named = os.environ.get(VARIABLE)
    if named and Path(named).name == tool:
        found = shutil.which(named)
        if found is None:
            raise UserError(f"{VARIABLE}={named} is no program: give the path of {tool}")
        return found
    return shutil.which(tool)


def give(path: str | None, tools: Iterable[str]) -> None:
    """Take the user's --peer: a program, or UserError. Its name has to be that of one of ``tools`` (none: any)."""
    if path is None:
        return
    names = sorted(tools)
    if shutil.which(path) is None:
        raise UserError(f"--peer {path} is no program: give its path, as in --peer ./nvbandwidth")
    if names and Path(path).name not in names:
        raise UserError(f"--peer {path}: this crosscheck runs beside {', '.join(names)}, told by the program's name")
    os.environ[VARIABLE] = path


@dataclass(kw_only=True)
class Pairs:
    """One point measured by both sides, a pair of figures for each round: bytes/s, or seconds for a latency.

    ``reason`` says why there are no figures.
    """

    latency: bool = False
    ours: list[float] = field(default_factory=list)
    peers: list[float] = field(default_factory=list)
    reason: str = ""

    @property
    def ratio(self) -> Interval:
        """How much better iobench's figure is than the peer's of the same round; 1.01: 1 % better."""
        import numpy as np

        from iobench.stats import median_interval

        return median_interval([np.asarray(self._ratios())])

    @property
    def spread(self) -> str:
        """Return the ratio's interval; of a few rounds their range: an interval of them says next to nothing."""
        ratios = self._ratios()
        if len(ratios) == 1:
            return "(one round: no interval)"
        if len(ratios) < LEAST_ROUNDS:
            return f"({len(ratios)} rounds: {min(ratios):.3f} .. {max(ratios):.3f})"
        return f"({self.ratio.low:.3f} .. {self.ratio.high:.3f})"

    @property
    def middle(self) -> tuple[float, float]:
        """Both sides' figures over all rounds."""
        return median(self.ours), median(self.peers)

    def _ratios(self) -> list[float]:
        pairs = zip(self.ours, self.peers, strict=True)
        return [peer / own if self.latency else own / peer for own, peer in pairs]


@dataclass
class Row(Pairs):
    """A row of the table; ``known`` says what is known to differ between the sides."""

    name: str
    known: str = field(default="", kw_only=True)

    def text(self) -> str:
        """Return the row as it stands in the table."""
        if self.reason or not self.ours:
            return f"{self.name:<{_NAME}} {self.reason or 'gave no figure'}"
        show = format_seconds if self.latency else format_rate
        ours, peers = map(show, self.middle)
        known = f"   {self.known}" if self.known else ""
        return (
            f"{self.name:<{_NAME}} {ours:>{_FIGURE}} {peers:>{_FIGURE}}  {self.ratio.median:.3f} {self.spread}{known}"
        )


def heading(peer: str) -> str:
    """Return the table's heading."""
    ratio = f"iobench / {peer} in speed (above 1: iobench is faster)"
    return f"{'':<{_NAME}} {'iobench':>{_FIGURE}} {peer:>{_FIGURE}}  {ratio}, its interval, and what is known to differ"


def in_turns(row: Row, ours: Callable[[], float], peer: Callable[[], float | None], rounds: int) -> None:
    """Measure A B, B A, A B, ...: whichever comes first in a round gains nothing by it over all."""
    for number in range(rounds):
        pair: dict[bool, float | None] = {}
        for own in (True, False) if number % 2 == 0 else (False, True):
            pair[own] = ours() if own else peer()
        mine, theirs = pair[True], pair[False]
        if mine is None or theirs is None or mine <= 0 or theirs <= 0:
            row.reason = row.reason or "the peer gave no figure"
            return
        row.ours.append(mine)
        row.peers.append(theirs)


def table(peer: str, rows: Iterable[Row]) -> Iterator[str]:
    """Yield the lines of a table."""
    yield heading(peer)
    for row in rows:
        yield row.text()
