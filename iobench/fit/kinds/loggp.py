"""LogGP of messages (Alexandrov et al., SPAA 1995): T = L + 2o + (S-1)G one way, max(g, o) + (S-1)G each in a stream.

Which series a time belongs to is its regressor "test": "latency" (one way: half a ping-pong), "bandwidth"
(seconds per message with many in flight) or "overhead" (the CPU's time to post one). L and o are told apart
only by the last, g and o only where g is larger; what is not identifiable is said and has no parameter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from iobench.errors import UserError
from iobench.fit import linear
from iobench.fit.series import Estimate, Kind, Parameter, Series
from iobench.units import format_seconds

TESTS = ("latency", "bandwidth", "overhead")
_COLUMNS = {"latency": "L+2o", "bandwidth": "max(g,o)", "overhead": "o"}
_LEAST = 2  # sizes of a test, for its part to mean anything


def estimate(series: Series, options: Mapping[str, Any]) -> Estimate:
    """Fit G and the constant of each test in ``series``."""
    del options
    tests = np.array([str(test) for test in series.extra["test"]])
    foreign = sorted(set(tests) - set(TESTS))
    if foreign:
        raise UserError(f"'{foreign[0]}' is no test of LogGP: give one of {', '.join(TESTS)}")
    columns = {_COLUMNS[test]: (tests == test).astype(float) for test in TESTS if (tests == test).any()}
    # posting takes the CPU as long for a large message as for a small one
    columns["G"] = np.where(tests == "overhead", 0.0, series.nbytes - 1)
    fitted = linear.fit(series, columns, dict.fromkeys(columns, "s") | {"G": "s/byte"})
    found = dict(fitted.found)
    findings = _unknown(tests, found, fitted.dropped)
    if "o" in found and "L+2o" in found:
        found["L"] = _latency(found["L+2o"], found["o"])
    if "G" in found:
        found["B"] = linear.inverse(found["G"], "bytes/s")
    return Estimate(found, fitted.error, findings)


def curve(parameters: Mapping[str, float], nbytes: float, test: str = "latency") -> float:
    """Return the seconds of one message of ``nbytes`` in ``test``; infinite where the test was not measured."""
    constant = parameters.get(_COLUMNS.get(test, ""), float("inf"))
    return constant if test == "overhead" else constant + (nbytes - 1) * parameters.get("G", 0.0)


def _latency(both: Parameter, overhead: Parameter) -> Parameter:
    value = both.value - 2 * overhead.value
    return Parameter(
        max(0.0, value), max(0.0, both.low - 2 * overhead.high), max(0.0, both.high - 2 * overhead.low), "s"
    )


def _unknown(tests: np.ndarray, found: Mapping[str, Parameter], dropped: tuple[str, ...]) -> list[str]:
    out = []
    if "G" in dropped:
        out.append("G is not identifiable: all messages have one size; measure larger ones too")
    if "latency" not in tests:
        out.append("L + 2o is not identifiable: no latency was measured; add a ping-pong (test=latency)")
    if "bandwidth" not in tests:
        out.append("g is not identifiable: no stream of messages was measured; add one (test=bandwidth) at small sizes")
    if "overhead" not in tests:
        out.append(
            "L and o are not told apart: only L + 2o is known; the CPU's time to post (test=overhead) would tell"
        )
    elif "max(g,o)" in found and found["max(g,o)"].low <= found["o"].high:
        o = format_seconds(found["o"].value)
        out.append(f"g is not identifiable: posting ({o}) limits the rate of messages, so g is at most that")
    few = [test for test in TESTS[:2] if 0 < (tests == test).sum() < _LEAST]
    if few:
        out.append(f"test={few[0]} has one size: measure a sweep of sizes")
    return out


KIND = Kind(
    "loggp",
    "T = L + 2o + (S-1)G; per message max(g, o) + (S-1)G",
    least=4,
    estimate=estimate,
    curve=curve,
    extras=("test",),
    predicts="formula",
)
