"""Latency models from measured sizes: pure NumPy and SciPy, no device.

``fit(points, kind)`` fits one series, ``fit_run(run)`` every series that a run's probes declare (MODELS in
the probe's file). Both give models with intervals, a valid range, an error and ``predict``; ``save`` and
``load`` keep them in a file.
"""

from __future__ import annotations

from typing import Any

from iobench._callable import make_callable
from iobench.fit.fitted import Fitted, fit_run
from iobench.fit.fitter import fit
from iobench.fit.model import FitPoint, Measured, Model, Prediction
from iobench.fit.series import Parameter
from iobench.fit.store import load, save
from iobench.record import Run

__all__ = [
    "FitPoint",
    "Fitted",
    "Measured",
    "Model",
    "Parameter",
    "Prediction",
    "fit",
    "fit_run",
    "load",
    "save",
]


def _verb(data: Any, *args: Any, **options: Any) -> Model | list[Fitted]:
    """Fit every declared series of a Run, or one model to FitPoints: iobench.fit(run), iobench.fit(points)."""
    return fit_run(data, *args, **options) if isinstance(data, Run) else fit(data, *args, **options)


make_callable(__name__, _verb)
