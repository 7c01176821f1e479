"""A fitted model: parameters with intervals, the measured points it rests on, and its predictions."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from iobench.errors import UserError
from iobench.fit import between, kinds
from iobench.fit.series import Estimate, Kind, Parameter
from iobench.units import format_size

SCHEMA = 1
_NOTHING: Mapping[str, Any] = {}
REACH = 2.0  # a model says nothing beyond this factor outside of what was measured


@dataclass(frozen=True)
class FitPoint:
    """One size with its samples: seconds per operation, one array per process launch.

    ``extra`` holds the further regressors that a kind asks for ({"files": 8}). ``aggregate`` says what each
    number is if it is not one operation's time ("mean of 20 iterations").
    """

    nbytes: int
    groups: tuple[np.ndarray, ...]
    extra: Mapping[str, Any] = field(default_factory=dict)
    aggregate: str = ""


class Measured(NamedTuple):
    """The median seconds measured at one size, with its interval."""

    nbytes: int
    seconds: float
    low: float
    high: float
    extra: Mapping[str, Any] = _NOTHING


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
    NaN where there are too few sizes to tell. ``findings`` are sentences on what the fit met. ``steps`` are sizes
    at which, by a log, another algorithm or protocol takes over.
    """

    kind: str
    parameters: dict[str, Parameter]
    valid: tuple[int, int]
    error: float
    between: float
    measured: tuple[Measured, ...]
    findings: list[str] = field(default_factory=list)
    steps: tuple[int, ...] = ()

    def curve(self, nbytes: float, **extra: Any) -> float:
        """Return what the formula alone gives, in seconds (1.0 everywhere for a kind without one)."""
        values = {name: parameter.value for name, parameter in self.parameters.items()}
        return kinds.get(self.kind).curve(values, nbytes, **extra)

    def predict(self, nbytes: int, **extra: Any) -> Prediction:
        """Return the seconds expected at ``nbytes`` (and at ``extra``, the kind's further regressors).

        A measured size gives its own median. Between sizes, transfers are predicted from their neighbours
        (fit.between), other kinds by interpolating the ratio of measured time to formula over log(nbytes), those
        with further regressors by the formula. Outside, the formula goes on from the last size measured.
        Raises UserError beyond twice the measured range.
        """
        self._check_reach(nbytes)
        kind = kinds.get(self.kind)
        if kind.predicts == "formula":
            return self._by_formula(kind, nbytes, extra)
        sizes = [point.nbytes for point in self.measured]
        right = min(max(bisect_right(sizes, nbytes), 1), len(sizes) - 1)
        left = max(right - 1, 0)
        near, far = self.measured[left], self.measured[right]
        share = _share(near.nbytes, far.nbytes, nbytes)
        inside = min(max(share, 0.0), 1.0)
        ends = [(point.seconds / self._shape(point.nbytes), point) for point in (near, far)]
        seconds = self._shape(nbytes) * _blend(ends[0][0], ends[1][0], inside)
        if kind.predicts == "neighbours" and 0 <= share <= 1:
            seconds = self._between(nbytes, seconds)
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
            "measured": [_point(point) for point in self.measured],
            "findings": list(self.findings),
            "steps": list(self.steps),
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
                steps=tuple(_size(step) for step in data.get("steps", ())),
            )
            if not model.measured or not math.isfinite(model.curve(model.valid[0], **model.measured[0].extra)):
                raise ValueError("nothing measured")
            return model
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise UserError(f"damaged model ({error}): fit it again with iobench fit") from error

    def _between(self, nbytes: int, otherwise: float) -> float:
        """Return the neighbours' prediction on this side of every step, ``otherwise`` where it has one size."""
        sizes = [point.nbytes for point in self.measured]
        # the log names sizes that were measured: in between, the change is taken to be half way
        edges = [math.sqrt(sizes[sizes.index(step) - 1] * step) for step in self.steps if step in sizes[1:]]
        number = bisect_right(edges, nbytes)
        near = [point for point in self.measured if bisect_right(edges, point.nbytes) == number]
        if len(near) < 2:
            return otherwise
        for end, beyond in ((near[0], nbytes < near[0].nbytes), (near[-1], nbytes > near[-1].nbytes)):
            if beyond:
                return end.seconds * self._shape(nbytes) / self._shape(end.nbytes)
        return float(between.predict(*_knots(near), np.array([float(nbytes)]))[0])

    def _by_formula(self, kind: Kind, nbytes: int, extra: Mapping[str, Any]) -> Prediction:
        """Return the formula's value; its doubt is the leave-one-out error, twice for an interval."""
        if set(extra) != set(kind.extras):
            wanted = ", ".join(kind.extras) or "nothing else"
            example = " ".join(f"-a {name}={value}" for name, value in self.measured[0].extra.items())
            such = f" ({example})" if example else ""
            raise UserError(f"beside the size a {self.kind} model predicts from {wanted}: give that by name{such}")
        seconds = self.curve(nbytes, **extra)
        if not math.isfinite(seconds):
            raise UserError(f"the {self.kind} model has no finite time there: what was measured does not tell it")
        doubt = 1 + 2 * (self.error if math.isfinite(self.error) else 0.0)
        return Prediction(seconds, seconds / doubt, seconds * doubt)

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


def between_error(kind: Kind, estimate: Estimate, points: Sequence[Measured]) -> float:
    """Return the mean absolute relative error of predicting each inner size from the others; NaN for none."""
    if kind.predicts == "formula":
        return estimate.error
    if kind.predicts == "neighbours":
        return float(neighbours_errors(*_knots(points))[0])
    values = {name: parameter.value for name, parameter in estimate.parameters.items()}
    errors = _ratio_errors(kind, values, points)
    return float(np.mean(errors)) if errors else math.nan


def neighbours_errors(sizes: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """Return ``between_error`` of kinds that predict from neighbours, for each row of sizes and seconds."""
    errors = between.left_out(sizes, seconds)
    return errors.mean(axis=1) if errors.shape[1] else np.full(len(errors), math.nan)


def _knots(points: Sequence[Measured]) -> tuple[np.ndarray, np.ndarray]:
    """Return sizes and seconds as one row each."""
    sizes, seconds = (np.array([[float(getattr(point, name)) for point in points]]) for name in ("nbytes", "seconds"))
    return sizes, seconds


def _ratio_errors(kind: Kind, values: Mapping[str, float], points: Sequence[Measured]) -> list[float]:
    errors = []
    for left, here, right in zip(points, points[1:], points[2:], strict=False):
        shapes = [max(kind.curve(values, point.nbytes), 1e-15) for point in (left, here, right)]
        share = _share(left.nbytes, right.nbytes, here.nbytes)
        guess = shapes[1] * _blend(left.seconds / shapes[0], right.seconds / shapes[2], share)
        errors.append(abs(guess / here.seconds - 1))
    return errors


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
    seconds, low, high = (_positive(data[name]) for name in ("seconds", "low", "high"))
    return Measured(_size(data["nbytes"]), seconds, low, high, dict(data.get("extra") or {}))


def _point(point: Measured) -> dict[str, Any]:
    nbytes, seconds, low, high, extra = point
    plain = {"nbytes": nbytes, "seconds": seconds, "low": low, "high": high}
    return plain | {"extra": dict(extra)} if extra else plain


def _pair(data: Sequence[Any]) -> tuple[int, int]:
    low, high = data
    return _size(low), _size(high)
