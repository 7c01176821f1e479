"""A fitted model: parameters with intervals, the measured points it rests on, and its predictions."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from iobench.errors import UserError
from iobench.fit import kinds
from iobench.fit.series import Parameter
from iobench.units import format_size

SCHEMA = 1
REACH = 2.0  # a model says nothing beyond this factor outside of what was measured


@dataclass(frozen=True)
class FitPoint:
    """One size with its samples: seconds per operation, one array per process launch."""

    nbytes: int
    groups: tuple[np.ndarray, ...]


@dataclass(frozen=True)
class Measured:
    """The median seconds measured at one size, with its interval."""

    nbytes: int
    seconds: float
    low: float
    high: float


@dataclass(frozen=True)
class Prediction:
    """Seconds of one operation, with the interval in which it is expected."""

    seconds: float
    low: float
    high: float


@dataclass(frozen=True)
class Model:
    """What ``fit`` returns.

    ``valid`` is the measured range in bytes. ``error`` is the leave-one-size-out error of the formula,
    ``between`` that of ``predict`` between measured sizes: mean absolute relative errors (0.05 = 5 %),
    NaN where there are too few sizes to tell. ``findings`` are sentences on what the fit met.
    """

    kind: str
    parameters: dict[str, Parameter]
    valid: tuple[int, int]
    error: float
    between: float
    measured: tuple[Measured, ...]
    findings: list[str] = field(default_factory=list)

    def curve(self, nbytes: float) -> float:
        """Return what the formula alone gives, in seconds (1.0 everywhere for a kind without one)."""
        values = {name: parameter.value for name, parameter in self.parameters.items()}
        return kinds.get(self.kind).curve(values, nbytes)

    def predict(self, nbytes: int) -> Prediction:
        """Return the seconds expected at ``nbytes``.

        Between measured sizes the ratio of measured time to formula is interpolated over log(nbytes), so a
        measured size gives its own median. Outside, the formula goes on from the last one measured.
        Raises UserError beyond twice the measured range.
        """
        self._check_reach(nbytes)
        sizes = [point.nbytes for point in self.measured]
        right = min(max(bisect_right(sizes, nbytes), 1), len(sizes) - 1)
        left = max(right - 1, 0)
        near, far = self.measured[left], self.measured[right]
        share = _share(near.nbytes, far.nbytes, nbytes)
        inside = min(max(share, 0.0), 1.0)
        ends = [(point.seconds / self._shape(point.nbytes), point) for point in (near, far)]
        seconds = self._shape(nbytes) * _blend(ends[0][0], ends[1][0], inside)
        slack = 1.0 + self._slack(nbytes, inside)
        low = seconds * _blend(near.low / near.seconds, far.low / far.seconds, inside) / slack
        high = seconds * _blend(near.high / near.seconds, far.high / far.seconds, inside) * slack
        return Prediction(seconds, low, high)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON: units in words, null for a bound that is infinite or unknown."""
        return {
            "schema": SCHEMA,
            "kind": self.kind,
            "parameters": {name: _numbers(vars(value)) for name, value in self.parameters.items()},
            "valid": list(self.valid),
            "error": _number(self.error),
            "between": _number(self.between),
            "measured": [vars(point).copy() for point in self.measured],
            "findings": list(self.findings),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Model:
        """Rebuild a model from ``to_dict``'s data; UserError where it is damaged or of another schema."""
        if not isinstance(data, Mapping) or data.get("schema") != SCHEMA:
            raise UserError(f"not a model of schema {SCHEMA}: fit it again with iobench fit")
        kinds.get(str(data.get("kind")))
        try:
            model = cls(
                kind=data["kind"],
                parameters={name: _parameter(value) for name, value in data["parameters"].items()},
                valid=_pair(data["valid"]),
                error=_float(data["error"], math.nan),
                between=_float(data["between"], math.nan),
                measured=tuple(_measured(point) for point in data["measured"]),
                findings=[str(sentence) for sentence in data["findings"]],
            )
            if not model.measured or not math.isfinite(model.curve(model.valid[0])):
                raise ValueError("nothing measured")
            return model
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise UserError(f"damaged model ({error}): fit it again with iobench fit") from error

    def _shape(self, nbytes: float) -> float:
        # a formula that gives 0 (a = 0 at a size of 0 bytes) cannot guide
        return max(self.curve(nbytes), 1e-15)

    def _slack(self, nbytes: int, inside: float) -> float:
        """Return the relative doubt added to the measured intervals: none at a measured size."""
        between = self.between if math.isfinite(self.between) else self.error
        doubt = between if math.isfinite(between) else 0.0
        if self.valid[0] <= nbytes <= self.valid[1]:
            return doubt * 4 * inside * (1 - inside)
        outside = max(self.valid[0] / nbytes, nbytes / self.valid[1])
        return doubt * math.log(outside) / math.log(REACH)

    def _check_reach(self, nbytes: int) -> None:
        low, high = self.valid
        if nbytes <= 0:
            raise UserError(f"{nbytes} is no size to predict: give at least 1 byte")
        if low / REACH <= nbytes <= high * REACH:
            return
        raise UserError(
            f"cannot predict {format_size(nbytes)}: measured were {format_size(low)} to {format_size(high)} and the "
            f"model holds to twice that; measure this size first, as in -a nbytes={nbytes}"
        )


def between_error(points: Sequence[Measured], curve: Any) -> float:
    """Return the mean absolute relative error of interpolating each inner size from its neighbours; NaN for none."""
    errors = []
    for left, here, right in zip(points, points[1:], points[2:], strict=False):
        ratios = [point.seconds / max(curve(point.nbytes), 1e-15) for point in (left, right)]
        share = _share(left.nbytes, right.nbytes, here.nbytes)
        guess = max(curve(here.nbytes), 1e-15) * _blend(ratios[0], ratios[1], share)
        errors.append(abs(guess / here.seconds - 1))
    return float(np.mean(errors)) if errors else math.nan


def _share(left: int, right: int, nbytes: int) -> float:
    """Return where ``nbytes`` lies between two sizes on a logarithmic scale: 0 at the left, 1 at the right."""
    return 0.0 if left == right else math.log(nbytes / left) / math.log(right / left)


def _blend(left: float, right: float, share: float) -> float:
    return math.exp((1 - share) * math.log(left) + share * math.log(right))


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value if isinstance(value, str) else _number(value) for name, value in values.items()}


def _float(value: Any, unknown: float) -> float:
    if value is None:
        return unknown
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{value!r} is no number")
    return float(value)


def _positive(value: Any) -> float:
    number = _float(value, 0.0)
    if not 0 < number < math.inf:
        raise ValueError(f"{value!r} is no positive number")
    return number


def _size(value: Any) -> int:
    number = _positive(value)
    if number != int(number):
        raise ValueError(f"{value!r} is no size")
    return int(number)


def _parameter(data: Mapping[str, Any]) -> Parameter:
    value, low, high = (_float(data[name], math.inf) for name in ("value", "low", "high"))
    return Parameter(value, low, high, str(data["unit"]))


def _measured(data: Mapping[str, Any]) -> Measured:
    return Measured(_size(data["nbytes"]), _positive(data["seconds"]), _positive(data["low"]), _positive(data["high"]))


def _pair(data: Sequence[Any]) -> tuple[int, int]:
    low, high = data
    return _size(low), _size(high)
