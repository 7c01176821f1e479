"""Which node of many, which link of it: robust outlier tests over machines of one kind.

For each point that several machines measured, the median over machines and the MAD (median absolute deviation,
times 1.4826) of the logarithm of the time. A time is far out when it lies more than 5 MADs and at least 5 % above
the median (Iglewicz & Hoaglin 1993 use 3.5; thousands of points over thousands of machines need more). Half the
machines may be bad before the median is.

A node is named when most of its points are far out; else the end (a GPU, a port, a NUMA node) or the link (a pair
of ends) whose points are; else the single points.
"""

from __future__ import annotations

import json
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from iobench.record import Record, Run

LEAST_MACHINES = 5
FAR = 5.0
LEAST_EXCESS = 0.05
MOST = 0.6  # the share of a place's points that must be far out to name the place
_MAD = 1.4826  # MAD to standard deviation, for a normal distribution
_PAIR_AXES = (("gpu", "peer"), ("src", "dst"), ("client", "server"))
_END_AXES = ("gpu", "gpus", "device", "port", "nic", "numa", "node", "target")
_NAMED_POINTS = 3


@dataclass(frozen=True)
class Outlier:
    """A slow place: ``excess`` is how much longer it takes (0.5 = half as long again), median over its points."""

    node: str
    place: str
    excess: float
    far: int
    points: int
    examples: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """One line: which node, which link, by how much, at how many points."""
        where = f"{self.node}: {self.place}" if self.place else f"{self.node}: the whole node"
        told = f" ({'; '.join(self.examples)})" if self.examples else ""
        return f"{where} takes {self.excess * 100:.0f} % longer at {self.far} of {self.points} points{told}"


@dataclass(frozen=True)
class Fleet:
    """What was compared: machines, the points that enough of them share, and the outliers, the worst first."""

    nodes: int
    points: int
    alone: int
    outliers: tuple[Outlier, ...]
    notes: tuple[str, ...] = ()


@dataclass
class Collector:
    """Takes runs one by one and keeps only one number per point of each: ten thousand runs fit into memory."""

    names: list[str] = field(default_factory=list)
    keys: dict[str, int] = field(default_factory=dict)
    places: list[tuple[str, ...]] = field(default_factory=list)
    _nodes: array[int] = field(default_factory=lambda: array("i"))
    _points: array[int] = field(default_factory=lambda: array("i"))
    _seconds: array[float] = field(default_factory=lambda: array("d"))

    def add(self, run: Run, name: str = "") -> None:
        """Take the usable points of one machine's run."""
        number = len(self.names)
        self.names.append(name or run.machine)
        for record in run:
            if not record.used or record.wrong_data or not record.median > 0:
                continue
            key = f"{record.key} {record.mode}" if record.mode else record.key
            point = self.keys.setdefault(key, len(self.keys))
            if point == len(self.places):
                self.places.append(places_of(record))
            self._nodes.append(number)
            self._points.append(point)
            self._seconds.append(record.median)

    def join(self, other: Collector) -> None:
        """Take the machines of another collector, as if they had been added after these."""
        first = len(self.names)
        self.names += other.names
        numbers = array("i")
        for key, places in zip(other.keys, other.places, strict=True):
            point = self.keys.setdefault(key, len(self.keys))
            if point == len(self.places):
                self.places.append(places)
            numbers.append(point)
        self._nodes.extend(array("i", [first + node for node in other._nodes]))
        self._points.extend(array("i", [numbers[point] for point in other._points]))
        self._seconds.extend(other._seconds)

    def fleet(self) -> Fleet:
        """Return the outliers among the runs taken so far."""
        nodes, points = np.array(self._nodes, dtype=np.int64), np.array(self._points, dtype=np.int64)
        logs = np.log(np.array(self._seconds))
        machines = np.bincount(points, minlength=len(self.keys))
        excess, far = _scores(points, logs, machines)
        shared = machines[points] >= LEAST_MACHINES
        found = list(self._named(nodes[shared], points[shared], excess[shared], far[shared]))
        found.sort(key=lambda outlier: (-outlier.excess * outlier.far, outlier.node, outlier.place))
        alone = int(np.sum(machines < LEAST_MACHINES))
        return Fleet(len(self.names), len(self.keys) - alone, alone, tuple(found))

    def _named(self, nodes: Any, points: Any, excess: Any, far: Any) -> Iterator[Outlier]:
        """Yield the outliers of each node that has any point far out."""
        names = _unique(self.names)
        order = np.argsort(nodes, kind="stable")
        bounds = np.searchsorted(nodes[order], np.arange(len(self.names) + 1))
        labels = list(self.keys)
        for node in np.unique(nodes[far]).tolist():
            mine = order[bounds[node] : bounds[node + 1]]
            rows = [(int(points[i]), float(excess[i]), bool(far[i])) for i in mine]
            yield from _places(names[node], rows, self.places, labels)


