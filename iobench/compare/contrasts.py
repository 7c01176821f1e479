"""Compares topologies: any number of runs over the sizes they share, and what a message costs on each.

The basis is the time of one operation on the same message size, because rates of different numbers of ranks count
different bytes. A ratio is speed: A's time over B's. Between measured sizes the fitted model interpolates, and the
value is marked so; outside of what both measured nothing is said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any

from iobench.compare.crossing import Duel, duel
from iobench.compare.curves import Curve, Time, curves_of
from iobench.compare.match import CONDITION_AXES, SYSTEM_AXES, cautions, match, refusal
from iobench.errors import UserError
from iobench.probe import nearest
from iobench.record import Record, Run
from iobench.units import speaks

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_NAMED = 4
_ENDS = ("src", "dst")
_VALUES = 24  # values of an axis that an error names


@dataclass(frozen=True)
class Side:
    """One run of a comparison: its letter, its name, what it measured, and whose numbers they are."""

    letter: str
    name: str
    what: str
    whose: str
    single: bool


@dataclass(frozen=True)
class Match:
    """Series of several runs that belong together; the first is what the others are set against.

    ``by`` is the axis whose values were asked to be compared, "" for none.
    """

    title: str
    curves: tuple[Curve, ...]
    cautions: tuple[str, ...] = ()
    by: str = ""

    @cached_property
    def duels(self) -> tuple[Duel, ...]:
        """Every pair that shares sizes, in the order of the letters."""
        return tuple(found for a, b in combinations(self.curves, 2) if (found := duel(a, b)))

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Every size measured by one that at least two reach."""
        every = sorted({size for curve in self.curves for size in curve.sizes})
        return tuple(size for size in every if sum(curve.reaches(size) for curve in self.curves) > 1)

    def times(self, nbytes: int) -> dict[str, Time]:
        """Return the time at a size of every series that reaches it, by letter."""
        return {curve.letter: curve.at(nbytes) for curve in self.curves if curve.reaches(nbytes)}

    @property
    def exact(self) -> bool:
        """Tell whether the series are the same points in every run."""
        return all(curve.axes == self.curves[0].axes for curve in self.curves)


@dataclass(frozen=True)
class Contrast:
    """Runs set against each other: matched series, what was not compared, and what to know of the numbers.

    ``at`` are the messages whose cost was asked for.
    """

    sides: tuple[Side, ...]
    matches: tuple[Match, ...]
    refused: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    at: tuple[int, ...] = ()


def contrast(
    runs: Sequence[Run],
    names: Sequence[str] = (),
    at: Sequence[int] = (),
    where: Mapping[str, Any] | None = None,
    mixed: bool = False,
    by: str = "",
) -> Contrast:
    """Set two or more runs against each other over message sizes.

    ``names`` are theirs (the machines' unless given), ``where`` keeps only points with these values of axes,
    ``mixed`` compares series of different mode or definition too, ``by`` those that differ in this axis. Raises
    UserError for fewer than two runs, more than the alphabet has letters, a damaged header, or a ``where`` that no
    run knows.
    """
    if not 2 <= len(runs) <= len(LETTERS):
        raise UserError(f"{len(runs)} runs to compare: give two to {len(LETTERS)}")
    _refuse_unknown(runs, where or {})
    labels = [*names, *(run.machine for run in runs[len(names) :])]
    kept = [_narrowed(run, where or {}) for run in runs]
    found = [curves_of(run, LETTERS[place], labels[place]) for place, run in enumerate(kept)]
    groups, alone = match([curves for curves, _ in found], by)
    refused = [(group, refusal(group)) for group in groups]
    matches = [_match(group, why, by) for group, why in refused if mixed or not why]
    said = [f"{_title(group)}: {why}; --mixed compares them all the same" for group, why in refused if why]
    sides = tuple(_side(run, *names) for run, *names in zip(kept, LETTERS, labels, strict=False))
    notes = (*_notes(kept, found), *_alone(alone))
    return Contrast(sides, tuple(matches), () if mixed else tuple(said), notes, tuple(sorted(set(at))))


def split(run: Run, axis: str, least: int = 2) -> list[tuple[str, Run]]:
    """Return a run's parts by the values of one axis, to compare the topologies within one run.

    Raises UserError for fewer values than ``least``.
    """
    values = list(dict.fromkeys(str(record.point[axis]) for record in run if axis in record.point))
    if len(values) < least:
        there = sorted({name for record in run for name in record.point})
        raise UserError(
            f"nothing to split by '{axis}' in {run.path}: choose an axis with two values: {', '.join(there)}"
        )
    return [(value, _part(run, [record for record in run if str(record.point.get(axis)) == value])) for value in values]


