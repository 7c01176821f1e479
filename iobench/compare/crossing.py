"""Which of two series is faster at each size, and at which size that changes, with its interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from iobench.compare.curves import Curve
from iobench.compare.points import SAME
from iobench.fit import bootstrap
from iobench.units import format_size

_MISSED = 0.025  # of the draws may have no crossing before its interval counts as open
_MOST_CHANGES = 3


@dataclass(frozen=True)
class Ratio:
    """B's speed over A's at one size (A's time over B's); ``low`` and ``high`` None where no interval is known.

    ``verdict`` is "A" or "B" where one is faster, "same" within 3 %, else "unclear".
    """

    nbytes: int
    value: float
    low: float | None
    high: float | None
    measured: bool
    verdict: str


@dataclass(frozen=True)
class Crossing:
    """The size at which the faster one changes: the estimate, its 95 % interval, and the sizes it lies between."""

    nbytes: float
    low: float | None
    high: float | None
    between: tuple[int, int]


@dataclass(frozen=True)
class Duel:
    """Two series over the sizes that both reach, and where the faster one changes."""

    a: Curve
    b: Curve
    ratios: tuple[Ratio, ...]
    crossings: tuple[Crossing, ...]

    @property
    def sentence(self) -> str:
        """Say who is faster where: "A is faster up to 2.1 MiB (95 %: 1.6 to 2.7 MiB), B from there"."""
        return _sentence(self)


def duel(a: Curve, b: Curve) -> Duel | None:
    """Return both series set against each other; None where no size lies in the range of both."""
    sizes = [size for size in sorted({*a.sizes, *b.sizes}) if a.reaches(size) and b.reaches(size)]
    if not sizes:
        return None
    ratios = tuple(ratio_at(a, b, size) for size in sizes)
    spans = _spans(ratios, a.letter, b.letter)
    crossings = tuple(_crossing(a, b, sizes, left, right) for left, right in pairwise(spans))
    return Duel(a, b, ratios, crossings)


def ratio_at(a: Curve, b: Curve, nbytes: int) -> Ratio:
    """Return B's speed over A's at a size that both reach."""
    first, second = a.at(nbytes), b.at(nbytes)
    value = first.seconds / second.seconds * _more_bytes(a, b, nbytes)
    halves = (first.log_half, second.log_half)
    if halves[0] is None or halves[1] is None:
        low = high = None
    else:
        half = 0.0 if a.run_id == b.run_id and a.records == b.records else math.hypot(halves[0], halves[1])
        low, high = value * math.exp(-half), value * math.exp(half)
    return Ratio(nbytes, value, low, high, first.measured and second.measured, _verdict(a, b, value, low, high))


def _more_bytes(a: Curve, b: Curve, nbytes: int) -> float:
    """Return how many times A's bytes B moved where no size is stated and only the rates can be compared; else 1."""
    moved = a.moved_at(0), b.moved_at(0)
    return moved[1] / moved[0] if nbytes == 0 and all(moved) else 1.0


def _verdict(a: Curve, b: Curve, value: float, low: float | None, high: float | None) -> str:
    """Without an interval a single figure decides, but not by less than what counts as the same."""
    if low is None or high is None:
        low = high = value
        if abs(value - 1) <= SAME:
            return "same"
    if low >= 1 - SAME and high <= 1 + SAME:
        return "same"
    return b.letter if low > 1 else a.letter if high < 1 else "unclear"


def _spans(ratios: Sequence[Ratio], *letters: str) -> list[list[Ratio]]:
    """Return the runs of sizes with one winner; sizes that are the same or unclear belong to neither."""
    spans: list[list[Ratio]] = []
    for ratio in ratios:
        if ratio.verdict not in letters:
            continue
        if spans and spans[-1][0].verdict == ratio.verdict:
            spans[-1].append(ratio)
        else:
            spans.append([ratio])
    return spans


def _crossing(a: Curve, b: Curve, sizes: Sequence[int], left: list[Ratio], right: list[Ratio]) -> Crossing:
    """Return where the times meet between the last size of one winner and the first of the next."""
    ends = left[-1].nbytes, right[0].nbytes
    inside = [size for size in sizes if ends[0] <= size <= ends[1]]
    gaps = np.array([math.log(a.at(size).seconds / b.at(size).seconds) for size in inside])
    logs = np.log(np.array(inside, dtype=float))
    zero = _zeros(logs, gaps[:, None])[0]
    low, high = _interval(a, b, sizes, zero, float(np.sign(gaps[-1])))
    return Crossing(math.exp(zero), low, high, ends)


