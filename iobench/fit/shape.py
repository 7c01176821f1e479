"""What the shape of a measured curve says, as sentences: where time falls with size, or leaps."""

from __future__ import annotations

from iobench.fit.series import Series
from iobench.units import format_seconds, format_size

_FALL = 0.95  # a time below this part of the one at the size before is a fall
_CLIFF = 2.0  # a time that grows this much faster than the size is a cliff
_MOST_SENTENCES = 3


def breaks(series: Series, advice: str) -> list[str]:
    """Return a sentence for each place where time falls with size, or grows far faster than it."""
    out = []
    for index in range(1, len(series.nbytes)):
        before, after = series.seconds[index - 1], series.seconds[index]
        sizes = [format_size(int(series.nbytes[i])) for i in (index - 1, index)]
        times = f"{format_seconds(before)} to {format_seconds(after)}"
        if after < _FALL * before and series.high[index] < series.low[index - 1]:
            out.append(f"non-monotone at {sizes[1]}: the time falls from {times} after {sizes[0]}; {advice}")
        elif after / before > _CLIFF * series.nbytes[index] / series.nbytes[index - 1]:
            out.append(f"cliff at {sizes[1]}: the time grows from {times} after {sizes[0]}; {advice}")
    if len(out) > _MOST_SENTENCES:
        out[_MOST_SENTENCES:] = [f"{len(out) - _MOST_SENTENCES} more such breaks at larger sizes"]
    return out
