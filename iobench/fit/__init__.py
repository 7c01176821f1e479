"""Latency models from measured sizes: pure NumPy and SciPy, no device.

``fit(points, kind)`` fits one series, ``fit_run(run)`` every series that a run's probes declare (MODELS in
the probe's file). Both give models with intervals, a valid range, an error and ``predict``; ``save`` and
``load`` keep them in a file.
"""

from iobench._callable import make_callable
from iobench.fit.fitted import Fitted, fit_run
from iobench.fit.fitter import fit
from iobench.fit.model import FitPoint, Measured, Model, Prediction
from iobench.fit.series import Parameter
from iobench.fit.store import load, save

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

make_callable(__name__, fit_run)
