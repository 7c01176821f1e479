"""From a run's collectives to series and scale models: points that differ in size, ranks and nodes only."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from iobench import busbytes, check
from iobench.errors import UserError
from iobench.fit import kinds
from iobench.fit.fitted import Fitted
from iobench.fit.fitter import fit
from iobench.fit.model import FitPoint, Measured
from iobench.fit.scale import nvls
from iobench.fit.scale.curve import Curve
from iobench.fit.scale.model import ScaleModel
from iobench.record import Record, Run, dumps

_COUNTS = ("ranks", "nodes", "nbytes")
_CHOSEN = ("algo", "proto")  # what the library took by itself, unless one size has several


@dataclass
class Group:
    """The records of one collective whose axes are the same but for size, ranks and nodes."""

    probe: str
    mode: str
    axes: dict[str, Any]
    by_count: dict[tuple[int, int], list[Record]] = field(default_factory=dict)


def collectives(run: Run) -> list[Group]:
    """Return the groups of ``run`` in the order first seen: sound records only, algorithms told apart where forced."""
    verdicts = check.judge(run)
    records = [record for record in run if is_collective(record.point) and verdicts[record.key].usable]
    loose = _groups(records, (*_COUNTS, *_CHOSEN))
    return [tight for group in loose for tight in ([group] if _unique(group) else _groups(_all(group), _COUNTS))]


def is_collective(point: Mapping[str, Any]) -> bool:
    """Tell whether a point is a collective's with a size and a number of ranks."""
    counts = all(isinstance(point.get(name), int) and point[name] > 0 for name in ("ranks", "nbytes"))
    return counts and point.get("op") in busbytes.OPS


def series(groups: Iterable[Group], seed: int = 0) -> list[Fitted]:
    """Return one model over size for each number of ranks and nodes, or the reason why there is none."""
    return [_fitted(group, counts, records, seed) for group in groups for counts, records in group.by_count.items()]


def scale_models(run: Run, groups: Iterable[Group]) -> list[ScaleModel]:
    """Return one model in ranks and nodes per group; with one count it knows that count only."""
    topology = check.topology_of(run)
    machine = " ".join([run.machine, str(run.header.machine.get("title", "")), *_products(topology)])
    disabled = run.header.environment.get("NCCL_NVLS_ENABLE") == "0"
    out = []
    for group in groups:
        curves = tuple(_curve(counts, records) for counts, records in sorted(group.by_count.items()))
        switch = nvls.NO if disabled else nvls.supported(machine, group.axes, topology)
        out.append(ScaleModel(group.axes, group.mode, curves, switch))
    return out


def _groups(records: Iterable[Record], without: tuple[str, ...]) -> list[Group]:
    found: dict[str, Group] = {}
    for record in records:
        axes = {name: value for name, value in record.point.items() if name not in without}
        key = dumps([record.probe, record.mode, sorted(axes.items())])
        group = found.setdefault(key, Group(record.probe, record.mode, axes))
        counts = (record.point["ranks"], _nodes(record.point))
        group.by_count.setdefault(counts, []).append(record)
    return list(found.values())


def _unique(group: Group) -> bool:
    return all(len({r.point["nbytes"] for r in records}) == len(records) for records in group.by_count.values())


def _all(group: Group) -> list[Record]:
    return [record for records in group.by_count.values() for record in records]


def _nodes(point: Mapping[str, Any]) -> int:
    nodes = point.get("nodes", 1)
    return nodes if isinstance(nodes, int) and nodes > 0 else 1


def _curve(counts: tuple[int, int], records: Iterable[Record]) -> Curve:
    points = []
    for record in records:
        time = record.time
        points.append(Measured(record.point["nbytes"], time.median, time.low, time.high))
    return Curve.of(*counts, points)


def _fitted(group: Group, counts: tuple[int, int], records: list[Record], seed: int) -> Fitted:
    axes = {**group.axes, "ranks": counts[0], "nodes": counts[1]}
    label = " ".join(f"{name}={value}" for name, value in axes.items())
    kind = _kind(len(records))
    points = [FitPoint(r.point["nbytes"], tuple(r.groups), aggregate=r.first.aggregate) for r in records]
    number = zlib.crc32(f"{seed} {group.probe} {group.mode} {label}".encode())
    try:
        model = fit(points, kind, number)
    except UserError as error:
        return Fitted(label, group.probe, group.mode, kind, axes, None, str(error))
    return Fitted(label, group.probe, group.mode, kind, axes, model)


def _kind(sizes: int) -> str:
    """Return the kind that follows switches of protocol where there are sizes enough for it."""
    piecewise = kinds.known().get("piecewise")
    return piecewise.name if piecewise and sizes >= piecewise.least else "hockney"


def _products(topology: Any) -> list[str]:
    return sorted({str(gpu.get("product", gpu.get("name", ""))) for gpu in topology.of("gpu")}) if topology else []
