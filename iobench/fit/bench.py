"""How well sizes that were left out are predicted: this package beside simpler methods, on a table of curves.

Each inner size of a curve of the table (fit.curvetable) is predicted from the others (leave-one-size-out); a
curve's figure is the mean absolute relative error, a method's the median over curves and the worst curve.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from iobench.errors import UserError
from iobench.fit import between, curvetable, segments

DTYPE = "half"
MEDIAN_BAR, WORST_BAR = 0.034, 0.18
LEAST = 5  # sizes of a curve: three inner ones at least

Method = Callable[[np.ndarray, np.ndarray, float], float]


@dataclass
class Curves:
    """Curves by their name: sizes in bytes and seconds, rising; ``left_out`` says what was not used and why."""

    curves: dict[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)


def read(path: Path, dtype: str = DTYPE) -> Curves:
    """Read the curves of ``dtype`` from a table; UserError for a file that is no such table or has none."""
    table = curvetable.read(path)
    out = Curves(left_out=list(table.left_out))
    points: dict[str, dict[int, list[float]]] = {}
    for row in table.rows:
        if row.dtype == dtype:
            name = " ".join(word for word in (*row.names[:4], str(row.gpus)) if word)
            points.setdefault(name, {}).setdefault(row.nbytes, []).append(row.seconds)
    for name, sizes in points.items():
        if len(sizes) < LEAST:
            count = "1 size" if len(sizes) == 1 else f"{len(sizes)} sizes"
            out.left_out.append(f"{name}: {count}, {LEAST} are needed")
            continue
        ordered = sorted(sizes)
        # a size measured twice (two versions in one table) counts once
        out.curves[name] = np.array(ordered, dtype=float), np.array([np.median(sizes[n]) for n in ordered])
    if not out.curves:
        other = ", ".join(sorted({row.dtype for row in table.rows} - {dtype})[:6])
        have = f" (it has {other})" if other else ""
        raise UserError(f"{path} holds no curve of dtype {dtype} with {LEAST} sizes or more{have}; give one that does")
    return out


def left_out_errors(sizes: np.ndarray, seconds: np.ndarray, method: Method) -> np.ndarray:
    """Return the relative error at each inner size, predicted by ``method(sizes, seconds, wanted)`` from the others."""
    errors = []
    for index in range(1, len(sizes) - 1):
        keep = np.arange(len(sizes)) != index
        errors.append(abs(method(sizes[keep], seconds[keep], float(sizes[index])) / seconds[index] - 1))
    return np.array(errors)


def ours(sizes: np.ndarray, seconds: np.ndarray, wanted: float) -> float:
    """Return what a model predicts between measured sizes."""
    return float(between.predict(sizes[None, :], seconds[None, :], np.array([wanted]))[0])


def piecewise(sizes: np.ndarray, seconds: np.ndarray, wanted: float) -> float:
    """Return the piecewise formula alone, without its neighbours."""
    weights = np.ones(len(sizes))
    return segments.at(sizes, seconds, weights, segments.search(sizes, seconds[None, :], weights)[0], wanted)


def relative(sizes: np.ndarray, seconds: np.ndarray, wanted: float) -> float:
    """Return a + S/B by relative least squares, neither negative."""
    (a,), (inverse,) = segments.solve(sizes, seconds[None, :], np.ones(len(sizes)))
    return float(a + inverse * wanted)


def ordinary(sizes: np.ndarray, seconds: np.ndarray, wanted: float) -> float:
    """Return a + S/B by ordinary least squares."""
    inverse, a = np.polyfit(sizes, seconds, 1)
    return float(a + inverse * wanted)


def log_log(sizes: np.ndarray, seconds: np.ndarray, wanted: float) -> float:
    """Return the straight line between neighbours in logarithms of size and time."""
    return float(np.exp(np.interp(np.log(wanted), np.log(sizes), np.log(seconds))))


def straight(sizes: np.ndarray, seconds: np.ndarray, wanted: float) -> float:
    """Return the straight line between neighbours."""
    return float(np.interp(wanted, sizes, seconds))


METHODS: dict[str, Method] = {
    "iobench (between sizes)": ours,
    "iobench (piecewise formula)": piecewise,
    "alpha-beta, ordinary": ordinary,
    "alpha-beta, relative": relative,
    "log-log lines": log_log,
    "straight lines": straight,
}


def table(curves: Curves) -> tuple[str, bool]:
    """Return the table of methods with the bar's verdict, and whether both bars are met."""
    lines = [f"each inner size left out in turn: {len(curves.curves)} curves; mean |relative error| of a curve"]
    lines.append(f"{'method':28}{'median':>9}{'worst':>9}  worst curve")
    figures = {}
    for label, method in METHODS.items():
        means = {
            name: float(left_out_errors(sizes, seconds, method).mean())
            for name, (sizes, seconds) in curves.curves.items()
        }
        worst = max(means, key=lambda name: means[name])
        figures[label] = float(np.median(list(means.values()))), means[worst]
        lines.append(f"{label:28}{figures[label][0]:>9.2%}{figures[label][1]:>9.2%}  {worst}")
    lines += curvetable.shown(curves.left_out)
    median, worst_error = figures[next(iter(METHODS))]
    met = median <= MEDIAN_BAR and worst_error <= WORST_BAR
    lines.append(
        f"bar: median <= {MEDIAN_BAR:.1%}, worst <= {WORST_BAR:.0%}: {'met' if met else 'MISSED'} "
        f"({median:.2%}, {worst_error:.2%})"
    )
    return "\n".join(lines), met
