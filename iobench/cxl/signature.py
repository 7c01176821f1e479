"""The sign of a full-duplex link: mixes of reads and writes move more than reads alone, beside local memory. Pure.

A DRAM bus turns round between reads and writes, so its mixes move less; a CXL link carries both at once. A single core
may store past the caches faster than it reads, wherever the memory is: hence local memory by as many threads beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from iobench.check import judge
from iobench.record import Record, Run

_MIXES = {"triad": "triad (2 reads to a write)", "copy": "copy (1 to 1)"}
_SAME = ("threads", "pages", "nbytes", "to")
Ratio = tuple[float, float, float]  # of medians, least and most by both intervals


def sentences(run: Run) -> Iterator[tuple[str, str]]:
    """Yield (which memory, one sentence) for every far memory whose reads and mixes were measured alike."""
    verdicts = judge(run)
    used = [record for record in run.of("cxl") if record.used and verdicts[record.key].usable]
    groups: dict[tuple[Any, ...], dict[str, Record]] = {}
    for record in used:
        groups.setdefault(_memory(record) + _alike(record), {})[str(record.point.get("kernel"))] = record
    local = {key[3:]: best for key, found in groups.items() if key[0] == "local" and (best := _best(found))}
    for key, found in groups.items():
        if key[0] not in ("local", "interleave") and (best := _best(found)):
            yield f"cxl {key[0]}, {key[2] or f'node {key[1]}'}", _text(best, local.get(key[3:]))


def _memory(record: Record) -> tuple[Any, Any, Any]:
    return record.point.get("form"), record.point.get("node"), record.point.get("device")


def _alike(record: Record) -> tuple[Any, ...]:
    return tuple(record.point.get(axis) for axis in _SAME)


def _best(found: dict[str, Record]) -> tuple[str, Ratio] | None:
    """Return the mix that moves most, and how much more than reads; None where one of both was not measured."""
    read, mixes = found.get("read"), [mix for mix in _MIXES if mix in found]
    if read is None or not mixes:
        return None
    mix = max(mixes, key=lambda name: found[name].bytes_per_s)
    low, high = found[mix].bytes_per_s_interval
    least, most = read.bytes_per_s_interval
    return mix, (found[mix].bytes_per_s / read.bytes_per_s, low / most, high / least)


def _text(best: tuple[str, Ratio], near: tuple[str, Ratio] | None) -> str:
    mix, (ratio, low, high) = best
    said = f"{_MIXES[mix]} moves {ratio:.2f} times ({low:.2f} to {high:.2f}) what reads alone do"
    if near is not None:
        said += f", {near[1][0]:.2f} times in local memory"
    if low > max(1.0, near[1][2] if near else 1.0):
        return f"{said}: the sign of a full-duplex link, as CXL's is"
    if high < 1.0:
        return f"{said}: no sign of a full-duplex link; a DRAM bus, which turns round between both, does so"
    return f"{said}: that tells nothing about the link"
