"""How well n ranks are predicted from fewer: over every curve of a file of published latencies.

For each machine, op and type of the table (fit.curvetable) with 2, 4 and 8 GPUs, 8 is predicted from 2 and 4.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from iobench.errors import UserError
from iobench.fit import curvetable
from iobench.fit.model import Measured
from iobench.fit.scale import nvls
from iobench.fit.scale.curve import Curve
from iobench.fit.scale.model import ScaleModel

KNOWN, WANTED = (2, 4), 8
_OPS = {
    "alltoall": "all_to_all",
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
}
_COVER = 0.9
_MOST_ERROR = 0.15


@dataclass(frozen=True)
class Trial:
    """One point predicted and measured, seconds."""

    system: str
    op: str
    nbytes: int
    truth: float
    seconds: float
    low: float
    high: float

    @property
    def error(self) -> float:
        return abs(self.seconds / self.truth - 1)

    @property
    def held(self) -> bool:
        return self.low <= self.truth <= self.high

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2 / self.seconds

    @property
    def missed_by(self) -> float:
        """Return by how much the interval would have to be wider to hold the truth (in logarithms; 1 just holds it)."""
        end = self.high if self.truth > self.seconds else self.low
        return math.log(self.truth / self.seconds) / math.log(end / self.seconds)


def read(path: Path) -> tuple[dict[tuple[str, ...], dict[int, Curve]], list[str]]:
    """Return (system, versions, op, dtype) -> GPUs -> curve, and what was left out; UserError for no such table."""
    table = curvetable.read(path)
    points: dict[tuple[str, ...], dict[int, list[Measured]]] = {}
    for row in table.rows:
        point = Measured(row.nbytes, row.seconds, row.seconds, row.seconds)
        points.setdefault(row.names, {}).setdefault(row.gpus, []).append(point)
    curves = {key: {n: Curve.of(n, 1, found) for n, found in sorted(by.items())} for key, by in points.items()}
    return curves, table.left_out


def trials(curves: Mapping[tuple[str, ...], Mapping[int, Curve]]) -> tuple[list[Trial], list[str]]:
    """Predict every size of ``WANTED`` ranks that the ``KNOWN`` counts cover; say which cannot be, and why."""
    found, left_out = [], []
    for names, by in curves.items():
        if WANTED in by and all(n in by for n in KNOWN):
            try:
                found += list(_trials(names, by))
            except UserError as error:
                left_out.append(f"{' '.join(names)}: {error}")
    return found, left_out


def _trials(names: tuple[str, ...], by: Mapping[int, Curve]) -> Iterator[Trial]:
    system, _, _, op, dtype = names
    name = _OPS.get(op, op)
    axes = {"op": name, "dtype": dtype, "transport": "nvlink"}
    model = ScaleModel(axes, "", tuple(by[n] for n in KNOWN), nvls.supported(system, axes))
    low, high = max(by[n].smallest for n in KNOWN), min(by[n].largest for n in KNOWN)
    for point in by[WANTED].measured:
        if low <= point.nbytes <= high:
            got = model.predict(WANTED, 1, point.nbytes)
            yield Trial(system, name, point.nbytes, point.seconds, got.seconds, got.low, got.high)


def bench(path: Path) -> tuple[str, bool]:
    """Return the table of error, coverage and width, by system and by op, and whether the bars are met.

    The bars: a median error of 15 %, intervals that hold 9 points of 10. Raises UserError without curves.
    """
    curves, left_out = read(path)
    found, hopeless = trials(curves)
    left_out = left_out + hopeless
    if not found:
        why = f" ({left_out[0]})" if left_out else ""
        counts = f"{KNOWN[0]}, {KNOWN[1]} and {WANTED}"
        raise UserError(f"{path} holds no curves of {counts} GPUs of one machine that share sizes{why}; add them")
    lines = _table(found)
    error, held = np.median([trial.error for trial in found]), np.mean([trial.held for trial in found])
    met = bool(error <= _MOST_ERROR and held >= _COVER)
    bars = f"bars: median error <= {_MOST_ERROR:.0%}, held >= {_COVER:.0%}: {'met' if met else 'MISSED'}"
    return "\n".join([*lines, *_left_out(found), *curvetable.shown(left_out), bars]), met


def _table(found: Sequence[Trial]) -> list[str]:
    lines = [f"{WANTED} ranks predicted from {' and '.join(map(str, KNOWN))}: {len(found)} points"]
    lines.append(f"{'':26}{'points':>7}{'median error':>14}{'worst':>8}{'held':>8}{'half width':>12}")
    lines.append(_row("all", found))
    systems, ops = (sorted({getattr(trial, name) for trial in found}) for name in ("system", "op"))
    lines += [_row(f"system {name}", [t for t in found if t.system == name]) for name in systems]
    return lines + [_row(f"op {name}", [t for t in found if t.op == name]) for name in ops]


def _row(name: str, found: Sequence[Trial]) -> str:
    error = [trial.error for trial in found]
    held = sum(trial.held for trial in found) / len(found)
    width = float(np.median([trial.half_width for trial in found]))
    return f"{name:26}{len(found):>7}{np.median(error):>13.1%} {max(error):>7.0%} {held:>7.1%} {width:>11.1%}"


def _left_out(found: Sequence[Trial]) -> Iterator[str]:
    """Yield, for each system, what its intervals hold when their width is set on the other systems alone."""
    systems = sorted({trial.system for trial in found})
    for name in systems if len(systems) > 1 else []:
        factor = float(np.quantile([trial.missed_by for trial in found if trial.system != name], _COVER))
        mine = [trial for trial in found if trial.system == name]
        held = sum(trial.missed_by <= factor for trial in mine) / len(mine)
        width = float(np.median([trial.half_width for trial in mine])) * factor
        yield f"width set on the other systems (x{factor:.2f}): {name} held {held:.1%}, half width {width:.1%}"