def outliers(runs: Iterable[Run] | Mapping[str, Run]) -> Fleet:
    """Return which nodes and links of ``runs`` (one per machine, or name -> run) are slow."""
    collector = Collector()
    for name, run in runs.items() if isinstance(runs, Mapping) else (("", run) for run in runs):
        collector.add(run, name)
    return collector.fleet()


def places_of(record: Record) -> tuple[str, ...]:
    """Return where a point's bytes went, the widest place first: the ends, then the link between them."""
    point = record.point
    for a, b in _PAIR_AXES:
        if a in point and b in point:
            kind = {"gpu": "gpu"}.get(a, "node")
            ends = (f"{kind}:{point[a]}", f"{kind}:{point[b]}")
            return (*dict.fromkeys(ends), f"link {' - '.join(ends)}")
    named = tuple(f"{axis}:{point[axis]}" for axis in _END_AXES if axis in point)
    if named:
        return named
    legs = record.first.legs
    return tuple(dict.fromkeys(f"link {leg.src} - {leg.dst}" for leg in legs))


def _scores(points: Any, logs: Any, machines: Any) -> tuple[Any, Any]:
    """Return each time's excess over its point's median (a fraction), and whether it is far out."""
    order = np.argsort(points, kind="stable")
    bounds = np.concatenate(([0], np.cumsum(machines)))
    excess, far = np.zeros(len(logs)), np.zeros(len(logs), dtype=bool)
    for first, last in pairwise(bounds.tolist()):
        if last - first < LEAST_MACHINES:
            continue
        rows = order[first:last]
        away = logs[rows] - np.median(logs[rows])
        mad = _MAD * float(np.median(np.abs(away)))
        excess[rows] = np.expm1(away)
        far[rows] = away > max(FAR * mad, float(np.log1p(LEAST_EXCESS)))
    return excess, far


def _places(
    node: str, rows: list[tuple[int, float, bool]], places: list[tuple[str, ...]], labels: list[str]
) -> Iterator[Outlier]:
    """Yield the node, else its ends, links and single points, each point told once."""
    if _is_bad(rows):
        yield _outlier(node, "", rows)
        return
    left = rows
    # an end that most of its points accuse comes before the links that run into it
    for wanted in (_is_end, _is_link):
        for place in _accused(left, places, wanted):
            here = [row for row in left if place in places[row[0]]]
            if any(row[2] for row in here):
                yield _outlier(node, place, here)
                left = [row for row in left if place not in places[row[0]] or not row[2]]
    single = [row for row in left if row[2]]
    if single:
        examples = tuple(_short(labels[row[0]]) for row in single[:_NAMED_POINTS])
        yield _outlier(node, "single points", single, examples, len(rows))


def _accused(
    rows: list[tuple[int, float, bool]], places: list[tuple[str, ...]], wanted: Callable[[str], bool]
) -> list[str]:
    """Return the places most of whose points are far out, the one with the most such points first."""
    total: Counter[str] = Counter()
    bad: Counter[str] = Counter()
    for point, _, far in rows:
        for place in filter(wanted, places[point]):
            total[place] += 1
            bad[place] += far
    found = [place for place in total if bad[place] >= MOST * total[place]]
    return sorted(found, key=lambda place: (-bad[place], place))


def _is_bad(rows: list[tuple[int, float, bool]]) -> bool:
    return sum(far for _, _, far in rows) >= MOST * len(rows)


def _is_link(place: str) -> bool:
    return place.startswith("link ")


def _is_end(place: str) -> bool:
    return not _is_link(place)


def _outlier(
    node: str, place: str, rows: list[tuple[int, float, bool]], examples: tuple[str, ...] = (), points: int = 0
) -> Outlier:
    excess = sorted(value for _, value, far in rows if far)
    return Outlier(node, place, excess[len(excess) // 2], len(excess), points or len(rows), examples)


def _short(label: str) -> str:
    """Return a point's key as words: "p2p gpu=0 peer=1 nbytes=1024"."""
    probe, _, rest = label.partition(" ")
    text, _, mode = rest.rpartition("}")
    try:
        point = json.loads(text + "}")
    except ValueError:
        return label
    return " ".join([probe, *(f"{axis}={value}" for axis, value in point.items()), *mode.split()])


def _unique(names: list[str]) -> list[str]:
    """Return the names, those that occur twice with a number: machines of one model share a name."""
    counts = Counter(names)
    seen: Counter[str] = Counter()
    out = []
    for name in names:
        seen[name] += 1
        out.append(f"{name} #{seen[name]}" if counts[name] > 1 else name)
    return out
