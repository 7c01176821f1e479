"""Fits every series of a run that its probes declare.

A probe's file names its models: ``MODELS = ({"kind": "piecewise", "where": {"op": "read"}},)``. The run's
header keeps them, so that a file can be fitted where the probe is not installed. ``where`` keeps points
with these values (a list: any of them), ``size`` names the axis that is the size if it is not nbytes, or
"evidence.NAME" where it was measured beside the time (the bandwidth of a loaded latency). ``extras`` names the
axis of each further regressor of the kind: {"kind": "weights", "extras": {"files": "shards"}}; ``over`` lists the
axes that vary within a series without being a regressor (what the load was made by); "mode" among them joins modes
(a ping-pong blocks, a stream of messages does not, and LogGP takes both).

What a record's evidence tells goes into the fit: ``evidence["tuning"]``, NCCL's choice of algorithm and protocol
as its tuning log has it, is a list of {"nbytes": 2097152, "algo": "NVLS", "proto": "SIMPLE"} (or one such entry
for the record's own size). ``evidence["levels"]`` is where the levels of a memory lie: [name, least, most] of the
working sets inside each, most 0 where it has no end; without it those of the CPUs' caches count.
"""

from __future__ import annotations

import math
import operator
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from iobench import check
from iobench.errors import UserError
from iobench.fit import bootstrap, kinds
from iobench.fit.alike import Plain, fit_alike, suits
from iobench.fit.alike import plain as plain_series
from iobench.fit.fitter import fit
from iobench.fit.hops import hops_seconds
from iobench.fit.model import FitPoint, Model
from iobench.record import Record, Run, dumps, no_collections
from iobench.topology.graph import Node, Topology

SIZE_AXIS = "nbytes"
_EVIDENCE = "evidence."
_LEAST_DRAWS, _MANY = 40, 20_000  # records from which on there are fewer draws
_last: tuple[Run, int, list[Record], list[Fitted]] | None = None
_DATA_CACHES = ("data", "unified")


@dataclass(frozen=True)
class Fitted:
    """One series of a run: its model, or the reason why there is none.

    ``series`` is a label ("kernel=chase threads=1"), ``axes`` the fixed axes behind it, ``mode`` how the
    times were taken (models never mix modes). ``notes`` say which records the model rests on.
    """

    series: str
    probe: str
    mode: str
    kind: str
    axes: dict[str, Any]
    model: Model | None
    reason: str = ""
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Declared:
    """One entry of a probe's MODELS."""

    kind: str
    where: Mapping[str, Any]
    size: str
    extras: Mapping[str, str] = field(default_factory=dict)
    over: tuple[str, ...] = ()

    @cached_property
    def beside(self) -> bool:
        """Whether the size was measured beside the time."""
        return self.size.startswith(_EVIDENCE)

    def takes(self, record: Record) -> bool:
        if self.x(record) is None or (self.extras and any(axis not in record.point for axis in self.extras.values())):
            return False
        return not self.where or all(_matches(record.point.get(name), wanted) for name, wanted in self.where.items())

    def x(self, record: Record) -> int | None:
        """Return the record's size (or what stands for it), None where it has none."""
        beside = self.beside
        size = record.first.evidence.get(self.size[len(_EVIDENCE) :]) if beside else record.point.get(self.size)
        if type(size) is int and size >= 0:
            return size
        return round(size) if beside and isinstance(size, float) and 0 <= size < math.inf else None

    def point(self, record: Record) -> FitPoint:
        extra = {name: record.point[axis] for name, axis in self.extras.items()}
        return FitPoint(self.x(record) or 0, tuple(record.groups), extra, record.aggregate)


def fit_run(run: Run, seed: int = 0) -> list[Fitted]:
    """Fit every declared series of ``run``; a series that cannot be fitted says why.

    Impossible, wrong, failed and skipped records are never used; suspect ones only where the others are
    too few for the model, which is then said. Raises UserError for a header that is damaged.
    The last run's models are kept: a report asks for them more than once.
    """
    global _last
    if _last is None or _last[0] is not run or _last[1] != seed or not _same(_last[2], run.records):
        with no_collections():
            _last = run, seed, list(run.records), _fit_all(run, seed)
    return list(_last[3])


def _same(before: list[Record], now: list[Record]) -> bool:
    return len(before) == len(now) and all(map(operator.is_, before, now))