def _refuse_unknown(runs: Sequence[Run], where: Mapping[str, Any]) -> None:
    """Raise UserError for an axis that no point of any run has, and for values that none has: a slip of the pen."""
    for axis, wanted in where.items():
        there = dict.fromkeys(str(record.point[axis]).lower() for run in runs for record in run if axis in record.point)
        if not there:
            axes = sorted({name for run in runs for record in run for name in record.point})
            raise UserError(f"no point has an axis '{axis}'{nearest(axis, axes)}; the axes are {', '.join(axes)}")
        if not any(value in there for value in wanted):
            some = ", ".join([*there][:_VALUES]) + (", ..." if len(there) > _VALUES else "")
            raise UserError(f"no point has {axis}={','.join(wanted)}{nearest(wanted[0], there)}; there are {some}")


def _narrowed(run: Run, where: Mapping[str, Any]) -> Run:
    """Return the run with those points that have the wanted values; a point without the axis stays."""
    if not where:
        return run
    kept = [
        record
        for record in run
        if all(str(record.point[axis]).lower() in values for axis, values in where.items() if axis in record.point)
    ]
    return _part(run, kept)


def _part(run: Run, records: list[Record]) -> Run:
    """Return a run of some of the records; a new one, because a run keeps what was worked out from all of its own."""
    return Run(run.path, run.header, records, run.warnings, run.resumed)


def _match(group: Sequence[Curve], why: str, by: str) -> Match:
    said = [why] if why else []
    said += [sentence for sentence in cautions(group) if sentence.partition(" ")[0] not in why.partition(" ")[0]]
    return Match(_title(group), tuple(group), tuple(said), by)


def _title(group: Sequence[Curve]) -> str:
    """Return what the series have in common: the probe, then every axis with one value."""
    shared = {axis: value for axis, value in group[0].axes.items() if all(c.axes.get(axis) == value for c in group)}
    words = [str(value) for axis, value in shared.items() if speaks(value) and axis not in _ENDS]
    words += [_named(axis, value) for axis, value in shared.items() if not speaks(value) or axis in _ENDS]
    if group[0].mode and all(curve.mode == group[0].mode for curve in group):
        words.append(group[0].mode)
    return f"{group[0].probe}: {', '.join(dict.fromkeys(words))}" if words else group[0].probe


def _named(axis: str, value: Any) -> str:
    return f"{axis} {str(value).lower() if isinstance(value, bool) else value}"


def differing(match: Match) -> dict[str, str]:
    """Return for each letter what sets its series apart from the others ("nvlink, 8 ranks")."""
    known = dict.fromkeys((*SYSTEM_AXES, *CONDITION_AXES, match.by))
    axes = [axis for axis in known if len({repr(c.axes.get(axis)) for c in match.curves}) > 1]
    return {
        curve.letter: ", ".join(
            str(curve.axes[axis]) if speaks(curve.axes[axis]) else _named(axis, curve.axes[axis])
            for axis in axes
            if axis in curve.axes
        )
        for curve in match.curves
    }


def _side(run: Run, letter: str, name: str) -> Side:
    request, machine = run.header.request, run.header.machine
    what = str(machine.get("title") or f"{run.machine} {run.header.created}".strip())
    whose = str(request.get("whose") or "")
    if not whose:
        whose = f"imported from {request['imported']}" if request.get("imported") else "measured by iobench"
    single = any(record.aggregate and record.used and not record.time.known for record in run)
    source = str(request.get("source") or "")
    return Side(letter, name, what, f"{whose}: {source}".replace("https://", "") if source else whose, single)


def _notes(runs: Sequence[Run], found: Sequence[tuple[list[Curve], Mapping[str, int]]]) -> list[str]:
    out = []
    for letter, run, (_, left_out) in zip(LETTERS, runs, found, strict=False):
        if left_out:
            counts = ", ".join(f"{count} {status}" for status, count in sorted(left_out.items()))
            out.append(f"{letter}: not compared: {counts}")
        aggregates = sorted({record.aggregate for record in run if record.aggregate and not record.time.known})
        out += [
            f"{letter}: no interval can be known, each time is one figure ({aggregate})"
            for aggregate in aggregates
            if aggregate
        ]
        request = run.header.request
        out += [f"{letter}: {request[key]}" for key in ("note", "dropped") if request.get(key)]
        suspect = sum(record.status == "suspect" for record in run)
        if suspect:
            out.append(f"{letter}: {suspect} suspect points (the machine was disturbed); run again to be sure")
    return out


def _alone(alone: Sequence[Curve]) -> list[str]:
    """Return which series have no counterpart, for each run."""
    out = []
    for letter in sorted({curve.letter for curve in alone}):
        titles = [_title((curve,)) for curve in alone if curve.letter == letter]
        more = f"; and {len(titles) - _NAMED} more" if len(titles) > _NAMED else ""
        out.append(f"only in {letter}: {'; '.join(titles[:_NAMED])}{more}")
    return out


__all__ = ["Contrast", "Duel", "Match", "Side", "Time", "contrast", "differing", "split"]
