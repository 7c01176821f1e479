"""Pairs of GPUs as heat maps: each run's matrix, and where two are compared the ratio of both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from matplotlib.figure import Figure

from iobench.compare.contrasts import Match
from iobench.compare.curves import Curve
from iobench.report import heatmap
from iobench.report.contrast_figures import ContrastFigure
from iobench.units import format_rate, format_seconds

ENDS = (("gpu", "peer"), ("src", "dst"))
_LEAST = 6  # pairs: fewer are read off the table
_MOST = 12  # figures: further ways are in the table only
_Cells = dict[tuple[Any, Any], float]


@dataclass(frozen=True)
class Matrix:
    """One run's numbers between ends: bytes/s or seconds by (row, column)."""

    title: str
    ends: tuple[str, str]
    rate: bool
    cells: _Cells


def matrices_of(matches: Sequence[Match]) -> list[ContrastFigure]:
    """Return the heat maps of what was measured between pairs of ends, in each run and as B over A."""
    groups: dict[tuple[str, ...], list[Match]] = {}
    for match in matches:
        ends = _ends(match.curves[0])
        if ends and all(curve.axes.get(end) == match.curves[0].axes[end] for curve in match.curves for end in ends):
            groups.setdefault(_way(match.curves[0], ends), []).append(match)
    found: list[ContrastFigure] = []
    for way, group in groups.items():
        if len(group) >= _LEAST and len(found) < _MOST:
            found += _figures(way, group, len(found))
    return found


def _ends(curve: Curve) -> tuple[str, str] | None:
    return next((ends for ends in ENDS if all(end in curve.axes for end in ends)), None)


def _way(curve: Curve, ends: tuple[str, str]) -> tuple[str, ...]:
    axes = (
        f"{axis} {value}" if not isinstance(value, str) else value
        for axis, value in curve.axes.items()
        if axis not in ends
    )
    return (curve.probe, curve.quantity, curve.mode, *axes)


def _figures(way: tuple[str, ...], group: Sequence[Match], before: int) -> list[ContrastFigure]:
    matrices = [_matrix(way, group, letter) for letter in sorted({c.letter for match in group for c in match.curves})]
    every = [value for matrix in matrices for value in matrix.cells.values()]
    scale = (min(every), max(every))  # one for all, so that equal numbers are equally dark
    figures = [_drawn(matrix, before + number, scale) for number, matrix in enumerate(matrices, start=1)]
    if len(matrices) == 2:
        figures.append(_ratio(way, matrices[0], matrices[1], before + 3))
    return figures


def _matrix(way: tuple[str, ...], group: Sequence[Match], letter: str) -> Matrix:
    ends = _ends(group[0].curves[0]) or ENDS[0]
    rate = group[0].curves[0].quantity == "bandwidth" and all(c.records[0].moved for m in group for c in m.curves)
    cells: _Cells = {}
    for match in group:
        for curve in match.curves:
            if curve.letter == letter:
                seconds = curve.at(match.sizes[0]).seconds
                cells[curve.axes[ends[0]], curve.axes[ends[1]]] = (
                    curve.moved_at(match.sizes[0]) / seconds if rate else seconds
                )
    return Matrix(f"{letter}: {_words(way)}", ends, rate, cells)


def _words(way: tuple[str, ...]) -> str:
    return f"{way[0]}: {', '.join(dict.fromkeys(word for word in way[3:] if word))}"


def _drawn(matrix: Matrix, number: int, scale: tuple[float, float]) -> ContrastFigure:
    text = short_number if matrix.rate else format_seconds
    unit = "GB/s" if matrix.rate else "time"
    caption = f"{matrix.title}, {unit} from each {matrix.ends[0]} (row) to each {matrix.ends[1]} (column)."
    return _figure(matrix, number, f"{matrix.title}, {unit}", caption, text, scale)


def _ratio(way: tuple[str, ...], a: Matrix, b: Matrix, number: int) -> ContrastFigure:
    cells = {pair: _speed(a, pair, b) for pair in a.cells if pair in b.cells}
    title = f"B over A: {_words(way)}"
    matrix = replace(a, cells=cells)
    caption = f"{title}: B's speed over A's; above 1 B is faster."
    return _figure(matrix, number, title, caption, heatmap.number, (min(cells.values()), max(cells.values())))


def _speed(a: Matrix, pair: tuple[Any, Any], b: Matrix) -> float:
    return b.cells[pair] / a.cells[pair] if a.rate else a.cells[pair] / b.cells[pair]


def _figure(
    matrix: Matrix, number: int, title: str, caption: str, text: Callable[[float], str], scale: tuple[float, float]
) -> ContrastFigure:
    cells = matrix.cells
    rows, columns = (sorted({pair[place] for pair in cells}, key=_order) for place in (0, 1))
    values = [[cells.get((row, column)) for column in columns] for row in rows]
    lowest = scale[0] / 1.2  # the least is not white: white is what was not measured
    alt = "; ".join(f"{row} to {column}: {text(cells[row, column])}" for row, column in cells)

    def build() -> Figure:
        return heatmap.figure(_names(rows), _names(columns), values, lowest, matrix.ends, text, scale[1])

    return ContrastFigure(f"compare-matrix-{number}", title, caption, f"{title}. {alt}", build)


def _names(ends: Sequence[Any]) -> list[str]:
    return [str(end) for end in ends]


def short_number(bytes_per_s: float) -> str:
    """Return a rate as a number of GB/s with three digits."""
    return format_rate(bytes_per_s).removesuffix(" GB/s")


def _order(value: Any) -> tuple[bool, Any]:
    return (False, value) if isinstance(value, int) else (True, str(value))
