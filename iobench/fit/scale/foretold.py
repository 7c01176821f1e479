"""How well a run's largest number of ranks is foretold from its smaller ones: the test of a model over ranks.

The curve of the most ranks is withheld, the model made of the others predicts its sizes, and the measured times are
held against that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median

from iobench.errors import UserError
from iobench.fit.scale import gather
from iobench.fit.scale.model import ScaleModel
from iobench.record import Run
from iobench.units import format_size

_LEAST_KNOWN = 2


@dataclass(frozen=True)
class Trial:
    """One model tried: which ranks from which, and (nbytes, error, within the interval) of each size."""

    series: str
    wanted: int
    known: tuple[int, ...]
    points: tuple[tuple[int, float, bool], ...]

    @property
    def sentence(self) -> str:
        """Median and worst error, and how many of the sizes lie within the interval predicted."""
        errors = [abs(error) for _, error, _ in self.points]
        worst, nbytes = max((abs(error), nbytes) for nbytes, error, _ in self.points)
        held = sum(inside for _, _, inside in self.points)
        return (
            f"{self.wanted} ranks foretold from {' and '.join(map(str, self.known))}, which this run measured: median "
            f"error {median(errors):.1%}, worst {worst:.1%} at {format_size(nbytes)}; {held} of {len(self.points)} "
            "sizes lie within the interval foretold"
        )


def trials(run: Run) -> list[Trial]:
    """Return a trial of each collective that was measured at three numbers of ranks or more of one node."""
    return [trial for model in gather.scale_models(run, gather.collectives(run)) for trial in _tried(model)]


def sentences(run: Run) -> list[tuple[str, str]]:
    """Return (series, sentence) of each trial."""
    return [(trial.series, trial.sentence) for trial in trials(run)]


def _tried(model: ScaleModel) -> Iterator[Trial]:
    curves = sorted((curve for curve in model.curves if curve.nodes == 1), key=lambda curve: curve.ranks)
    if len(curves) <= _LEAST_KNOWN:
        return
    *known, wanted = curves
    fewer, points = replace(model, curves=tuple(known)), []
    for measured in wanted.measured:
        try:
            found = fewer.predict(wanted.ranks, 1, measured.nbytes)
        except UserError:
            continue  # out of the others' reach
        inside = found.low <= measured.seconds <= found.high
        points.append((measured.nbytes, found.seconds / measured.seconds - 1, inside))
    if points:
        words = (f"{name}={value}" for name, value in model.axes.items() if name not in ("probe", "nodes"))
        ranks = tuple(curve.ranks for curve in known)
        yield Trial(" ".join([*words, model.mode]).strip(), wanted.ranks, ranks, tuple(points))
