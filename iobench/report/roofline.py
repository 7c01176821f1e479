"""Where operations that count their arithmetic stand on the roofline that the same run measured.

S. Williams, A. Waterman, D. Patterson, "Roofline", CACM 52(4), 2009: attainable FLOP/s = min(peak FLOP/s,
FLOP per byte * memory bandwidth). Both roofs are measured ones: the memory roof is the highest usable rate of
the run over the same link of the topology by points that count no arithmetic, the arithmetic roof the highest
FLOP/s in the same format. A point counts its arithmetic with ``flops`` (per operation) in its evidence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from iobench.check import Verdict
from iobench.record import Record, Run
from iobench.report.matrix import MatrixView
from iobench.report.names import percent, point_names
from iobench.units import format_flops, format_rate

COLUMNS = ("point", "FLOP/s", "FLOP per byte", "rate of bytes", "bound by", "of the roof")
_FORMAT_AXIS = "dtype"


def rooflines_of(run: Run, probe: str, verdicts: Mapping[str, Verdict]) -> list[MatrixView]:
    """Return one table per memory whose points count arithmetic; none where no point does."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in run.of(probe):
        link = _link(record)
        if link and _flops(record) and record.moved > 0 and verdicts[record.key].usable:
            groups.setdefault(link, []).append(record)
    return [_view(run, link, records, memory_roof(run, link, verdicts)) for link, records in groups.items()]


def memory_roof(run: Run, link: tuple[str, str], verdicts: Mapping[str, Verdict]) -> float | None:
    """Return the highest rate (bytes/s) that points without arithmetic measured over ``link``; None without one."""
    return max((rate for record in run for rate in _streamed(record, link, verdicts[record.key])), default=None)


def _streamed(record: Record, link: tuple[str, str], verdict: Verdict) -> Iterable[float]:
    """Yield the rate of the bytes that surely crossed the link: what a cache may have served is left out."""
    if verdict.status == "ok" and record.quantity == "bandwidth" and not _flops(record) and _link(record) == link:
        crossed = record.first.legs[0].moved
        yield (record.moved if crossed is None else crossed) / record.time.median


def _view(run: Run, link: tuple[str, str], records: list[Record], memory: float | None) -> MatrixView:
    best: dict[Any, float] = {}
    for record in records:
        kind = record.point.get(_FORMAT_AXIS)
        best[kind] = max(best.get(kind, 0.0), _flops(record) / record.time.median)
    names = point_names(run, records)
    rows = [
        _row(name, record, memory, best[record.point.get(_FORMAT_AXIS)])
        for name, record in zip(names, records, strict=True)
    ]
    roof = f"memory roof {format_rate(memory)}" if memory else "the run measured no memory roof"
    return MatrixView(f"Roofline, {link[0]} to {link[1]}: {roof}", COLUMNS, tuple(rows))


def _row(name: str, record: Record, memory: float | None, arithmetic: float) -> tuple[str, ...]:
    seconds, flops = record.time.median, _flops(record)
    intensity = flops / record.moved
    cells = (name, format_flops(flops / seconds), f"{intensity:.3g}", format_rate(record.moved / seconds))
    if memory is None:
        return (*cells, "-", "-")
    roof = min(intensity * memory, arithmetic)
    return (*cells, "memory" if intensity * memory < arithmetic else "arithmetic", percent(flops / seconds / roof))


def _flops(record: Record) -> float:
    flops = record.first.evidence.get("flops") if record.used else None
    return float(flops) if isinstance(flops, (int, float)) and not isinstance(flops, bool) and flops > 0 else 0.0


def _link(record: Record) -> tuple[str, str] | None:
    """Return the ends of the record's only leg, in either order the same; None where it has several."""
    legs = record.first.legs if record.used else []
    if len(legs) != 1:
        return None
    a, b = sorted((legs[0].src, legs[0].dst), reverse=True)
    return a, b
