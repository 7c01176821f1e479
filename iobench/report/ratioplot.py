"""Speed ratios over size, with the sizes at which the faster one changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib import ticker
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from iobench.compare.crossing import Crossing, Duel
from iobench.report import ticks
from iobench.report.draw import COLOURS, DASHES, INK, MARKERS, MUTED, PAPER, WIDTH
from iobench.units import format_size

_MOST_NAMED = 3  # crossings of one pair that are named; more would be noise about 1


def figure(duels: Sequence[Duel], labels: Sequence[str]) -> Figure:
    """Return the figure: each duel's ratio over size, in the colours that the second series has elsewhere."""
    made = Figure(figsize=(WIDTH, 2.75 + 0.22 * len(duels)), layout="constrained")
    axes = made.add_subplot()
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.grid(True)
    axes.axhline(1.0, color=INK, linewidth=1.2, zorder=2)
    handles = []
    for place, found in enumerate(duels, start=1):
        look: dict[str, Any] = {
            "color": COLOURS[place % len(COLOURS)],
            "marker": MARKERS[place % len(MARKERS)],
            "markersize": 4.2,
        }
        look |= {"linestyle": DASHES[place % len(DASHES)], "linewidth": 1.3}
        _draw(axes, found, look)
        handles.append(Line2D([], [], **look))
    _axes(axes, duels)
    rows = 0
    for place, found in enumerate(duels, start=1):
        if 0 < len(found.crossings) <= _MOST_NAMED:
            _crossings(axes, found, COLOURS[place % len(COLOURS)], rows)
            rows += 1
    base = duels[0].a.letter
    axes.set_title(
        f"speed over {base}'s (above 1: faster than {base})", loc="left", fontsize=9.2, color=MUTED, pad=5 + 10 * rows
    )
    made.legend(handles, labels, loc="outside lower left", ncols=1, frameon=False, fontsize=8.7, handlelength=2.6)
    return made


def _draw(axes: Any, found: Duel, look: dict[str, Any]) -> None:
    ratios = found.ratios
    sizes = [ratio.nbytes for ratio in ratios]
    axes.plot(
        sizes, [r.value for r in ratios], color=look["color"], linestyle=look["linestyle"], linewidth=1.3, zorder=3
    )
    ends = [(r.nbytes, r.low, r.high) for r in ratios if r.low is not None and r.high is not None]
    if ends:
        axes.fill_between(*zip(*ends, strict=True), color=look["color"], alpha=0.22, linewidth=0, zorder=2)
    for measured in (True, False):
        shown = [ratio for ratio in ratios if ratio.measured is measured]
        axes.plot(
            [r.nbytes for r in shown], [r.value for r in shown], linestyle="none", marker=look["marker"],
            markersize=4.2, color=look["color"], markerfacecolor=look["color"] if measured else PAPER, zorder=4,
        )  # fmt: skip


def _axes(axes: Any, duels: Sequence[Duel]) -> None:
    sizes = [float(ratio.nbytes) for found in duels for ratio in found.ratios]
    ends = [end for found in duels for r in found.ratios for end in (r.value, r.low or r.value, r.high or r.value)]
    low, high = min(0.9, *ends), max(1.1, *ends)
    room = (high / low) ** 0.05
    low, high = low / room, high * room
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(*ticks.size_ticks(sizes))
    axes.minorticks_off()
    axes.set_xlabel("message size")
    axes.set_ylim(low, high)
    wide = high / low
    steps = (
        (1.0, 2.0, 5.0)
        if wide > 30
        else (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
        if wide > 3
        else tuple(1 + step / 10 for step in range(90))
    )
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=steps, numticks=20))
    axes.yaxis.set_minor_locator(ticker.NullLocator())
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}x"))


def _crossings(axes: Any, found: Duel, colour: str, row: int) -> None:
    """Mark where the faster one changes: a dotted line, its interval shaded, its size at the top."""
    for crossing in found.crossings:
        axes.axvline(crossing.nbytes, color=colour, linewidth=1.0, linestyle=(0, (1, 2)), zorder=2)
        if crossing.low is not None and crossing.high is not None:
            axes.axvspan(crossing.low, crossing.high, color=colour, alpha=0.15, linewidth=0, zorder=1)
        _name(axes, crossing, colour, row)


def _name(axes: Any, crossing: Crossing, colour: str, row: int) -> None:
    axes.annotate(
        format_size(round(crossing.nbytes)), (crossing.nbytes, 1.0), xycoords=("data", "axes fraction"),
        xytext=(0, 2 + 9 * row), textcoords="offset points", ha="center", va="bottom", fontsize=8, color=colour,
    )  # fmt: skip
