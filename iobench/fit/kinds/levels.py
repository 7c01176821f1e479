"""Latency of each cache level, from a pointer chase over working sets.

A level's latency is the median over the working sets well inside it: above the level before by a factor
that leaves it few hits, below its own size by a margin for whatever else lives there. Within that window
only the first flat stretch counts, because two things bend the curve upwards inside a level: TLB misses
(small pages), and a shared last level of which this machine may use only a part.

``windows`` says itself which working sets lie inside which level: where a device is known to bend elsewhere than at
its caches' sizes (the near and the far part of a GPU's L2).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from iobench.errors import UserError
from iobench.fit import bootstrap
from iobench.fit.series import Estimate, Kind, Parameter, Series
from iobench.units import format_seconds, format_size

MEMORY = "memory"
_ABOVE = (2.0, 1.5)  # times the level before: the second where the first leaves no two working sets
_BELOW = 0.7  # of its own size
_FAR = (4.0, 2.0)  # times the last level: the same for memory
_FLAT = 1.2  # a stretch is flat while its largest latency is within this factor of its least
_STEP = 1.3  # two stretches nearer than this are one level


def estimate(series: Series, options: Mapping[str, Any]) -> Estimate:
    """Find each level's latency; ``edges`` holds (name, nbytes) of the caches, empty where unknown.

    ``windows`` holds (name, least, most) of each level instead, ``most`` 0 where it has no end.
    """
    edges, told = _edges(options.get("edges") or ()), _told(options.get("windows") or ())
    if told:
        windows, findings = _in_windows(series, told)
    else:
        windows, findings = _known(series, edges) if edges else _detect(series)
    parameters = {name: _parameter(series, inside) for name, inside in windows.items()}
    values = [parameter.value for parameter in parameters.values()]
    for (low, below), (high, above) in zip(parameters.items(), list(parameters.items())[1:], strict=False):
        if above.value < below.value:
            findings.append(f"{high} looks faster than {low}: measure again on a quiet machine")
    if not values:
        findings.append(
            "no level has a flat stretch of working sets: measure more of them, as in -a nbytes=4K:1G:1.414"
        )
    return Estimate(parameters, _leave_one_out(series, list(windows.values())), findings)


def curve(parameters: Mapping[str, float], nbytes: float) -> float:
    """Return 1.0: there is no formula between levels, so predictions interpolate what was measured."""
    del parameters, nbytes
    return 1.0


def region(nbytes: int, options: Mapping[str, Any]) -> str:
    """Return the level that a working set lies well inside, "" between two levels."""
    told = _told(options.get("windows") or ())
    if told:
        return next((name for name, least, most in told if least <= nbytes <= most), "")
    before = 0
    for name, own in [*_edges(options.get("edges") or ()), (MEMORY, 0)]:
        if len(_window(np.array([nbytes]), before, own)):
            return name
        before = own
    return ""


def _edges(given: Any) -> list[tuple[str, int]]:
    pairs = list(given.items() if isinstance(given, Mapping) else given)
    try:
        ordered = sorted(((str(name), int(nbytes)) for name, nbytes in pairs), key=lambda pair: pair[1])
    except (TypeError, ValueError) as error:
        raise UserError(f"edges must be (name, nbytes) of each cache, as in ('L1d', 32768): {error}") from error
    return [(name, nbytes) for name, nbytes in ordered if nbytes > 0]


def _told(given: Any) -> list[tuple[str, int, float]]:
    try:
        return [(str(name), int(least), int(most) or math.inf) for name, least, most in given]
    except (TypeError, ValueError) as error:
        raise UserError(f"windows must be (name, least, most) of each level, as in (L1, 0, 32768): {error}") from error


def _in_windows(series: Series, told: Sequence[tuple[str, int, float]]) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return level -> indices of its first flat stretch of working sets inside its window."""
    windows: dict[str, np.ndarray] = {}
    findings: list[str] = []
    for name, least, most in told:
        window = np.flatnonzero((series.nbytes >= least) & (series.nbytes <= most))
        if not len(window):
            end = format_size(int(most)) if math.isfinite(most) else "the whole memory"
            between = f"between {format_size(least)} and {end}" if least else f"up to {end}"
            findings.append(f"{name} has no working set well inside it: measure some {between}")
            continue
        windows[name] = _flat(series.seconds, window)
        findings += _bend(series, name, 0, window, windows[name])
        after = float(np.max(series.seconds[window[window > windows[name][-1]]], initial=0.0))
        if after > _FLAT * float(np.median(series.seconds[windows[name]])):
            start = format_size(int(series.nbytes[windows[name][-1]]))
            why = "TLB misses" if math.isinf(most) else "the next level takes part"
            findings.append(f"{name} is slower above {start} (up to {format_seconds(after)}): {why}")
    return windows, findings


