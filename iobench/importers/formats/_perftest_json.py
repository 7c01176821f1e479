"""The JSON object of one perftest run: its parameters, its figures, and the unit that its bandwidths have."""

from __future__ import annotations

from typing import Any

from iobench.importers.formats._rows import count, number
from iobench.units import MIB, from_gigabits

_PARAMETERS = {
    "Connection_type": "Connection type", "Number_of_qps": "Number of qps", "TX_depth": "TX depth", "Mtu": "Mtu",
    "Device": "Device",
}  # fmt: skip
_FIGURES = {
    "#bytes": "MsgSize", "#iterations": "n_iterations", "BW peak": "BW_peak", "BW average": "BW_average",
    "MsgRate": "MsgRate", "t_min": "t_min", "t_max": "t_max", "t_typical": "t_typical", "t_avg": "t_avg",
    "99% percentile": "percentile_99",
}  # fmt: skip
_UNITS = (("Gb/sec", from_gigabits(1.0)), ("MiB/sec", float(MIB)))
_AGREES = 0.03


def parameters(info: dict[str, Any]) -> dict[str, str]:
    """Return the run's parameters by the names that the table's banner has."""
    return {to: str(info[key]).strip() for key, to in _PARAMETERS.items() if key in info}


def figures(results: dict[str, Any]) -> dict[str, str]:
    """Return the figures by the names of the table's columns."""
    found = {name: str(results.get(key, "")) for name, key in _FIGURES.items()}
    found["99.9% percentile"] = str(results.get("percentile_99.9", results.get("percentile_99_9", "")))
    return {name: text for name, text in found.items() if text not in {"", "None"}}


def unit(info: dict[str, Any], results: dict[str, Any], latency: bool | None) -> str:
    """Return the unit of a bandwidth: named in newer files, else the one that agrees with the message rate."""
    named = str(info.get("BW_unit", results.get("BW_unit", "")))
    if named:
        return named
    rate, average = number(str(results.get("MsgRate"))), number(str(results.get("BW_average")))
    nbytes = count(str(results.get("MsgSize")))
    if latency or not rate or not average or not nbytes:
        return ""
    agreeing = (name for name, scale in _UNITS if abs(average * scale / (rate * 1e6 * nbytes) - 1) < _AGREES)
    return next(agreeing, "")
