"""Predict one operation's time from a run, a models file or a published curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from iobench import busbytes
from iobench._callable import make_callable
from iobench.errors import UserError
from iobench.fit import kinds, machine_models
from iobench.fit.fitted import Fitted
from iobench.fit.machine_models import MachineModels
from iobench.fit.scale.model import ScaleModel
from iobench.units import format_rate, format_seconds, format_size

_PREFERRED = {"inplace": False}  # where nobody chose: what nccl-tests prints first


@dataclass(frozen=True)
class Query:
    """What is asked: a collective (``op``, ``ranks``, ``nodes``) or any probe's series, at ``nbytes``.

    ``axes`` narrow the choice ({"dtype": "float16"}); their values are compared as text.
    """

    nbytes: int
    op: str = ""
    probe: str = ""
    ranks: int = 0
    nodes: int = 1
    axes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Forecast:
    """Seconds with the interval in which they are expected; ``low`` and ``high`` None where none can be known.

    ``axis`` is what the query's nbytes are (fit.series.Kind): bytes of a message, the span of a working set, or the
    bytes/s of a load.
    """

    query: Query
    series: str
    seconds: float
    low: float | None
    high: float | None
    basis: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    axis: str = "bytes"

    @property
    def algbw(self) -> float | None:
        """Bytes asked for per second; None where they are not what is moved in that time."""
        return self.query.nbytes / self.seconds if self.axis == "bytes" else None

    @property
    def busbw(self) -> float | None:
        """Bus bandwidth in bytes/s, None for what is no collective."""
        if not self.query.op or self.query.ranks < 2 or self.algbw is None:
            return None
        return self.algbw * busbytes.factor(self.query.op, self.query.ranks)

    def text(self) -> str:
        """Return the forecast in lines for a terminal."""
        span = "no interval can be known" if self.low is None else f"{format_seconds(self.low)} to "
        span += "" if self.high is None else format_seconds(self.high)
        at = f"{format_rate(self.query.nbytes)} of load" if self.axis == "bytes/s" else format_size(self.query.nbytes)
        lines = [f"{self.series}, {at}"]
        lines.append(f"  time   {format_seconds(self.seconds)}  ({span})")
        if self.algbw is not None:
            lines.append(f"  algbw  {format_rate(self.algbw)}")
        if self.busbw is not None:
            lines.append(f"  busbw  {format_rate(self.busbw)}")
        lines += [f"  rests on: {sentence}" for sentence in self.basis]
        lines += [f"  note: {sentence}" for sentence in self.warnings]
        return "\n".join(lines)


def predict(spec: str | Path | Sequence[str | Path] | MachineModels, query: Query) -> Forecast:
    """Return the forecast of ``query``; UserError where the data cannot support one.

    ``spec`` is a run, a log, a models file, published:NAME, or several of them whose counts of nodes differ.
    """
    models = spec if isinstance(spec, MachineModels) else _open(spec)
    if query.op:
        return _collective(models, query)
    return _plain(models, query)


def _open(spec: str | Path | Sequence[str | Path]) -> MachineModels:
    return machine_models.open_all([spec] if isinstance(spec, (str, Path)) else spec)


def _collective(models: MachineModels, query: Query) -> Forecast:
    if query.ranks < 2:
        raise UserError("a collective needs at least two ranks: say how many with --ranks")
    if query.nodes < 1 or query.ranks % query.nodes:
        raise UserError(f"{query.ranks} ranks do not spread evenly over {query.nodes} nodes: choose other counts")
    known = sorted({model.op for model in models.scale})
    found = [model for model in models.scale if model.op == query.op]
    if not found:
        have = f"it has {', '.join(known)}" if known else "it has no collectives"
        raise UserError(
            f"{query.op} was never measured on {models.machine}; {have}: measure it, or choose one of these"
        )
    found = _narrow(found, query)
    reaching = [model for model in found if _reaches(model, query)] or found
    model = _only([(one.axes | {"mode": one.mode}, one) for one in reaching])
    measured = _measured(models, model, query)
    label = _label(model, query)
    if measured is not None:
        return _by_size(measured, query, label, models)
    scaled = model.predict(query.ranks, query.nodes, query.nbytes)
    basis = [*scaled.basis, *_rests_on(models)]
    return Forecast(query, label, scaled.seconds, scaled.low, scaled.high, basis, scaled.warnings)


def _plain(models: MachineModels, query: Query) -> Forecast:
    probes = sorted({one.probe for one in models.series})
    found = [one for one in models.series if not query.probe or one.probe == query.probe]
    if not found:
        raise UserError(f"{query.probe or 'nothing'} was not measured on {models.machine}; it has {', '.join(probes)}")
    found = [one for one in found if _matches(_axes(one), _without(query.axes, kinds.get(one.kind).extras))]
    if not found:
        raise UserError(f"no series has {_words(query.axes)}; iobench fit shows what there is")
    one = _only([(_axes(one), one) for one in found])
    return _by_size(one, query, f"{one.probe} {one.series}", models)


def _axes(one: Fitted) -> dict[str, Any]:
    return one.axes | {"mode": one.mode, "probe": one.probe, "kind": one.kind}


def _without(axes: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    return {name: value for name, value in axes.items() if name not in names}


def _by_size(one: Fitted, query: Query, label: str, models: MachineModels) -> Forecast:
    if one.model is None:
        raise UserError(f"{one.series}: {one.reason}")
    kind = kinds.get(one.kind)
    asked = {name: _value(query.axes[name]) for name in kind.extras if name in query.axes}
    got = one.model.predict(query.nbytes, **asked)
    known = got.high > got.low
    sizes = [point.nbytes for point in one.model.measured]
    between = (
        "measured at this size" if query.nbytes in sizes else f"between {len(sizes)} measured sizes ({one.kind} model)"
    )
    basis = [between, *_rests_on(models)]
    low, high = (got.low, got.high) if known else (None, None)
    notes = [*one.notes, *one.model.findings]
    return Forecast(query, label, got.seconds, low, high, basis, notes, axis=kind.axis)


def _measured(models: MachineModels, model: ScaleModel, query: Query) -> Fitted | None:
    wanted = {**model.axes, "ranks": query.ranks, "nodes": query.nodes}
    return next((one for one in models.series if one.axes == wanted and one.mode == model.mode), None)


def _reaches(model: ScaleModel, query: Query) -> bool:
    """Tell whether a model knows this number of nodes at all: inside a node and between nodes are different links."""
    return any((curve.nodes == 1) == (query.nodes == 1) for curve in model.curves)


def _narrow(found: Sequence[ScaleModel], query: Query) -> list[ScaleModel]:
    kept = [model for model in found if _matches(model.axes | {"mode": model.mode}, query.axes)]
    if not kept:
        raise UserError(f"no {query.op} with {_words(query.axes)}; iobench fit shows what there is")
    for name, value in _PREFERRED.items():
        if name not in query.axes:
            kept = [model for model in kept if model.axes.get(name, value) == value] or kept
    return kept


def _only(found: Sequence[tuple[Mapping[str, Any], Any]]) -> Any:
    """Return the one that is left; UserError that names an axis to choose by where there are several."""
    if len(found) == 1:
        return found[0][1]
    names = sorted({name for axes, _ in found for name in axes})
    for name in sorted(names, key=lambda name: (name != "probe", name != "kind")):
        values = sorted({str(axes[name]) for axes, _ in found if name in axes})
        if len(values) > 1:
            raise UserError(
                f"{len(found)} series fit: {name} is {' or '.join(values[:6])}; "
                f"choose one, as in -a {name}={values[-1]}"
            )
    return found[0][1]


def _value(text: str) -> int | str:
    return int(text) if text.isdigit() else text


def _matches(axes: Mapping[str, Any], wanted: Mapping[str, str]) -> bool:
    return all(str(axes.get(name, "")).lower() == value.lower() for name, value in wanted.items())


def _words(axes: Mapping[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in axes.items()) or "these axes"


def _label(model: ScaleModel, query: Query) -> str:
    where = f"{query.ranks} ranks" + (f" on {query.nodes} nodes" if query.nodes > 1 else "")
    rest = " ".join(f"{name}={value}" for name, value in model.axes.items() if name != "op")
    return f"{query.op} of {where}" + (f" ({rest})" if rest else "")


def _rests_on(models: MachineModels) -> list[str]:
    what = models.rests_on
    return [f"{what['records']} records of {what['run']}"] if what else []


make_callable(__name__, predict)
