"""The bottleneck of a record's path: which link, in which direction, needs the longest.

A leg loads every link on its way with the bytes that crossed it; ``count`` parallel ways have ``count`` times
the link's limit. Legs that state their own ``moved`` and join the same kinds of nodes (memory to CPU and back)
add up on a shared link: in the same direction, or in both where the link's limit holds for both together. The
link that needs the longest is the bottleneck: at that time the path is at its limit.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from iobench.record import Leg, Line
from iobench.topology.graph import Link, Topology


@dataclass(frozen=True)
class Limit:
    """The bottleneck of a record: the least seconds one operation can take, and what says so.

    Above ``doubtful_bytes_per_s`` (what packet headers leave of a raw rate) a rate is not impossible, but odd.
    """

    seconds: float
    nbytes: int
    bytes_per_s: float
    where: str
    source: str
    doubtful_bytes_per_s: float | None = None


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
        warn = self.link.attrs.get("warn_bytes_per_s") if isinstance(self.link.attrs, dict) else None
        doubtful = warn * self.count if isinstance(warn, (int, float)) else None
        return Limit(self.nbytes / bytes_per_s, self.nbytes, bytes_per_s, where, source, doubtful)


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
