"""Piecewise affine time: T = a_k + S/B_k in each stretch of sizes, with jumps where the protocol changes.

The stretches are searched (fit.segments), or known where NCCL's tuning log says which algorithm and protocol
carried each size (option ``tuning``). Parameters a1, B1, a2, ... and break1, break2, ...: the size between the
last of one stretch and the first of the next (their geometric mean, with the two as its bounds at least).
Intervals of a and B hold for the breaks found; a break's own interval holds where the draws put it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from iobench.errors import UserError
from iobench.fit import segments, shape
from iobench.fit.intervals import bootstrap_half, residual_half
from iobench.fit.segments import Cut
from iobench.fit.series import Estimate, Kind, Parameter, Series
from iobench.units import format_rate, format_seconds, format_size

_BREAK_DRAWS = 100  # each is a search of its own
_SURE = 0.95
_TINY = 1e-12
_OFFSET = 3.0  # times what the hops take: an offset that has another cause
_ADVICE = "measure sizes in between to see where"


def estimate(series: Series, options: Mapping[str, Any]) -> Estimate:
    """Find the stretches of ``series`` and fit a and B to each."""
    labels = _labels(series, options.get("tuning") or ())
    known = _changes(labels)
    cut = _given(series, known) if labels else segments.search(*_rows(series))[0]
    parameters = _parameters(series, cut)
    parameters.update(_breaks(series, cut, bool(labels)))
    error = _leave_one_out(series, labels)
    findings = _findings(series, cut, labels, parameters, options)
    return Estimate(parameters, error, findings, tuple(int(series.nbytes[start]) for start in known))


def curve(parameters: Mapping[str, float], nbytes: float) -> float:
    """Return T = a_k + S/B_k of the stretch that holds ``nbytes``, in seconds."""
    number = 1
    while f"break{number}" in parameters and nbytes >= parameters[f"break{number}"]:
        number += 1
    return parameters[f"a{number}"] + nbytes / parameters[f"B{number}"]


def _rows(series: Series) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return series.nbytes, series.seconds[None, :], series.weights


def _labels(series: Series, tuning: Any) -> list[str]:
    """Return what carried each size ("NVLS/SIMPLE"), empty where the log does not name every size."""
    try:
        named = {int(entry["nbytes"]): f"{entry['algo']}/{entry['proto']}" for entry in tuning}
    except (KeyError, TypeError, ValueError) as error:
        raise UserError("tuning must be a list of {'nbytes': ..., 'algo': ..., 'proto': ...}") from error
    labels = [named.get(int(nbytes), "") for nbytes in series.nbytes]
    return labels if all(labels) else []


def _changes(labels: Sequence[str]) -> list[int]:
    return [index for index in range(1, len(labels)) if labels[index] != labels[index - 1]]


def _given(series: Series, changes: Sequence[int]) -> Cut:
    return segments.given(series.nbytes, series.seconds, series.weights, (0, *changes))


def _parameters(series: Series, cut: Cut) -> dict[str, Parameter]:
    # a, B and where it ends of each stretch but the last, which ends with the curve
    freedom = len(series.nbytes) - 3 * len(cut.starts) + 1
    variance = cut.rss / freedom if freedom > 0 else 0.0
    out = {}
    for number, (start, end) in enumerate(cut.spans(len(series.nbytes)), 1):
        out.update(_stretch(series, slice(start, end), number, variance, freedom))
    return out


def _stretch(series: Series, piece: slice, number: int, variance: float, freedom: int) -> dict[str, Parameter]:
    sizes, seconds, weights = series.nbytes[piece], series.seconds[piece], series.weights[piece]
    (a,), (inverse,) = segments.solve(sizes, seconds[None, :], weights)
    drawn = segments.solve(sizes, series.draws[piece].T, weights)
    errors = _standard_errors(sizes, seconds, weights, variance)
    found = []
    for value, draws, error in zip((float(a), float(inverse)), drawn, errors, strict=True):
        half = bootstrap_half(series, draws, value, freedom)
        if freedom > 0:
            half = max(half, residual_half(error, freedom))
        found.append((max(0.0, value - half), value, value + half))
    (a_low, a_value, a_high), (slow, middle, fast) = found[0], [_over(value) for value in found[1]][::-1]
    return {
        f"a{number}": Parameter(a_value, a_low, a_high, unit="s"),
        f"B{number}": Parameter(middle, slow, fast, unit="bytes/s"),
    }


def _over(value: float) -> float:
    return 1 / value if value > 0 else math.inf


def _standard_errors(
    sizes: np.ndarray, seconds: np.ndarray, weights: np.ndarray, variance: float
) -> tuple[float, float]:
    """Return the standard errors of a and 1/B by the scatter about the whole curve's stretches."""
    fixed, growing = seconds.min() / seconds, sizes / sizes[-1] * seconds.min() / seconds
    pp, pq, qq = (float(weights @ part) for part in (fixed * fixed, fixed * growing, growing * growing))
    det = pp * qq - pq * pq
    if det <= _TINY * pp * qq:
        return 0.0, 0.0  # one size, or all alike: nothing tells a from 1/B
    unit = float(seconds.min())
    return math.sqrt(variance * qq / det) * unit, math.sqrt(variance * pp / det) * unit / float(sizes[-1])