def _zeros(logs: np.ndarray, gaps: np.ndarray, near: float | None = None) -> np.ndarray:
    """Return for each column of ``gaps`` [size][draw] where it crosses zero: the nearest to ``near``, else the middle.

    NaN where it does not cross.
    """
    out = np.full(gaps.shape[1], np.nan)
    for column in range(gaps.shape[1]):
        gap = gaps[:, column]
        places = np.flatnonzero(np.sign(gap[:-1]) * np.sign(gap[1:]) <= 0)
        if len(places) == 0:
            continue
        step = gap[places + 1] - gap[places]
        share = np.where(step == 0, 0.5, -gap[places] / np.where(step == 0, 1.0, step))
        zeros = logs[places] + share * (logs[places + 1] - logs[places])
        out[column] = zeros[len(zeros) // 2] if near is None else zeros[np.argmin(np.abs(zeros - near))]
    return out


def _interval(a: Curve, b: Curve, sizes: Sequence[int], zero: float, sign: float) -> tuple[float | None, float | None]:
    """Return the crossing's 95 % interval from the bootstrap; an end that the draws do not bound is the range's."""
    if not (a.known and b.known):
        return None, None
    logs = np.log(np.array(sizes, dtype=float))
    gaps = np.array([a.log_draws(size) - b.log_draws(size) for size in sizes]) * sign
    zeros = _zeros(logs, gaps, near=zero)
    met = zeros[np.isfinite(zeros)]
    if len(met) < (1 - _MISSED) * len(zeros):
        return float(sizes[0]), float(sizes[-1])
    wide = max(bootstrap.widening(curve.parts) for curve in (a, b))
    half = bootstrap.half_width(met, zero, wide)
    ends = (max(zero - half, logs[0]), min(zero + half, logs[-1]))
    return math.exp(ends[0]), math.exp(ends[1])


def _sentence(duel: Duel) -> str:
    a, b = duel.a.letter, duel.b.letter
    ratios = duel.ratios
    spans = _spans(ratios, a, b)
    if not spans:
        if len(ratios) == 1:
            return f"{a} and {b} are the same" if ratios[0].verdict == "same" else "which is faster is unclear"
        where = f"{format_size(ratios[0].nbytes)} to {format_size(ratios[-1].nbytes)}"
        same = all(ratio.verdict == "same" for ratio in ratios)
        return f"{a} and {b} are the same ({where})" if same else f"which is faster is unclear at every size ({where})"
    if len(spans) == 1:
        return _one_winner(duel, spans[0])
    if len(duel.crossings) > _MOST_CHANGES:
        return f"now {a}, now {b}: " + ", ".join(_span(span) for span in spans)
    parts = [f"{spans[0][0].verdict} is faster up to {size_text(duel.crossings[0])}"]
    for span, after in zip(spans[1:], duel.crossings[1:], strict=False):
        parts.append(f"{span[0].verdict} up to {size_text(after)}")
    return f"{', '.join(parts)}, {spans[-1][0].verdict} from there"


def _one_winner(duel: Duel, span: list[Ratio]) -> str:
    winner = span[0].verdict
    loser = duel.a.letter if winner == duel.b.letter else duel.b.letter
    factors = [ratio.value if winner == duel.b.letter else 1 / ratio.value for ratio in span]
    ends = f"{format_size(span[0].nbytes)} to {format_size(span[-1].nbytes)}"
    count = len(duel.ratios)
    if count == 1:
        return f"{winner} is faster: {factors[0]:.2f} times {loser}'s speed"
    where = f"every size compared ({ends})" if len(span) == count else f"{len(span)} of {count} sizes"
    rest = "" if len(span) == count else ", the same or unclear at the others"
    how = (
        f"{min(factors):.2f}"
        if f"{min(factors):.2f}" == f"{max(factors):.2f}"
        else (f"{min(factors):.2f} to {max(factors):.2f}")
    )
    return f"{winner} is faster at {where}: {how} times {loser}'s speed{rest}"


def _span(span: list[Ratio]) -> str:
    first, last = format_size(span[0].nbytes), format_size(span[-1].nbytes)
    return f"{span[0].verdict} at {first}" + (f" to {last}" if last != first else "")


def size_text(crossing: Crossing) -> str:
    """Return "2.1 MiB (95 %: 1.6 MiB to 2.7 MiB)", or the sizes it lies between where no interval is known."""
    shown = format_size(round(crossing.nbytes))
    if crossing.low is None or crossing.high is None:
        left, right = (format_size(size) for size in crossing.between)
        return f"about {shown} (between {left} and {right}; single figures, no interval)"
    return f"{shown} (95 %: {format_size(round(crossing.low))} to {format_size(round(crossing.high))})"
