"""A model of one collective in the number of ranks and nodes, fitted over all of the counts that were measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from iobench import busbytes
from iobench.errors import UserError
from iobench.fit.model import REACH
from iobench.fit.scale import nvls
from iobench.fit.scale.curve import Curve
from iobench.fit.scale.formulas import between, within
from iobench.fit.scale.rules import Ladder
from iobench.fit.series import Parameter
from iobench.units import format_size

SCHEMA = 1
# Half an interval, as a logarithm: FLOOR + SLOPE times how far the two rules are apart. Rounded from the errors of 8
# ranks predicted from 2 and 4 on public NCCL curves of A100 and H100 (ai-dynamo/aiconfigurator, 618 points); a width
# set on one of the two machines alone holds 89 to 91 % of the other's points.
FLOOR = 0.08
SLOPE = 0.65
_UNORDERED = {"all_to_all": 1.5, "gather": 1.5, "scatter": 1.5}  # messages that contend, no chain: they scatter more
_BETWEEN_NODES = 1.5  # networks and the libraries' choices between nodes scatter more than one node does


@dataclass(frozen=True)
class Scaled:
    """Seconds at a count that was not measured, with the interval that holds the truth in 9 of 10 cases."""

    seconds: float
    low: float
    high: float
    basis: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class ScaleModel:
    """Curves of one collective at several counts of ranks and nodes, all else being equal.

    ``axes`` are what the points have in common (op among them), ``switch`` whether NVLink's switch may reduce (yes,
    no, unknown).
    """

    axes: dict[str, Any]
    mode: str
    curves: tuple[Curve, ...]
    switch: str = nvls.UNKNOWN

    @property
    def op(self) -> str:
        return str(self.axes["op"])

    @cached_property
    def parameters(self) -> dict[str, Parameter]:
        """Return latency per hop, base and bandwidth, within a node and between nodes as far as they were measured.

        Hop and base are medians over the small sizes, the bandwidth is that of the most ranks at the largest size;
        intervals are the range over small (or large) sizes.
        """
        found: dict[str, Parameter] = {}
        for ladder, where in self._ladders():
            found |= _parameters(ladder, where)
        return found

    def predict(self, ranks: int, nodes: int, nbytes: int) -> Scaled:
        """Return the seconds of ``ranks`` ranks on ``nodes`` nodes at ``nbytes``.

        Raises UserError outside twice the measured counts or sizes, and where only one count was measured.
        """
        ladder = self._ladder(ranks, nodes)
        count = ranks if ladder.axis.name == "ranks" else nodes
        _check_reach(ladder, count, nbytes)
        estimates = [ladder.estimate(count, at) for at in _near(ladder, nbytes)]
        here, apart = estimates[1][0], max(apart for _, apart in estimates)
        half = (FLOOR + SLOPE * apart) * _UNORDERED.get(self.op, 1.0)
        half *= _BETWEEN_NODES if ladder.axis.name == "nodes" else 1.0
        ring = Scaled(math.exp(here), math.exp(here - half), math.exp(here + half))
        ring = _with(ring, [_basis(ladder, count)], _warnings(ladder, count, nbytes, apart))
        return self._switched(ring, ladder, count, nbytes)

    def joined(self, other: ScaleModel) -> ScaleModel:
        """Return this model with the curves of ``other`` at counts that this one lacks."""
        known = {(curve.ranks, curve.nodes) for curve in self.curves}
        more = [curve for curve in other.curves if (curve.ranks, curve.nodes) not in known]
        curves = sorted([*self.curves, *more], key=lambda curve: (curve.ranks, curve.nodes))
        return ScaleModel(
            self.axes, self.mode, tuple(curves), self.switch if self.switch == other.switch else nvls.UNKNOWN
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON: parameters with units, and the curves that they and predictions rest on."""
        return {
            "schema": SCHEMA,
            "axes": dict(self.axes),
            "mode": self.mode,
            "switch": self.switch,
            "parameters": {name: vars(value).copy() for name, value in self.parameters.items()},
            "curves": [curve.to_dict() for curve in self.curves],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ScaleModel:
        """Rebuild from ``to_dict``'s data; KeyError, TypeError or ValueError where it is not such data.

        Parameters are worked out again: the curves are what was measured.
        """
        if data["schema"] != SCHEMA:
            raise ValueError(f"a scale model of schema {data['schema']!r}, not {SCHEMA}")
        if data["switch"] not in (nvls.YES, nvls.NO, nvls.UNKNOWN) or not isinstance(data["axes"].get("op"), str):
            raise ValueError("switch or op is none of the known ones")
        curves = tuple(Curve.from_dict(curve) for curve in data["curves"])
        return cls(dict(data["axes"]), str(data["mode"]), curves, data["switch"])

    def _ladder(self, ranks: int, nodes: int) -> Ladder:
        if nodes <= 1:
            return _need_two(self._within(), self.op)
        each = ranks / nodes
        curves = [curve for curve in self.curves if curve.ranks / curve.nodes == each and curve.nodes > 1]
        return _need_two(Ladder(between(self.op), _rising(curves, "nodes")), self.op, f" with {each:g} ranks each")

    def _within(self) -> Ladder:
        """Return the curves of one node; where large sizes may run by NVLS, those of few ranks show the links."""
        curves = _rising([curve for curve in self.curves if curve.nodes == 1], "ranks")
        few = tuple(curve for curve in curves if curve.ranks < nvls.FIRST_RANKS)
        return Ladder(within(self.op), curves, few if self.switch != nvls.NO and len(few) > 1 else ())

    def _ladders(self) -> Iterable[tuple[Ladder, str]]:
        if len(self._within().curves) > 1:
            yield self._within(), "within"
        for each in sorted({curve.ranks / curve.nodes for curve in self.curves if curve.nodes > 1}):
            several = [curve for curve in self.curves if curve.nodes > 1 and curve.ranks / curve.nodes == each]
            if len(several) > 1:
                yield Ladder(between(self.op), _rising(several, "nodes")), f"between_{each:g}"

    def _switched(self, ring: Scaled, ladder: Ladder, ranks: int, nbytes: int) -> Scaled:
        """Return the prediction where the switch may have taken over from the ring."""
        alone = ladder.axis.name == "ranks" and ranks >= nvls.FIRST_RANKS and self.switch != nvls.NO
        if not alone or nbytes < nvls.FIRST_NBYTES:
            return ring
        most = ladder.curves[-1]
        known = most.ranks >= nvls.FIRST_RANKS
        seconds = nvls.carried(most, ranks, nbytes) if known else nvls.foreseen(most, ranks, nbytes)
        if seconds is None:
            return _with(ring, [], ["NVLS may make large sizes faster than this; measure 64 MiB and more to tell"])
        low, high = seconds * math.exp(-nvls.HALF_WIDTH), seconds * math.exp(nvls.HALF_WIDTH)
        if self.switch == nvls.UNKNOWN:
            both = "whether NVLink's switch reduces is unknown; the interval covers ring and NVLS"
            hull = Scaled(ring.seconds, min(low, ring.low), max(high, ring.high))
            return _with(hull, ring.basis, [*ring.warnings, both])
        if nbytes < 2 * nvls.FIRST_NBYTES and not known:
            low, high = min(low, ring.low), max(high, ring.high)
        return Scaled(seconds, low, high, [_switch_basis(most, ranks, known)], [_SWITCH_ASSUMED])


_SWITCH_ASSUMED = (
    f"assumes that NCCL takes NVLS from {format_size(nvls.FIRST_NBYTES)} and {nvls.FIRST_RANKS} ranks on, which "
    "NCCL_NVLS_ENABLE=0 or a tuner would change"
)


def _switch_basis(most: Curve, ranks: int, known: bool) -> str:
    if known:
        return f"the curve of {most.ranks} ranks by NVLS, carried to {ranks} by 1 + 1/n bytes per byte"
    gain = f"{nvls.GAIN} times the ring's bandwidth, after public figures of H200 and B200"
    return f"the ring's curve of {most.ranks} ranks; NVLS at {ranks} has {gain}"


def _rising(curves: Iterable[Curve], name: str) -> tuple[Curve, ...]:
    return tuple(sorted(curves, key=lambda curve: getattr(curve, name)))


def _need_two(ladder: Ladder, op: str, which: str = "") -> Ladder:
    if len(ladder.curves) < 2:
        have = ", ".join(str(count) for count in ladder.counts) or "none"
        raise UserError(
            f"cannot scale {op} in {ladder.axis.name}{which}: two counts of {ladder.axis.name} are needed, measured: "
            f"{have}; measure another, as in -a {ladder.axis.name}=2,4, or give its run too"
        )
    return ladder


def _check_reach(ladder: Ladder, count: int, nbytes: int) -> None:
    low, high = ladder.sizes
    if not low / REACH <= nbytes <= high * REACH:
        raise UserError(
            f"cannot predict {format_size(nbytes)}: the curves cover {format_size(low)} to {format_size(high)} and "
            f"hold to twice that; measure this size first, as in -a nbytes={nbytes}"
        )
    if len(ladder.common) < 2:
        raise UserError(
            "the curves share one size only, which does not tell hops from bytes; measure several sizes at each count"
        )
    least, most = ladder.counts[0], ladder.counts[-1]
    if not least / REACH <= count <= most * REACH:
        raise UserError(
            f"cannot predict {count} {ladder.axis.name}: measured were {least} to {most} and the model holds to twice "
            f"that; measure more {ladder.axis.name} first"
        )


def _near(ladder: Ladder, nbytes: int) -> list[float]:
    """Return half, the same and double the size, inside what was measured: a switch point may have moved that far."""
    low, high = ladder.sizes
    return [min(max(nbytes / 2, low), high), float(nbytes), max(min(nbytes * 2, high), low)]


def _basis(ladder: Ladder, count: int) -> str:
    counts = ", ".join(str(n) for n in ladder.counts)
    kind = "between" if ladder.counts[0] < count < ladder.counts[-1] else "beyond"
    axis = ladder.axis
    return f"curves of {counts} {axis.name}, carried {kind} them to {count} by a {axis.algorithm}'s steps and bytes"


def _warnings(ladder: Ladder, count: int, nbytes: int, apart: float) -> list[str]:
    found = [
        f"{count} {ladder.axis.name} were not measured: the links and algorithms of {ladder.counts[-1]} are assumed"
    ]
    if ladder.seconds_per_byte == 0.0:
        found.append("no size is large enough to show the bandwidth; growth counts as latency per hop")
    if apart > math.log(1.25):
        found.append(
            f"near {format_size(nbytes)} the library switches protocols; where it will with {count} is a guess"
        )
    spikes = sorted({size for curve in ladder.curves for size in curve.spikes})
    if spikes:
        found.append("outliers left out: " + ", ".join(format_size(size) for size in spikes))
    return found


def _with(scaled: Scaled, basis: list[str], warnings: list[str]) -> Scaled:
    return Scaled(scaled.seconds, scaled.low, scaled.high, [*scaled.basis, *basis], [*scaled.warnings, *warnings])


def _parameters(ladder: Ladder, where: str) -> dict[str, Parameter]:
    small = [ladder.terms(size) for size in ladder.small]
    found = {
        f"base_{where}": _ranged([c for c, _, _ in small], "s"),
        f"hop_{where}": _ranged([h for _, h, _ in small], "s"),
    }
    if ladder.seconds_per_byte > 0:
        curves = ladder.bulk or ladder.curves
        rates = [ladder.bytes_per_s(curve, size) for curve in curves for size in ladder.large]
        most = ladder.bytes_per_s(curves[-1], ladder.large[-1])
        found[f"bytes_per_s_{where}"] = Parameter(most, min(rates), max(rates), "bytes/s")
    return found


def _ranged(values: list[float], unit: str) -> Parameter:
    return Parameter(float(np.median(values)), min(values), max(values), unit)


def busbw(op: str, ranks: int, nbytes: int, seconds: float) -> float:
    """Return bus bandwidth in bytes/s (nccl-tests doc/PERFORMANCE.md)."""
    return busbytes.factor(op, ranks) * nbytes / seconds