def _known(series: Series, edges: Sequence[tuple[str, int]]) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return level -> indices of its working sets, for caches of known size."""
    windows: dict[str, np.ndarray] = {}
    findings: list[str] = []
    before = 0
    for name, nbytes in [*edges, (MEMORY, 0)]:
        window = _window(series.nbytes, before, nbytes)
        if len(window):
            # memory's flat stretch is the last one: a cache that the machine hides comes before it
            order = window if nbytes else window[::-1]
            windows[name] = np.sort(_flat(series.seconds, order))
            findings += _bend(series, name, nbytes, window, windows[name])
        else:
            findings.append(_missing(name, before, nbytes))
        before = nbytes
    return windows, findings


def _window(nbytes: np.ndarray, before: int, own: int) -> np.ndarray:
    """Return the indices well inside a level, by the wider rule only where the stricter leaves fewer than two."""
    top = own * _BELOW if own else math.inf
    found = np.array([], dtype=int)
    for factor in _ABOVE if own else _FAR:
        found = np.flatnonzero((nbytes >= before * factor) & (nbytes <= top))
        if len(found) >= 2:
            break
    return found


def _flat(seconds: np.ndarray, window: np.ndarray) -> np.ndarray:
    """Return the first stretch of two or more along ``window`` that is flat; all of it where there is none."""
    for start in range(len(window) - 1):
        stretch = _stretch(seconds, window, start)
        if len(stretch) >= 2:
            return stretch
    return window


def _stretch(seconds: np.ndarray, window: np.ndarray, start: int) -> np.ndarray:
    least = most = seconds[window[start]]
    end = start + 1
    while end < len(window):
        least, most = min(least, seconds[window[end]]), max(most, seconds[window[end]])
        if most > _FLAT * least:
            break
        end += 1
    return window[start:end]


def _bend(series: Series, name: str, own: int, window: np.ndarray, flat: np.ndarray) -> list[str]:
    """Return a sentence where the level has no flat stretch, or bends upwards before or after it."""
    latency, spread = float(np.median(series.seconds[flat])), np.ptp(np.log(series.seconds[flat]))
    if len(flat) > 1 and spread > math.log(_FLAT):
        return [f"{name} has no flat stretch: its latency is the median of a rising curve; measure more working sets"]
    if own and series.seconds[window[-1]] > _FLAT * latency:
        start, most = series.nbytes[flat[-1]], format_seconds(float(series.seconds[window[-1]]))
        return [
            f"{name} of {format_size(own)} is slower above {format_size(int(start))} (up to {most}): TLB misses, or "
            f"less of {name} is usable here than its size; the latency given is that of the working sets below"
        ]
    if not own and series.seconds[window[0]] * _FLAT < latency:
        start, least = series.nbytes[flat[0]], format_seconds(float(series.seconds[window[0]]))
        return [
            f"below {format_size(int(start))} working sets are faster than memory (down to {least}) though they exceed "
            "the last known cache: a cache that this machine hides, or TLB misses above"
        ]
    return []


def _missing(name: str, before: int, own: int) -> str:
    if name == MEMORY:
        enough = format_size(int(before * _FAR[0]))
        return f"memory has no working set: measure to {enough} or more, 4 times the last cache"
    low, high = before * _ABOVE[1], own * _BELOW
    if low > high:
        return f"{name} of {format_size(own)} is too near the level before ({format_size(before)}) to be told apart"
    between = (
        f"between {format_size(int(low))} and {format_size(int(high))}" if low else f"below {format_size(int(high))}"
    )
    return f"{name} has no working set well inside it: measure some {between}"


def _detect(series: Series) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return the flat stretches of the curve, named by their order, where cache sizes are unknown."""
    everything = np.arange(len(series.nbytes))
    levels: list[np.ndarray] = []
    start = 0
    while start < len(everything):
        stretch = _stretch(series.seconds, everything, start)
        start = int(stretch[-1]) + 1
        if len(stretch) < 2:
            continue
        near = levels and np.median(series.seconds[stretch]) < _STEP * np.median(series.seconds[levels[-1]])
        if near:
            levels[-1] = np.concatenate((levels[-1], stretch))
        else:
            levels.append(stretch)
    names = [
        f"level {number} (up to {format_size(int(series.nbytes[level[-1]]))})" for number, level in enumerate(levels, 1)
    ]
    return dict(zip(names, levels, strict=True)), [
        "cache sizes are unknown here: the levels are steps found in the data"
    ]


def _parameter(series: Series, inside: np.ndarray) -> Parameter:
    value = float(np.median(series.seconds[inside]))
    logs = np.log(np.median(series.draws[inside], axis=0))
    factor = math.exp(bootstrap.half_width(logs, math.log(value), series.widening))
    return Parameter(value, value / factor, value * factor, unit="s")


def _leave_one_out(series: Series, windows: Sequence[np.ndarray]) -> float:
    """Return the mean error of a level's latency at each of its working sets, that one left out."""
    errors = [
        abs(float(np.median(series.seconds[inside[inside != index]])) / series.seconds[index] - 1)
        for inside in windows
        if len(inside) >= 2
        for index in inside
    ]
    return float(np.mean(errors)) if errors else math.nan


KIND = Kind(
    "levels",
    "latency per cache level",
    least=4,
    estimate=estimate,
    curve=curve,
    options=("edges", "windows"),
    region=region,
    region_least=2,
    axis="span",
)
