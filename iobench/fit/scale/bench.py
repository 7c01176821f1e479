"""How well n ranks are predicted from fewer: over every curve of a file of published latencies.

The file: a "#" comment with its source, then columns system, dir_version, version_col, op, dtype, num_gpus,
size_bytes, latency_us. For each machine, op and type with 2, 4 and 8 GPUs, 8 is predicted from 2 and 4.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from iobench.errors import UserError
from iobench.fit.model import Measured
from iobench.fit.scale import nvls
from iobench.fit.scale.curve import Curve
from iobench.fit.scale.model import ScaleModel
from iobench.units import US

COLUMNS = ("system", "dir_version", "version_col", "op", "dtype", "num_gpus", "size_bytes", "latency_us")
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


def read(path: Path) -> dict[tuple[str, ...], dict[int, Curve]]:
    """Return (system, versions, op, dtype) -> GPUs -> curve; UserError for a file that is no such table."""
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path} ({error}); give a CSV with the columns {','.join(COLUMNS)}") from error
    rows = csv.DictReader(lines)
    if set(COLUMNS) - set(rows.fieldnames or ()):
        raise UserError(f"{path} lacks columns; give a CSV with {','.join(COLUMNS)}")
    points: dict[tuple[str, ...], dict[int, list[Measured]]] = {}
    for number, row in enumerate(rows, start=2):
        try:
            seconds = float(row["latency_us"]) * US
            if not 0 < seconds < math.inf:
                raise ValueError(f"latency_us is {row['latency_us']}")
            key = tuple(str(row[name]) for name in COLUMNS[:5])
            point = Measured(int(row["size_bytes"]), seconds, seconds, seconds)
            points.setdefault(key, {}).setdefault(int(row["num_gpus"]), []).append(point)
        except (TypeError, ValueError) as error:
            raise UserError(f"{path}: data row {number - 1} is damaged ({error}); mend or remove it") from error
    return {key: {n: Curve.of(n, 1, found) for n, found in sorted(by.items())} for key, by in points.items()}


def trials(curves: Mapping[tuple[str, ...], Mapping[int, Curve]]) -> Iterator[Trial]:
    """Predict every size of ``WANTED`` ranks that the ``KNOWN`` counts cover."""
    for (system, _, _, op, dtype), by in curves.items():
        if not all(n in by for n in (*KNOWN, WANTED)):
            continue
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
    found = list(trials(read(path)))
    if not found:
        raise UserError(f"{path} holds no curves of {KNOWN[0]}, {KNOWN[1]} and {WANTED} GPUs of one machine; add them")
    lines = [f"{WANTED} ranks predicted from {' and '.join(map(str, KNOWN))}: {len(found)} points"]
    lines.append(f"{'':26}{'points':>7}{'median error':>14}{'worst':>8}{'held':>8}{'half width':>12}")
    lines.append(_row("all", found))
    lines += [
        _row(f"system {name}", [t for t in found if t.system == name]) for name in sorted({t.system for t in found})
    ]
    lines += [_row(f"op {name}", [t for t in found if t.op == name]) for name in sorted({t.op for t in found})]
    error, held = np.median([trial.error for trial in found]), np.mean([trial.held for trial in found])
    met = bool(error <= _MOST_ERROR and held >= _COVER)
    bars = f"bars: median error <= {_MOST_ERROR:.0%}, held >= {_COVER:.0%}: {'met' if met else 'MISSED'}"
    return "\n".join([*lines, *_left_out(found), bars]), met


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
