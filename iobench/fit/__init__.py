"""Latency models from measured sizes: pure NumPy and SciPy, no device.

``fit(points, kind)`` fits one series, ``fit_run(run)`` every series that a run's probes declare (MODELS in
the probe's file). Both give models with intervals, a valid range, an error and ``predict``.
"""

from iobench.fit.fitted import Fitted, fit_run
from iobench.fit.fitter import fit
from iobench.fit.model import FitPoint, Measured, Model, Prediction
from iobench.fit.series import Parameter

__all__ = ["FitPoint", "Fitted", "Measured", "Model", "Parameter", "Prediction", "fit", "fit_run"]
