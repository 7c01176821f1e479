"""What the shape of a measured curve says, as sentences: where time falls with size, or leaps."""

from __future__ import annotations

import numpy as np

from iobench.fit.series import Series
from iobench.units import format_seconds, format_size

_FALL = 0.95  # a time below this part of the one at the size before is a fall
_CLIFF = 2.0  # a time that grows this much faster than the size is a cliff
_MOST_SENTENCES = 3


def breaks(series: Series, advice: str) -> list[str]:
    """Return a sentence for each place where time falls with size, or grows far faster than it."""
    growth = series.seconds[1:] / series.seconds[:-1]
    falls = (growth < _FALL) & (series.high[1:] < series.low[:-1])
    cliffs = ~falls & (growth > _CLIFF * series.nbytes[1:] / series.nbytes[:-1])
    out = []
    for index in np.flatnonzero(falls | cliffs) + 1:
        before, after = (format_size(int(series.nbytes[i])) for i in (index - 1, index))
        times = f"{format_seconds(series.seconds[index - 1])} to {format_seconds(series.seconds[index])}"
        what, moves = ("non-monotone", "falls") if falls[index - 1] else ("cliff", "grows")
        out.append(f"{what} at {after}: the time {moves} from {times} after {before}; {advice}")
    if len(out) > _MOST_SENTENCES:
        out[_MOST_SENTENCES:] = [f"{len(out) - _MOST_SENTENCES} more such breaks at larger sizes"]
    return out
