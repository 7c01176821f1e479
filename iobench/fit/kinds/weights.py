"""Loading a checkpoint: T = a + files*f + S/B, over sizes and numbers of files.

``a`` is what starting costs, ``f`` what each file costs (opening, its header, its tail), B the rate of the bytes.
f needs checkpoints of one size in different numbers of files: otherwise it is not told apart from a or from
1/B, is left out, and that is said.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from iobench.errors import UserError
from iobench.fit import linear
from iobench.fit.series import Estimate, Kind, Series

_POOR = 0.20


def estimate(series: Series, options: Mapping[str, Any]) -> Estimate:
    """Fit a, f and B to ``series``, whose extra regressor is "files"."""
    del options
    files = _files(series)
    columns = {"a": np.ones_like(series.nbytes), "1/B": series.nbytes, "f": files}
    fitted = linear.fit(series, columns, {"a": "s", "1/B": "s/byte", "f": "s"})
    found = dict(fitted.found)
    findings = _findings(fitted, files)
    if "1/B" in found:
        found["B"] = linear.inverse(found.pop("1/B"), "bytes/s")
    return Estimate(found, fitted.error, findings)


def curve(parameters: Mapping[str, float], nbytes: float, files: float = 0.0) -> float:
    """Return T = a + files*f + S/B in seconds."""
    return parameters.get("a", 0.0) + files * parameters.get("f", 0.0) + nbytes / parameters.get("B", float("inf"))


def _files(series: Series) -> np.ndarray:
    try:
        files = np.array([float(value) for value in series.extra["files"]])
    except (TypeError, ValueError) as error:
        raise UserError(f"files must be numbers ({error}): give how many files each checkpoint has") from error
    if not (np.isfinite(files) & (files >= 1)).all():
        raise UserError("a checkpoint has 1 file at least: give how many files each has")
    return files


def _findings(fitted: linear.Linear, files: np.ndarray) -> list[str]:
    out = []
    if "f" in fitted.dropped:
        why = "is the same everywhere" if np.ptp(files) == 0 else "goes with the size"
        part = "a" if np.ptp(files) == 0 else "1/B"
        out.append(
            f"f is not identifiable: the number of files {why}, so its cost is in {part}; "
            "measure one size in 1 and in 16 files"
        )
    if "1/B" in fitted.dropped:
        out.append("B is not identifiable: every checkpoint has the same size; measure two sizes at least")
    if fitted.error > _POOR:
        out.append(
            f"poor fit: left-out points are missed by {fitted.error * 100:.0f} % on average; read it as a summary only"
        )
    return out


KIND = Kind(
    "weights",
    "T = a + files*f + S/B",
    least=4,
    estimate=estimate,
    curve=curve,
    extras=("files",),
    predicts="formula",
    more="-a nbytes=256M,1G -a shards=1,16",
)
