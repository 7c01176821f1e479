"""A plain CSV table of everything that was measured, for spreadsheets and scripts.

One row per measured size of each series. Times in microseconds, rates in GB/s (1e9 bytes/s), sizes in bytes;
busbw as nccl-tests defines it (doc/PERFORMANCE.md), empty for what is no collective; algbw is empty where the size
is not what is moved in that time (the working set of a pointer chase, the load beside it, in bytes/s). An interval is
empty where none can be known.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator
from typing import Any

from iobench import busbytes
from iobench.export.format import Format, Options, Source
from iobench.fit import kinds
from iobench.fit.fitted import Fitted
from iobench.fit.model import Measured
from iobench.units import GB, US

COLUMNS = ("probe", "mode", "series", "nbytes", "time_us", "low_us", "high_us", "algbw_GBps", "busbw_GBps")


def write(source: Source, options: Options) -> str:
    """Return the table; with an op only the series of that op, and UserError where it was not measured."""
    wanted = [one for one in source.models.series if not options.op or one.axes.get("op") == options.op]
    if options.op and not wanted:
        source.need(options.op)
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(COLUMNS)
    for one in wanted:
        table.writerows(_rows(one))
    return text.getvalue()


def _rows(one: Fitted) -> Iterator[list[Any]]:
    for point in one.model.measured if one.model else ():
        known = point.high > point.low
        span = [_digits(point.low / US), _digits(point.high / US)] if known else ["", ""]
        rate = point.nbytes / point.seconds / GB if kinds.get(one.kind).axis == "bytes" else math.nan
        yield [
            *map(_text, (one.probe, one.mode, one.series)), point.nbytes, _digits(point.seconds / US), *span,
            "" if math.isnan(rate) else _digits(rate), _busbw(one, point),
        ]  # fmt: skip


def _busbw(one: Fitted, point: Measured) -> str:
    op, ranks = one.axes.get("op"), one.axes.get("ranks")
    if op not in busbytes.OPS or not isinstance(ranks, int):
        return ""
    return _digits(busbytes.factor(str(op), ranks) * point.nbytes / point.seconds / GB)


def _text(value: str) -> str:
    """Return text that no spreadsheet takes for a formula: a log may have given it."""
    return f"'{value}" if value[:1] in tuple("=+-@\t\r") else value


def _digits(value: float) -> str:
    return f"{value:.6g}"


FORMAT = Format("table", "spreadsheets and scripts (CSV)", write)