def _breaks(series: Series, cut: Cut, known: bool) -> dict[str, Parameter]:
    if len(cut.starts) < 2:
        return {}
    drawn = np.array([cut.starts[1:]])
    if not known and np.ptp(series.draws, axis=1).any():
        again = segments.search(series.nbytes, series.draws.T[:_BREAK_DRAWS], series.weights, pieces=len(cut.starts))
        drawn = np.array([other.starts[1:] for other in again])
    low = high = np.array(cut.starts[1:])
    if len(drawn) > 1:
        low, high = (np.quantile(drawn, (1 + sign * _SURE) / 2, axis=0).round().astype(int) for sign in (-1, 1))
    out = {}
    for number, start in enumerate(cut.starts[1:], 1):
        first, last = min(low[number - 1], start), max(high[number - 1], start)
        value = math.sqrt(series.nbytes[start - 1] * series.nbytes[start])
        out[f"break{number}"] = Parameter(
            value, float(series.nbytes[first - 1]), float(series.nbytes[last]), unit="bytes"
        )
    return out


def _leave_one_out(series: Series, labels: Sequence[str]) -> float:
    """Return the mean error at inner sizes, each predicted by stretches fitted to the others."""
    if not labels:
        errors = segments.left_out(series.nbytes, series.seconds, series.weights)
        return float(errors.mean()) if len(errors) else math.nan
    count = len(series.nbytes)
    found = []
    for index in range(1, count - 1):
        keep = np.arange(count) != index
        sizes, seconds, weights = series.nbytes[keep], series.seconds[keep], series.weights[keep]
        starts = (0, *_changes([label for label, kept in zip(labels, keep, strict=True) if kept]))
        guess = segments.at(sizes, seconds, weights, Cut(starts, 0.0), float(series.nbytes[index]))
        found.append(abs(guess / series.seconds[index] - 1))
    return float(np.mean(found)) if found else math.nan


def _findings(
    series: Series, cut: Cut, labels: Sequence[str], parameters: Mapping[str, Parameter], options: Mapping[str, Any]
) -> list[str]:
    out = shape.breaks(series, _ADVICE)
    for start in cut.starts[1:] if labels else ():
        out.append(f"{labels[start]} takes over from {labels[start - 1]} at {format_size(int(series.nbytes[start]))}")
    first = cut.spans(len(series.nbytes))[0][0]
    out += _against_hops(parameters["a1"], float(series.seconds[first:].min()), options.get("hops_seconds"))
    out += _against_limit(parameters[f"B{len(cut.starts)}"], options.get("limit_bytes_per_s"))
    return out


def _against_hops(a: Parameter, least: float, hops: float | None) -> list[str]:
    """Return sentences where the least time is below what the hops take, or far above at every size."""
    if not hops:
        return []
    if least < hops:
        return [
            f"latency below what the hops allow: {format_seconds(least)}, and the way takes {format_seconds(hops)} at "
            "least; the operation was not finished when the clock stopped, or this is not the path taken"
        ]
    if a.low > _OFFSET * hops:
        return [
            f"constant offset: every size takes {format_seconds(a.value)}, of which the way explains "
            f"{format_seconds(hops)}; the rest is launching, synchronising or copying"
        ]
    return []


def _against_limit(rate: Parameter, limit: float | None) -> list[str]:
    if not limit or not rate.low > limit or math.isinf(rate.value):
        return []
    return [
        f"bandwidth above the limit: B = {format_rate(rate.value)} and the path's limit is {format_rate(limit)}; "
        "part of the bytes did not take this path, or was not moved"
    ]


KIND = Kind(
    "piecewise",
    "T = a_k + S/B_k in each stretch of sizes",
    least=4,
    estimate=estimate,
    curve=curve,
    options=("tuning", "hops_seconds", "limit_bytes_per_s"),
    predicts="neighbours",
)
