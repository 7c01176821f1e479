"""Synthetic curves of known breaks, rates and fixed costs: are they found again, do the intervals hold them?

A curve has one to four stretches of at least ``_APART`` sizes, each with its own a and B; at a break time jumps by a
quarter at least, up or down. Every sample is scattered by its iteration, and by its launch at every size alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from iobench.fit.fitter import fit
from iobench.fit.model import FitPoint, Model

LOW, HIGH = 0.90, 0.99  # of the intervals must hold the truth
FOUND = 0.95  # of the curves must have every break within one grid step
_SIZES = 2 ** np.arange(3, 31)
_APART = 5
_MOST = 4


@dataclass(frozen=True)
class Shape:
    """How a trial's samples come about."""

    name: str
    launches: int
    iterations: int
    noise: float  # of an iteration, relative
    launch_noise: float  # of a launch, at every size


SHAPES = (
    Shape("3 launches x 10, launches alike", 3, 10, 0.03, 0.0),
    Shape("3 launches x 10, launches differ by 1 %", 3, 10, 0.03, 0.01),
    Shape("1 launch x 20", 1, 20, 0.03, 0.0),
    Shape("one value for each size", 1, 1, 0.02, 0.0),
)


@dataclass(frozen=True)
class Truth:
    """A curve: seconds at each size, the index of each stretch's first size, and (a, B) of each."""

    seconds: np.ndarray
    starts: tuple[int, ...]
    stretches: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Outcome:
    """One trial: were all breaks found within a grid step, and which intervals held (by parameter's letter)."""

    found: bool
    held: tuple[tuple[str, bool], ...]


def truth(rng: np.random.Generator) -> Truth:
    """Return a random curve."""
    pieces = int(rng.integers(1, _MOST + 1))
    starts = _starts(rng, pieces)
    seconds = np.empty(len(_SIZES))
    stretches = []
    a, rate = rng.uniform(4e-6, 12e-6), 10 ** rng.uniform(8.5, 9.5)
    for start, end in zip(starts, (*starts[1:], len(_SIZES)), strict=True):
        seconds[start:end] = a + _SIZES[start:end] / rate
        stretches.append((float(a), float(rate)))
        if end < len(_SIZES):
            jump = rng.uniform(1.25, 2.0) ** rng.choice((-1, 1))
            there = (a + _SIZES[end] / rate) * jump
            share = rng.uniform(0.3, 0.95)  # of that time, the part that does not grow
            a, rate = there * share, _SIZES[end] / (there * (1 - share))
    return Truth(seconds, starts, tuple(stretches))


def _starts(rng: np.random.Generator, pieces: int) -> tuple[int, ...]:
    free = len(_SIZES) - pieces * _APART
    cuts = np.sort(rng.integers(0, free + 1, pieces - 1)) + _APART * np.arange(1, pieces)
    return (0, *(int(cut) for cut in cuts))


def points(curve: Truth, shape: Shape, rng: np.random.Generator) -> list[FitPoint]:
    """Return samples of ``curve``."""
    effects = np.exp(rng.normal(0, shape.launch_noise, shape.launches))
    return [
        FitPoint(
            int(nbytes),
            tuple(seconds * effect * np.exp(rng.normal(0, shape.noise, shape.iterations)) for effect in effects),
        )
        for nbytes, seconds in zip(_SIZES, curve.seconds, strict=True)
    ]


def outcome(curve: Truth, model: Model) -> Outcome:
    """Compare a fitted model with the truth; parameters count only where every break was found."""
    breaks = [model.parameters[name] for name in model.parameters if name.startswith("break")]
    found = len(breaks) == len(curve.starts) - 1 and all(
        _SIZES[start - 2] <= one.value <= _SIZES[start + 1] for one, start in zip(breaks, curve.starts[1:], strict=True)
    )
    if not found:
        return Outcome(False, ())
    held = []
    for number, pair in enumerate(curve.stretches, 1):
        for letter, wanted in zip("aB", pair, strict=True):
            one = model.parameters[f"{letter}{number}"]
            held.append((letter, one.low <= wanted <= one.high))
    for one, start in zip(breaks, curve.starts[1:], strict=True):
        held.append(("break", one.low <= _SIZES[start] and _SIZES[start - 1] <= one.high))
    return Outcome(True, tuple(held))


def run(shape: Shape, count: int, seed: int = 0) -> Iterator[Outcome]:
    """Yield ``count`` trials of ``shape``, the same for the same seed."""
    for number in range(count):
        rng = np.random.default_rng((seed, number))
        curve = truth(rng)
        yield outcome(curve, fit(points(curve, shape, rng), "piecewise", number))


def table(count: int) -> tuple[str, bool]:
    """Return the table of all shapes, ``count`` trials each, and whether every bar is met."""
    lines = [f"{count} synthetic curves of {len(_SIZES)} sizes, 1 to {_MOST} stretches; intervals of 95 %"]
    lines.append(f"{'samples':42}{'breaks found':>14}{'a held':>9}{'B held':>9}{'break held':>12}")
    met = True
    for shape in SHAPES:
        outcomes = list(run(shape, count))
        found = float(np.mean([one.found for one in outcomes]))
        held = {name: rate(outcomes, name) for name in ("a", "B", "break")}
        met &= found >= FOUND and all(LOW <= held[name] <= HIGH for name in "aB")
        lines.append(
            f"{shape.name:42}{found:>14.1%}" + "".join(f"{held[name]:>{9 if name in 'aB' else 12}.1%}" for name in held)
        )
    lines.append(
        f"bar: breaks within one grid step in {FOUND:.0%} or more, a and B held in {LOW:.0%} to {HIGH:.0%}: "
        f"{'met' if met else 'MISSED'}"
    )
    return "\n".join(lines), met


def rate(outcomes: list[Outcome], letter: str) -> float:
    """Return the part of the intervals of a, B or break that held the truth."""
    return float(np.mean([good for one in outcomes for name, good in one.held if name == letter]))
