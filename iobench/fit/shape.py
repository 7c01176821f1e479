"""What the shape of a measured curve says, as sentences: where time falls with size, or leaps."""

from __future__ import annotations

import numpy as np

from iobench.fit.series import Batch, Series
from iobench.units import format_seconds, format_size

_FALL = 0.95  # a time below this part of the one at the size before is a fall
_CLIFF = 2.0  # a time that grows this much faster than the size is a cliff
_MOST_SENTENCES = 3


def breaks(series: Series, advice: str) -> list[str]:
    """Return a sentence for each place where time falls with size, or grows far faster than it."""
    return sentences(Batch.of(series), advice)[0]


def sentences(batch: Batch, advice: str) -> list[list[str]]:
    """Return what ``breaks`` says of each series of a batch."""
    growth = batch.seconds[:, 1:] / batch.seconds[:, :-1]
    falls = (growth < _FALL) & (batch.high[:, 1:] < batch.low[:, :-1])
    cliffs = ~falls & (growth > _CLIFF * batch.nbytes[:, 1:] / batch.nbytes[:, :-1])
    out: list[list[str]] = [[] for _ in growth]
    for row, index in np.argwhere(falls | cliffs):
        out[row].append(_sentence(batch.nbytes[row], batch.seconds[row], index + 1, bool(falls[row, index]), advice))
    for said in out:
        if len(said) > _MOST_SENTENCES:
            said[_MOST_SENTENCES:] = [f"{len(said) - _MOST_SENTENCES} more such breaks at larger sizes"]
    return out


def _sentence(nbytes: np.ndarray, seconds: np.ndarray, index: int, falls: bool, advice: str) -> str:
    before, after = (format_size(int(nbytes[i])) for i in (index - 1, index))
    times = f"{format_seconds(seconds[index - 1])} to {format_seconds(seconds[index])}"
    what, moves = ("non-monotone", "falls") if falls else ("cliff", "grows")
    return f"{what} at {after}: the time {moves} from {times} after {before}; {advice}"
