"""What a claim is held against: the rate of its link, the least time of its operation, and what was measured."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from iobench import busbytes, published
from iobench.check.classes import Machine, machine_named, machine_of
from iobench.claims.table import Claim
from iobench.paths import data_dir
from iobench.topology import limits
from iobench.units import GB, NS, US

FILE = "claims/bounds.toml"


@dataclass(frozen=True)
class Rate:
    """The highest rate that a claim's bytes can have; ``share``: bytes that count (bus bytes) per byte claimed."""

    bytes_per_s: float
    share: float
    words: str
    source: str


@dataclass(frozen=True)
class Measured:
    """What others measured of the same thing: seconds or bytes/s, low and high."""

    low: float
    high: float
    is_rate: bool
    words: str
    source: str


@functools.cache
def table() -> dict[str, Any]:
    """Return bounds.toml as plain data."""
    with (data_dir("topologies") / FILE).open("rb") as file:
        return tomllib.load(file)


def rate(claim: Claim) -> Rate | None:
    """Return the highest rate physics allows, None where the claim names no link and no known machine."""
    if claim.op in busbytes.OPS:
        return _collective(claim)
    if claim.link is None:
        return None
    kind, generation, width = claim.link
    limit = limits.pcie(generation, width) if kind == "pcie" else limits.nvlink(generation, width)
    name = f"PCIe {generation}.0 x{width}" if kind == "pcie" else f"{width} NVLink {generation} links"
    return Rate(limit.bytes_per_s, 1.0, f"{name}, raw, per direction", limit.source) if limit else None


def floor(claim: Claim) -> tuple[float, str, str] | None:
    """Return the least seconds beside moving the bytes, in words, and the source."""
    for row in table()["floor"]:
        if row["op"] == claim.op and row["transport"] == claim.transport:
            return row["nanoseconds"] * NS, row["words"], row["source"]
    return None


def measured(claim: Claim) -> list[Measured]:
    """Return what was measured of such an operation: rows of bounds.toml and published curves, the nearest first."""
    rows = [_row(row) for row in table()["measured"] if _about(row, claim)]
    curves = list(_curves(claim)) if claim.op in busbytes.OPS and claim.nbytes else []
    return [*sorted(curves, key=lambda found: found.low), *rows]


def _collective(claim: Claim) -> Rate | None:
    machine = machine_named(claim.machine)
    if machine is None or claim.ranks < 2:
        return None
    found = machine.cap(claim.op, claim.ranks, max(claim.nodes, 1), claim.transport, claim.algo)
    if found is None:
        return None
    share = busbytes.factor(claim.op, claim.ranks)
    return Rate(found[0].bytes_per_s, share, f"{found[0].where}{machine.of}, per GPU and direction", found[1])


def _about(row: dict[str, Any], claim: Claim) -> bool:
    link = f"{claim.link[0]}{claim.link[1]}x{claim.link[2]}" if claim.link else ""
    least, most = row.get("nbytes", (0, 2**63))
    sized = "nbytes" not in row or (claim.nbytes is not None and least <= claim.nbytes <= most)
    return (
        row["op"] == claim.op and row.get("link", link) == link
        and row.get("transport", claim.transport) == claim.transport and sized
    )  # fmt: skip


def _row(row: dict[str, Any]) -> Measured:
    for key, scale in (("gigabytes_per_s", GB), ("microseconds", US), ("nanoseconds", NS)):
        if key in row:
            low, high = row[key]
            return Measured(low * scale, high * scale, scale == GB, row["words"], row["source"])
    raise ValueError(f"{FILE}: a row without a figure")


def _curves(claim: Claim) -> Iterator[Measured]:
    """Yield the time that each published curve of the same class shows at the claim's size, of no more nodes."""
    wanted = machine_named(claim.machine)
    for name, machine, ranks, nodes, transport, sizes, seconds in _published(claim.op):
        same = wanted is not None and machine.id == wanted.id and transport == claim.transport
        if not same or ranks > claim.ranks or (nodes > 1) != (claim.nodes > 1) or nodes > claim.nodes:
            continue
        if (claim.nbytes or 0) > 2 * sizes[-1] or (ranks * 2 < claim.ranks and nodes == 1):
            continue
        at = float(np.exp(np.interp(np.log(claim.nbytes or 1), np.log(sizes), np.log(seconds))))
        yield Measured(at, at, False, f"{ranks} ranks, {nodes} node{'s' if nodes > 1 else ''}", f"published:{name}")


@functools.cache
def _published(op: str) -> list[tuple[str, Machine, int, int, str, list[int], list[float]]]:
    found = []
    for name in published.names():
        run = published.load(name)
        machine = machine_of(run, None)
        curves: dict[tuple[int, int, str], dict[int, float]] = {}
        for record in run:
            point = record.point
            if point.get("op") == op and isinstance(point.get("ranks"), int) and machine:
                key = (point["ranks"], int(point.get("nodes") or 1), str(point.get("transport", "")))
                times = curves.setdefault(key, {})
                times[record.nbytes] = min(record.median, times.get(record.nbytes, record.median))
        for (ranks, nodes, transport), times in curves.items():
            sizes = sorted(times)
            found.append((name, machine, ranks, nodes, transport, sizes, [times[size] for size in sizes]))
    return found  # type: ignore[return-value]
