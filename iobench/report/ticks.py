"""Where the axes' ticks stand and what they say: powers of two in KiB and MiB, rates in GB/s, times in us."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from matplotlib import ticker

from iobench.units import format_size, short_rate, short_seconds

_MOST_SIZE_TICKS = 6
_MOST_NUMBER_TICKS = 8
_LOG_FROM = 12.0  # ratio of largest to smallest value from which a linear axis would hide the small ones


def wants_log(values: Sequence[float]) -> bool:
    """Tell whether the values span so much that only a logarithmic axis shows them all."""
    return min(values) > 0 and max(values) / min(values) > _LOG_FROM


def value_axis(axis: Any, y: str, low: float, high: float, log: bool) -> None:
    """Set ticks and labels of the axis that carries rates ("bandwidth") or times ("latency")."""
    short = short_rate if y == "bandwidth" else short_seconds
    if log:
        decades = math.log10(high / low)
        subs = (1.0, 2.0, 5.0) if decades < 1.7 else (1.0, 3.0) if decades < 2.7 else (1.0,)
        axis.set_major_locator(ticker.LogLocator(subs=subs, numticks=20))
        axis.set_minor_locator(ticker.NullLocator())
    else:
        scale = _unit_of(y, high)
        axis.set_major_locator(ticker.FixedLocator([tick * scale for tick in _nice(low / scale, high / scale)]))
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: short(value)))


def _unit_of(y: str, high: float) -> float:
    """Return the unit in which the ticks shall be round numbers."""
    if y == "bandwidth":
        return 1e9
    return 10.0 ** (3 * math.floor(math.log10(high) / 3 + 1e-9))


def _nice(low: float, high: float) -> list[float]:
    return [float(tick) for tick in ticker.MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)]


def size_ticks(values: Sequence[float]) -> tuple[list[float], list[str]]:
    """Return powers of two between the least and the largest size, few enough to be read."""
    low, high = math.floor(math.log2(min(values)) + 0.001), math.ceil(math.log2(max(values)) - 0.001)
    step = next(s for s in (1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 60) if (high - low) / s < _MOST_SIZE_TICKS)
    ticks = [2**power for power in range(low, high + 1, step)]
    return [float(tick) for tick in ticks], [format_size(tick) for tick in ticks]


def number_ticks(values: Sequence[float]) -> tuple[list[float], list[str]]:
    """Return the measured values themselves, thinned where they are many."""
    distinct = sorted(set(values))
    step = math.ceil(len(distinct) / _MOST_NUMBER_TICKS)
    ticks = distinct[::step]
    return ticks, [f"{tick:g}" for tick in ticks]
