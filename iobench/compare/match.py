"""Which series of several runs belong together, and what keeps a comparison from being one.

Series are matched where probe, quantity and every axis of *what* was measured are equal. Axes of *where* and *how*
(transport, ranks, nodes, library, data type, in place or not) may differ: the nearest pair is taken, each series
once, and what differs is said.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from iobench.compare.curves import Curve

# where the bytes went and who carried them: what a comparison of topologies is about
SYSTEM_AXES = (
    "transport", "engine", "backend", "ranks", "nodes", "algo", "proto", "placement", "transport_type", "gpu", "gpus",
    "device", "src", "dst", "peer", "memory_node", "numa", "path", "gdr", "settings", "shape", "mode",
    "traffic_class", "service_level", "mtu", "gid", "load_class",
)  # fmt: skip
# how it was measured: differences are warned of
CONDITION_AXES = ("dtype", "inplace", "qps", "depth")
_COUNTS = ("ranks", "nodes")


def match(runs: Sequence[Sequence[Curve]], by: str = "") -> tuple[list[tuple[Curve, ...]], list[Curve]]:
    """Return the groups of series that belong together, one of each run at most, and those without a counterpart.

    ``by`` is an axis whose values are compared, whatever it is of. Every group holds a series of the first run that
    has one of this kind; a pair is taken where each is the other's nearest.
    """
    kinds: dict[tuple[Any, ...], list[list[Curve]]] = {}
    for number, curves in enumerate(runs):
        for curve in curves:
            kinds.setdefault(subject(curve, by), [[] for _ in runs])[number].append(curve)
    groups = [group for by_run in kinds.values() for group in _groups(by_run)]
    places = {id(curve): place for place, curve in enumerate(curve for curves in runs for curve in curves)}
    groups.sort(key=lambda group: places[id(group[0])])
    whole = [tuple(group) for group in groups if len(group) > 1]
    return whole, [group[0] for group in groups if len(group) == 1]


def _groups(runs: Sequence[Sequence[Curve]]) -> list[list[Curve]]:
    """Return the groups among series that are about the same."""
    groups: list[list[Curve]] = []
    for curves in runs:
        taken: set[int] = set()
        heads = [group[0] for group in groups]
        for group in groups:
            found = _mutual(group[0], heads, [curve for curve in curves if id(curve) not in taken])
            if found is not None:
                taken.add(id(found))
                group.append(found)
        groups += [[curve] for curve in curves if id(curve) not in taken]
    return groups


def _mutual(head: Curve, heads: Sequence[Curve], curves: Sequence[Curve]) -> Curve | None:
    """Return the curve that is nearest to ``head`` and has no other head nearer to it."""
    if not curves:
        return None
    best = max(curves, key=lambda curve: nearness(head, curve))
    return best if max(heads, key=lambda other: nearness(other, best)) is head else None


def subject(curve: Curve, by: str = "") -> tuple[Any, ...]:
    """Return what a series is about: equal for series that can be compared at all."""
    free = (*SYSTEM_AXES, *CONDITION_AXES, by)
    axes = tuple(sorted((axis, str(value)) for axis, value in curve.axes.items() if axis not in free))
    return curve.probe, curve.quantity, axes, curve.sizes == (0,)


def nearness(a: Curve, b: Curve) -> tuple[float, ...]:
    """Return how alike two series are, the weightiest difference first; higher is nearer."""
    both = [axis for axis in (*SYSTEM_AXES, *CONDITION_AXES) if axis in a.axes and axis in b.axes]
    same = sum(a.axes[axis] == b.axes[axis] for axis in both)
    counts = [abs(math.log(_count(a, axis) / _count(b, axis))) for axis in _COUNTS]
    return (
        _alike(a, b, "inplace"),
        float(a.mode == b.mode),
        _alike(a, b, "dtype"),
        -counts[0],
        -counts[1],
        float(same),
    )


def _alike(a: Curve, b: Curve, axis: str) -> float:
    """Return 1 for equal values, 0 for others, between them where one says nothing (out of place is the custom)."""
    if axis in a.axes and axis in b.axes:
        return float(a.axes[axis] == b.axes[axis])
    stated = a.axes.get(axis, b.axes.get(axis))
    return 1.0 if stated is None else 0.75 if stated is False else 0.5


def _count(curve: Curve, axis: str) -> float:
    value = curve.axes.get(axis)
    return float(value) if isinstance(value, int) and value > 0 else 1.0


def refusal(group: Sequence[Curve]) -> str:
    """Return why times of these series must not be set against each other, "" where nothing is known against it."""
    for what, values in (
        ("mode", [curve.mode for curve in group]),
        ("definition of the latency", [f"{c.round_trip} round trip" if c.round_trip else "" for c in group]),
    ):
        if len({value for value in values if value}) > 1:
            return f"{what} differs: {_sides(group, values)}"
    return ""


def cautions(group: Sequence[Curve]) -> list[str]:
    """Return what differs between the series besides the topology, and what is not known of them."""
    out = []
    for axis in CONDITION_AXES:
        values = [_shown(curve.axes.get(axis)) for curve in group]
        if len(set(values)) > 1:
            out.append(f"{axis} differs: {_sides(group, values)}")
    for what, values in (
        ("ranks per node", [_ranks(curve) for curve in group]),
        ("process shape", [curve.shape for curve in group]),
        ("mode", [curve.mode for curve in group]),
        ("definition of the latency", [curve.round_trip for curve in group]),
        ("library version", [_library(curve) for curve in group]),
    ):
        if len(set(values)) > 1:
            out.append(f"{what} {_differ(values)}: {_sides(group, values)}")
    out += _other_rates(group)
    return out


def _differ(values: Sequence[str]) -> str:
    stated = {value for value in values if value}
    return "differs" if len(stated) > 1 else "is not known of all"


def _other_rates(group: Sequence[Curve]) -> list[str]:
    """Return a warning where equal operations between equal ranks count their bytes in different ways."""
    rates: dict[tuple[Any, ...], dict[str, float]] = {}
    for curve in group if group[0].sizes != (0,) else ():
        key = (curve.axes.get("op"), curve.axes.get("ranks"))
        factor = curve.records[-1].moved / max(curve.records[-1].nbytes, 1)
        rates.setdefault(key, {})[curve.letter] = factor
    return [
        f"the rates count bytes in different ways ({', '.join(f'{k}: {v:.3g} x size' for k, v in factors.items())}): "
        "compare the times"
        for factors in rates.values()
        if max(factors.values()) - min(factors.values()) > 0.01
    ]


def _ranks(curve: Curve) -> str:
    ranks, nodes = curve.axes.get("ranks"), curve.axes.get("nodes")
    if ranks is None:
        return ""
    return f"{ranks} ranks" + (f" in {nodes} node{'' if nodes == 1 else 's'}" if nodes is not None else "")


def _library(curve: Curve) -> str:
    return ", ".join(f"{name} {version}" for name, version in sorted(curve.library.items()))


def _shown(value: Any) -> str:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _sides(group: Sequence[Curve], values: Sequence[str]) -> str:
    sides: dict[str, list[str]] = {}
    for curve, value in zip(group, values, strict=True):
        sides.setdefault(value or "not stated", []).append(curve.letter)
    return "; ".join(f"{', '.join(letters)}: {value}" for value, letters in sides.items())
