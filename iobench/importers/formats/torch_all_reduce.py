"""Plain tables of all-reduce loops in torch or cupy: size, eager and CUDA-graph times as p50 / p95 in us.

Two shapes: ``8 eager p50 71.81 p95 99.84 host 61.64 graph p50 8.08 p95 9.28 us busbw 0.0 GB/s`` below titles
``### torch NCCL_P2P_DISABLE=1``, and ``cupy 8 graph p50 5.89 min 5.80 eager-pipelined 13.04 us busbw 0.0 ok True``.
"""

from __future__ import annotations

import re
from typing import Any

from iobench.importers.collective import Collector, Sweep, Value, ranks_from
from iobench.importers.imported import Imported
from iobench.importers.log import Log
from iobench.importers.nccltable import half_unit, number
from iobench.units import GB, US

TITLE = "an all-reduce loop in Python"
STATE = False

_F = r"([\d.]+)"
_TORCH = re.compile(
    rf"^\s*(\d{{1,19}}) eager p50 +{_F} p95 +{_F} host +{_F} graph p50 +{_F} p95 +{_F} us +busbw +{_F} GB/s\s*$"
)
_CUPY = re.compile(
    rf"^(\w{{1,20}}) +(\d{{1,19}}) graph p50 +{_F} min +{_F} eager-pipelined +{_F} us busbw +{_F} ok (True|False)"
)
_ROW = re.compile(r"(?:eager|graph) p50 +[\d.]+")
_TITLE = re.compile(r"^### (\w{1,20})((?: [A-Z_0-9]{1,60}=[\w^.,-]{1,60})*) *$")
_HALF_STEP = 0.05  # of the printed busbw, one decimal
_LEAST_BUSBW = 5.0


def recognise(head: str) -> float:
    """Score by the rows' words."""
    if "p50" not in head:
        return 0.0
    return 0.9 if any(_TORCH.match(line) or _CUPY.match(line) for line in head.splitlines()) else 0.0


def read(log: Log) -> Imported:
    """Read every row; each gives a point per mode."""
    imported, collector = Imported(), Collector(("line", "figure as printed, in us"))
    found = list(_figures(log, imported))
    ranks = _ranks(found)
    if ranks is None and found:
        imported.problem("the log names no number of ranks and its busbw does not show it: no rate is formed")
    for run, engine, settings, mode, aggregate, verified, value in found:
        point: dict[str, Any] = {"op": "all_reduce", "engine": engine, "ranks": ranks, "dtype": _dtype(log)}
        point = {name: item for name, item in point.items() if item}
        sweep = Sweep(
            run,
            "all_reduce",
            point,
            mode,
            aggregate,
            {"settings": settings or "none"},
            {"settings": settings} if settings else {},
        )
        value.verified = verified
        if verified is False:
            value.reason = f"the loop found wrong data (ok False, line {value.number})"
        collector.add(sweep, collector.identify(sweep), value)
    imported.lines = collector.finish()
    return imported


_Figure = tuple[int, str, str, str, str, "bool | None", Value]


def _figures(log: Log, imported: Imported) -> list[_Figure]:
    run, engine, settings = 0, "torch", ""
    found: list[_Figure] = []
    rows_since = 1
    for count, line in enumerate(log.lines, start=1):
        if title := _TITLE.match(line):
            if not rows_since:
                imported.incomplete = "a title without rows: its measurement is missing"
            run, engine, settings, rows_since = run + 1, title[1], title[2].strip(), 0
        elif match := _TORCH.match(line):
            imported.rows, rows_since = imported.rows + 1, rows_since + 1
            size = int(match[1])
            for mode, text in (("eager", match[2]), ("graph", match[5])):
                found.append(
                    _one(
                        run,
                        engine,
                        settings,
                        mode,
                        "median of the loop's iterations",
                        None,
                        count,
                        size,
                        text,
                        match[7] if mode == "graph" else "",
                    )
                )
        elif match := _CUPY.match(line):
            imported.rows += 1
            size, good = int(match[2]), match[7] == "True"
            found.append(_one(run, "nccl", "", "graph", "median of the replays", good, count, size, match[3], match[6]))
            found.append(_one(run, "nccl", "", "pipelined", "mean of the calls", good, count, size, match[5], ""))
        elif _ROW.search(line) and not line.startswith("#"):
            imported.skip(count, line, "a row of another shape")
    if not rows_since:
        imported.incomplete = "the log ends with a title without rows: its measurement is missing"
    return found


def _one(
    run: int, engine: str, settings: str, mode: str, aggregate: str, good: bool | None, count: int, size: int,
    text: str, busbw: str,
) -> _Figure:  # fmt: skip
    value = Value(count, size, number(text) * US, f"{text} {busbw}".strip(), good)
    return run, engine, settings, mode, aggregate, good, value


def _ranks(found: list[_Figure]) -> int | None:
    """Return the ranks that the rates printed beside the graph times show; all rows must agree."""
    shown: set[int | None] = set()
    for *_, value in found:
        time, _, busbw = value.printed.partition(" ")
        if busbw and number(busbw) >= _LEAST_BUSBW and value.seconds > 0 and value.nbytes:
            algbw = value.nbytes / value.seconds / GB
            ratio = number(busbw) / algbw
            doubt = (_HALF_STEP / number(busbw) + half_unit(time) / number(time)) * ratio
            if doubt < 0.02:
                least, largest = ranks_from("all_reduce", ratio, doubt)
                shown.add(least if least == largest else None)
    return shown.pop() if len(shown) == 1 else None


def _dtype(log: Log) -> str:
    return "float32" if re.search(r"\bfp32\b|\bfloat32\b", log.text[:2000]) else ""
