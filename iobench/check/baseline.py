"""A run against an earlier one of the same machine: what is slower than its interval allows."""

from __future__ import annotations

import math

from iobench.check.expected import Standing
from iobench.record import Record
from iobench.units import format_seconds

LEAST = 0.03  # a difference below this is called the same, however narrow the intervals are
UNKNOWN_INTERVAL = 0.10  # what is called slower where one side has no interval (a mean without samples)


def hold_against(record: Record, before: Record | None) -> Standing | None:
    """Return whether the record is slower ("below"), the same or faster than ``before``; None where they don't join.

    Slower: the ratio of the medians lies outside what both intervals together allow (the half widths of the
    logarithms add up like independent errors), and differs by 3 % at least.
    """
    if before is None or not record.used or not before.used or record.mode != before.mode:
        return None
    per_byte = before.moved / record.moved if record.moved and before.moved else 1.0
    change = math.log(record.median / before.median * per_byte)
    halves = [_half(one) for one in (record, before)]
    if None in halves:
        margin, how = math.log1p(UNKNOWN_INTERVAL), "no interval is known, 10 % is allowed"
    else:
        margin = max(math.hypot(*(half for half in halves if half is not None)), math.log1p(LEAST))
        how = f"+-{math.expm1(margin) * 100:.2g} % is within the intervals"
    word = "below" if change > margin else "above" if change < -margin else "within"
    return Standing(word, _sentence(word, change, before, how))


def _half(record: Record) -> float | None:
    time = record.time
    if time.n < 2 or not time.known:
        return None
    return max(math.log(time.high / time.median), math.log(time.median / time.low))


def _sentence(word: str, change: float, before: Record, how: str) -> str:
    share = math.expm1(abs(change)) * 100
    text = {"below": f"{share:.2g} % slower than", "above": f"{share:.2g} % faster than", "within": "as"}[word]
    return f"{text} the baseline's {format_seconds(before.median)} ({how})"