def _fit_all(run: Run, seed: int) -> list[Fitted]:
    verdicts = check.judge(run)
    topology = check.topology_of(run)
    # a fleet's million of sizes gets fewer draws: they give a standard error, which 40 know to 11 %
    draws = max(_LEAST_DRAWS, min(bootstrap.DRAWS, bootstrap.DRAWS * _MANY // max(len(run.records), 1)))
    out = []
    for probe in run.header.probes:
        records = run.of(probe)
        for declared in _declared(run, probe):
            asked = [
                _ask(probe, mode, dict(axes), declared, series, verdicts, topology, seed)
                for (mode, axes), series in _series(records, declared).items()
            ]
            out += _answered(asked, declared, draws)
    return out


@dataclass(frozen=True)
class _Asked:
    """A series to fit: what is said of it, the records to use, the seed of its draws."""

    series: str
    probe: str
    mode: str
    axes: dict[str, Any]
    records: list[Record]
    notes: list[str]
    number: int
    options: dict[str, Any]

    def fitted(self, kind: str, model: Model | None, reason: str = "") -> Fitted:
        return Fitted(self.series, self.probe, self.mode, kind, self.axes, model, reason, self.notes)


def _answered(asked: Sequence[_Asked], declared: _Declared, draws: int) -> list[Fitted]:
    """Fit each series: those of one shape at once, the others one by one."""
    alike: dict[Any, list[int]] = {}
    found: list[Fitted | None] = [None] * len(asked)
    plain = [_plain(one, declared) for one in asked]
    for place, series in enumerate(plain):
        if series is None:
            found[place] = _fit_one(asked[place], declared, draws)
        else:
            alike.setdefault(series.shape, []).append(place)
    for places in alike.values():
        models = fit_alike(declared.kind, [series for place in places if (series := plain[place])], draws)
        for place, model in zip(places, models, strict=True):
            found[place] = asked[place].fitted(declared.kind, model)
    return [one for one in found if one is not None]


def _plain(asked: _Asked, declared: _Declared) -> Plain | None:
    """Return the series if it can be fitted together with others."""
    if asked.options or not suits(declared.kind, len(asked.records)):
        return None
    sizes = [declared.x(record) or 0 for record in asked.records]
    said = [record.aggregate for record in asked.records]
    return plain_series(sizes, [record.rows for record in asked.records], asked.number, said)


def _fit_one(asked: _Asked, declared: _Declared, draws: int) -> Fitted:
    points = [declared.point(record) for record in asked.records]
    try:
        model = fit(points, declared.kind, asked.number, draws, **asked.options)
    except UserError as error:
        return asked.fitted(declared.kind, None, str(error))
    return asked.fitted(declared.kind, model)


def cache_edges(topology: Topology | None, cpus: Iterable[int] = ()) -> list[tuple[str, int]]:
    """Return (name, nbytes) of the data caches by rising size, of ``cpus`` where the graph tells them apart."""
    wanted = set(cpus)
    caches = [node for node in (topology.of("cache") if topology else []) if _holds_data(node)]
    near = [node for node in caches if wanted.intersection(_listed(node.get("cpus")))]
    sizes: dict[str, int] = {}
    for node in near or caches:
        name = f"L{node.get('level')}" + ("d" if str(node.get("type")).lower() == "data" else "")
        # where cores differ (fast and slow ones) the smaller cache bounds what is surely inside
        sizes[name] = min(sizes.get(name, node.get("nbytes")), node.get("nbytes"))
    return sorted(sizes.items(), key=lambda edge: edge[1])


def _ask(
    probe: str,
    mode: str,
    axes: dict[str, Any],
    declared: _Declared,
    records: list[Record],
    verdicts: Mapping[str, check.Verdict],
    topology: Topology | None,
    seed: int,
) -> _Asked:
    label = " ".join(f"{name}={value}" for name, value in axes.items()) or "all points"
    takes = kinds.get(declared.kind).options
    options = _levels(records, topology) if "edges" in takes else {}
    chosen, notes = _choose(records, verdicts, declared, options)
    if "tuning" in takes:
        options |= _physics(chosen, axes, verdicts)
    # each series has its own draws, the same on every run
    number = zlib.crc32(f"{seed} {probe} {mode} {label}".encode())
    return _Asked(label, probe, mode, axes, chosen, notes, number, options)


def _levels(records: Iterable[Record], topology: Topology | None) -> dict[str, Any]:
    """Return where the levels of the memory lie: as the probe itself says, else by the caches of the CPUs."""
    records = list(records)
    told = next((found for record in records for line in record.used if (found := line.evidence.get("levels"))), None)
    return {"windows": told} if told else {"edges": cache_edges(topology, _cpus(records))}


def _choose(
    records: list[Record], verdicts: Mapping[str, check.Verdict], declared: _Declared, options: Mapping[str, Any]
) -> tuple[list[Record], list[str]]:
    """Return the records to use and sentences on those that were not, or not gladly."""
    status = {record.key: verdicts[record.key].status for record in records}
    if all(word == "ok" for word in status.values()):
        return records, []
    notes = []
    for bad in ("impossible", "emulated", "wrong", "failed"):
        count = sum(status[record.key] == bad for record in records)
        if count:
            notes.append(f"{count} of {len(records)} sizes left out: {bad}")
    usable = [record for record in records if verdicts[record.key].usable]
    chosen = _prefer_sound(usable, status, declared, options)
    if len(chosen) < len(usable):
        notes.append(f"{len(usable) - len(chosen)} of {len(records)} sizes left out: suspect")
    unproven = sum(status[record.key] == "unproven" for record in chosen)
    if unproven:
        notes.append(f"the path of {unproven} of {len(chosen)} sizes is unproven")
    suspect = [record for record in chosen if status[record.key] == "suspect"]
    if suspect:
        why = suspect[0].reason.split(";")[0].split(":")[0] or "the machine was disturbed"
        notes.append(
            f"{len(suspect)} of {len(chosen)} sizes are suspect ({why}), used because there are too few others: "
            "run again on a quiet machine"
        )
    return chosen, notes


def _prefer_sound(
    usable: list[Record], status: Mapping[str, str], declared: _Declared, options: Mapping[str, Any]
) -> list[Record]:
    """Leave suspect records out of each part of the model that has enough others."""
    kind = kinds.get(declared.kind)
    part = {record.key: kind.region(declared.x(record) or 0, options) for record in usable}
    sound = Counter(part[record.key] for record in usable if status[record.key] != "suspect")
    if sound.total() < kind.least:
        return usable
    return [
        record for record in usable if status[record.key] != "suspect" or sound[part[record.key]] < kind.region_least
    ]


def _series(
    records: Iterable[Record], declared: _Declared
) -> dict[tuple[str, tuple[tuple[str, Any], ...]], list[Record]]:
    """Return (mode, fixed axes) -> the records of one series, in the order first seen."""
    out: dict[Any, list[Record]] = {}
    varies = {declared.size, *declared.over, *declared.extras.values()}
    axes: dict[tuple[str, ...], tuple[str, ...]] = {}
    for record in records:
        if declared.takes(record):
            shape = tuple(record.point)
            if shape not in axes:
                axes[shape] = tuple(name for name in shape if name not in varies)
            names = axes[shape]
            values = tuple([_fixed(record.point[name]) for name in names])
            mode = "" if "mode" in varies else record.mode
            out.setdefault((mode, names, values), []).append(record)
    return {(mode, tuple(zip(names, values, strict=True))): found for (mode, names, values), found in out.items()}


def _declared(run: Run, probe: str) -> Iterator[_Declared]:
    facts = run.header.probes[probe]
    models = facts.get("models") or [] if isinstance(facts, Mapping) else None
    if not isinstance(models, (list, tuple)):
        raise UserError(f"{run.path}: the header's entry of probe {probe} is damaged; run the probe again")
    for entry in models:
        where = entry.get("where") or {} if isinstance(entry, Mapping) else None
        if not isinstance(where, Mapping) or not isinstance(entry.get("kind"), str):
            raise UserError(f"{run.path}: a model of probe {probe} is no {{'kind': ..., 'where': ...}}; see its MODELS")
        extras = entry.get("extras") or {}
        over = tuple(str(axis) for axis in entry.get("over") or ())
        wanted = kinds.get(entry["kind"]).extras
        if not isinstance(extras, Mapping) or sorted(extras) != sorted(wanted):
            raise UserError(
                f"{run.path}: a {entry['kind']} model of probe {probe} needs the axes of "
                f"{', '.join(wanted) or 'nothing'} in its extras; see its MODELS"
            )
        yield _Declared(entry["kind"], where, str(entry.get("size") or SIZE_AXIS), extras, over)


def _physics(records: list[Record], axes: Mapping[str, Any], verdicts: Mapping[str, check.Verdict]) -> dict[str, Any]:
    """Return what is known of the way: the tuning log's choices, the least time of the hops, the limit of the rate."""
    options: dict[str, Any] = {"tuning": [entry for record in records for entry in _tuning(record)]}
    options["hops_seconds"] = hops_seconds(axes)
    limits = [
        verdict.limit_bytes_per_s * record.nbytes / record.moved
        for record in records
        if (verdict := verdicts[record.key]).limit_bytes_per_s and record.moved and record.nbytes
    ]
    options["limit_bytes_per_s"] = max(limits) if limits and len(limits) == len(records) else None
    return options


def _tuning(record: Record) -> Iterator[dict[str, Any]]:
    told = record.first.evidence.get("tuning")
    for entry in told if isinstance(told, list) else [told]:
        if isinstance(entry, Mapping) and entry.get("algo") and entry.get("proto"):
            yield {"nbytes": record.nbytes, **entry}


def _matches(value: Any, wanted: Any) -> bool:
    return value in wanted if isinstance(wanted, (list, tuple)) else value == wanted


def _fixed(value: Any) -> Any:
    """Return ``value`` as something that can be a key."""
    return value if value is None or isinstance(value, (str, int, float)) else dumps(value)


def _listed(cpus: Any) -> list[int]:
    return [cpu for cpu in cpus if isinstance(cpu, int)] if isinstance(cpus, (list, tuple)) else []


def _holds_data(node: Node) -> bool:
    nbytes = node.get("nbytes")
    whole = isinstance(nbytes, int) and nbytes > 0 and isinstance(node.get("level"), int)
    return whole and str(node.get("type", "unified")).lower() in _DATA_CACHES


def _cpus(records: Iterable[Record]) -> Iterator[int]:
    """Return the CPUs that the records' legs name."""
    for record in records:
        for leg in record.first.legs:
            for end in (leg.src, leg.dst):
                kind, _, number = end.partition(":")
                if kind == "cpu" and number.isdecimal():
                    yield int(number)
