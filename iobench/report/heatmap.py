"""A matrix as a figure: numbers in cells whose lightness follows them, so that a grey print can be read."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from iobench.report.draw import INK, MUTED, WIDTH

_MOST_COLUMNS = 11
_DARK, _LIGHT = "#101418", "#ffffff"  # not the page's ink and paper, which turn round in the dark: cells stay
_STRONGEST = 0.85  # of the colour map, so that the darkest cell's number is still seen to be on blue


def thinned(sizes: Sequence[int]) -> list[int]:
    """Return so many of the sizes as fit into one figure, the first and the last among them."""
    if len(sizes) <= _MOST_COLUMNS:
        return list(sizes)
    step = (len(sizes) - 1) / (_MOST_COLUMNS - 1)
    return [sizes[round(place * step)] for place in range(_MOST_COLUMNS)]


def figure(
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[float | None]],
    lowest: float = 1.0,
    names: tuple[str, str] = ("", "message size"),
    text: Callable[[float], str] | None = None,
    highest: float | None = None,
    title: str = "",
) -> Figure:
    """Return the matrix [row][column] of positive numbers; darker is more, by logarithm from ``lowest`` to ``highest``.

    None is hatched. ``names`` are those of the rows' and the columns' axis, ``text`` writes a cell's number,
    ``title`` says what the numbers are.
    """
    known = [value for row in values for value in row if value is not None]
    most = max([*known, lowest * 1.5, highest or 0.0])
    made = Figure(figsize=(WIDTH, 0.62 + 0.3 * len(rows) + 0.2 * bool(title)), layout="constrained")
    axes = made.add_subplot()
    for y, row in enumerate(values):
        for x, value in enumerate(row):
            _cell(axes, x, y, value, lowest, most, text or number)
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xticks(range(len(columns)), columns, fontsize=7.4, rotation=30 if len("".join(columns)) > 36 else 0)
    axes.set_yticks(range(len(rows)), rows)
    axes.tick_params(length=0)
    axes.set_ylabel(names[0])
    axes.set_xlabel(names[1])
    if title:
        axes.set_title(title, loc="left", fontsize=9.2, color=MUTED, pad=5)
    for side in axes.spines.values():
        side.set_visible(False)
    return made


def _cell(
    axes: mpl.axes.Axes,
    x: int,
    y: int,
    value: float | None,
    lowest: float,
    most: float,
    text: Callable[[float], str],
) -> None:
    box = (x - 0.48, y - 0.46)
    if value is None:
        axes.add_patch(Rectangle(box, 0.96, 0.92, facecolor="none", edgecolor=MUTED, linewidth=0.5, hatch="////"))
        return
    share = max(0.0, math.log(value / lowest) / math.log(most / lowest)) * _STRONGEST
    colour = mpl.colormaps["Blues"](share)
    lightness = 0.2126 * colour[0] + 0.7152 * colour[1] + 0.0722 * colour[2]
    axes.add_patch(Rectangle(box, 0.96, 0.92, facecolor=colour, edgecolor=INK, linewidth=0.4))
    axes.text(
        x, y, text(value), ha="center", va="center", fontsize=7.6, color=_DARK if lightness > 0.5 else _LIGHT,
        fontweight="bold" if value <= lowest else "normal",
    )  # fmt: skip


def number(value: float) -> str:
    """Return a number of a cell in three digits at most where it is no whole one ("1", "1.05", "12.3", "140")."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
