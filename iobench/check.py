"""Judges each record: is the rate physically possible, is the path proven, may a model rest on it.

The limit of a record comes from its legs and the topology that the run's header holds. A leg loads every
link on its way with the bytes that crossed it; ``count`` parallel ways have ``count`` times the link's
limit. Legs that state their own ``moved`` and join the same kinds of nodes (memory to CPU and back) add up
on a shared link: in the same direction, or in both where the link's limit holds for both together. The
link that needs the longest is the bottleneck: at that time the path is at its limit.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from iobench._callable import make_callable
from iobench.errors import UserError
from iobench.record import Leg, Line, Record, Run
from iobench.topology.graph import Link, Topology
from iobench.units import format_rate

STATUSES = ("ok", "impossible", "suspect", "unproven", "wrong", "failed", "skipped")
_USABLE = ("ok", "suspect", "unproven")


@dataclass(frozen=True)
class Verdict:
    """What a record is worth, in one word and one sentence.

    ``limit_bytes_per_s`` is the path's limit as a rate of the record (``moved`` per operation), ``fraction``
    the part of it that was reached; both None where no limit of the path is known.
    """

    status: str
    sentence: str
    limit_bytes_per_s: float | None = None
    limit_source: str = ""
    fraction: float | None = None

    @property
    def usable(self) -> bool:
        """Whether the time is a measurement at all: not impossible, wrong, failed or skipped."""
        return self.status in _USABLE


@dataclass(frozen=True)
class Limit:
    """The bottleneck of a record: the least seconds one operation can take, and what says so."""

    seconds: float
    nbytes: int
    bytes_per_s: float
    where: str
    source: str


def judge(run: Run) -> dict[str, Verdict]:
    """Return the verdict on every record of ``run`` by its key.

    Impossible means that the *median* lies above the limit; the limit is an upper bound already (raw rate
    of the link), so no tolerance is added and a wide interval is no excuse. Order of precedence: wrong,
    failed, skipped, impossible, suspect, unproven, ok. Raises UserError where the header's topology is
    damaged.
    """
    topology = topology_of(run)
    return {record.key: verdict(record, topology) for record in run}


def topology_of(run: Run) -> Topology | None:
    """Return the graph in the run's header, None where it holds none; UserError where it is damaged."""
    data = run.header.topology
    if not data:
        return None
    try:
        graph = Topology.from_dict(data)
        _check_graph(graph)
    except ValueError as error:
        raise UserError(
            f"{run.path}: the topology in its header is unusable ({error}); run the probes again"
        ) from error
    return graph


def verdict(record: Record, topology: Topology | None) -> Verdict:
    """Return the verdict on one record."""
    if record.wrong_data:
        return Verdict(
            "wrong", f"wrong data: {record.reason or 'the bytes that arrived differ'}; its time is worthless"
        )
    if record.status in ("failed", "skipped"):
        return Verdict(record.status, record.reason or f"{record.status} without a reason")
    limit, missing = find_limit(record.first, topology)
    status, sentence = _status(record, limit)
    if limit is None:
        return Verdict(status, _join(sentence, _unknown(missing)))
    seconds = record.median
    fraction = limit.seconds / seconds
    share = f"{_percent(fraction)} of {limit.where}'s limit {format_rate(limit.bytes_per_s)} ({limit.source})"
    if status == "impossible":
        share = ""
    rate = (record.moved or limit.nbytes) / limit.seconds
    return Verdict(status, _join(sentence, share), rate, limit.source, fraction)


def find_limit(line: Line, topology: Topology | None) -> tuple[Limit | None, list[str]]:
    """Return the bottleneck of a line's legs, and the nodes of its legs that the topology lacks."""
    graph = topology or Topology()
    missing = [end for leg in line.legs for end in (leg.src, leg.dst) if topology and topology.node(end) is None]
    loads = [load for leg in line.legs for load in _loads(leg, line.moved, graph)]
    loads += _shared(loads)
    limits = [load.limit for load in loads if load.nbytes > 0]
    limits += [_own_limit(leg, line.moved) for leg in line.legs if leg.bytes_per_s and leg.moved != 0 and line.moved]
    return max(limits, key=lambda limit: limit.seconds, default=None), list(dict.fromkeys(missing))


@dataclass(frozen=True)
class _Load:
    """The bytes of one leg on one link; ``group`` says which other legs they add up with (None: with none)."""

    link: Link
    nbytes: int
    count: int
    group: tuple[object, ...] | None

    @property
    def limit(self) -> Limit:
        bytes_per_s = (self.link.bytes_per_s or math.inf) * self.count
        where = f"{self.link.a} - {self.link.b}" + (f" (x{self.count})" if self.count > 1 else "")
        source = self.link.source or "source unknown"
        return Limit(self.nbytes / bytes_per_s, self.nbytes, bytes_per_s, where, source)


def _loads(leg: Leg, moved: int, topology: Topology) -> Iterable[_Load]:
    path = topology.path(leg.src, leg.dst)
    here = leg.src
    kinds = frozenset(end.split(":")[0] for end in (leg.src, leg.dst))
    for link in path.links if path else ():
        there = link.b if link.a == here else link.a
        if link.bytes_per_s is not None:
            direction = (here, there) if link.duplex else ()
            group = None if leg.moved is None else (id(link), direction, kinds)
            yield _Load(link, moved if leg.moved is None else leg.moved, max(leg.count, 1), group)
        here = there


def _own_limit(leg: Leg, moved: int) -> Limit:
    """Return the limit that was read under load, which a leg carries itself."""
    nbytes = moved if leg.moved is None else leg.moved
    count = max(leg.count, 1)
    bytes_per_s = (leg.bytes_per_s or math.inf) * count
    where = f"{leg.src} - {leg.dst}" + (f" (x{count})" if count > 1 else "")
    return Limit(nbytes / bytes_per_s, nbytes, bytes_per_s, where, "as the device showed it under load")


def _shared(loads: Iterable[_Load]) -> list[_Load]:
    """Return what legs with a stated part of the bytes put on one link together."""
    groups: dict[tuple[object, ...], list[_Load]] = defaultdict(list)
    for load in loads:
        if load.group is not None:
            groups[load.group].append(load)
    return [
        _Load(group[0].link, sum(load.nbytes for load in group), max(load.count for load in group), None)
        for group in groups.values()
        if len(group) > 1
    ]


def _status(record: Record, limit: Limit | None) -> tuple[str, str]:
    """Return status and the first part of the sentence of a record that has samples."""
    seconds = record.median
    if limit and seconds < limit.seconds:
        measured = format_rate(limit.nbytes / seconds)
        return "impossible", (
            f"record is suspect, measured {measured} above {limit.where}'s limit {format_rate(limit.bytes_per_s)} "
            f"({limit.source})"
        )
    if record.status == "suspect":
        return "suspect", record.reason or "the machine was disturbed"
    if not all(line.proven for line in record.used):
        return "unproven", f"path unproven: {record.first.path or 'nothing shows which way the bytes took'}"
    return "ok", ""


def _unknown(missing: list[str]) -> str:
    if missing:
        return f"no limit of the path is known: the topology has no {', '.join(missing)}"
    return "no limit of the path is known"


def _join(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


def _percent(fraction: float) -> str:
    return f"{fraction * 100:.0f} %" if fraction >= 0.1 else f"{fraction * 100:.2g} %"


def _check_graph(graph: Topology) -> None:
    """Raise ValueError for what Topology.from_dict lets through and a path would trip over."""
    for link in graph.links:
        rate = link.bytes_per_s
        if not isinstance(link.a, str) or not isinstance(link.b, str):
            raise ValueError("a link whose ends are no names")
        if rate is not None and (isinstance(rate, bool) or not isinstance(rate, (int, float)) or not rate > 0):
            raise ValueError(f"link {link.a} - {link.b} has the limit {rate!r}")
    if not all(isinstance(node.attrs, dict) and isinstance(node.kind, str) for node in graph.nodes.values()):
        raise ValueError("a node whose attributes are no object")


make_callable(__name__, judge)
