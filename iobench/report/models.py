"""The fitted models as rows of text: one row per parameter, the series' facts on its first row."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from iobench.cxl import signature, stages
from iobench.fit import Fitted, Model, Parameter, fit_run
from iobench.fit.scale import foretold
from iobench.record import Run
from iobench.report.names import percent, range_text
from iobench.report.shortened import MOST_SERIES, spaced
from iobench.units import format_rate, format_seconds, format_size

COLUMNS = ("series", "parameter", "value", "95 % interval", "model", "valid", "leave-one-out error")
NUMERIC = (2, 3, 6)
_TEXT: dict[str, Callable[[float], str]] = {
    "s": format_seconds,
    "bytes/s": format_rate,
    "bytes": lambda value: format_size(round(value)),
}
_SIZE = re.compile(r"\b(nbytes=)([0-9]+)\b")
_OVER_RATES = ("loaded",)  # kinds whose curve is over a bandwidth, not over sizes


@dataclass(frozen=True)
class ModelsView:
    """``rows`` under COLUMNS; ``findings`` and ``missing`` (why there is no model) as (series, sentence)."""

    rows: tuple[tuple[str, ...], ...]
    findings: tuple[tuple[str, str], ...]
    missing: tuple[tuple[str, str], ...]


def models_of(run: Run) -> list[Fitted]:
    """Fit the run's series, once however many pages show them."""
    if "models" not in run.derived:
        run.derived["models"] = fit_run(run)
    found: list[Fitted] = run.derived["models"]
    return found


def view_of(run: Run) -> ModelsView:
    """Return the models of a run as text, with what they say of far memory, of a link under mixes, of more ranks."""
    view = models_view(models_of(run))
    more = (*stages.sentences(run), *signature.sentences(run), *foretold.sentences(run))
    return replace(view, findings=(*view.findings, *more))


def models_view(every: Sequence[Fitted]) -> ModelsView:
    """Return the models of a run as text; series of which the same is to be said share one sentence.

    Of more than MOST_SERIES series those at even distances are shown, and it is said.
    """
    fitted = spaced(every, MOST_SERIES)
    rows: list[tuple[str, ...]] = []
    findings: list[tuple[Fitted, str]] = []
    missing: list[tuple[Fitted, str]] = []
    for one in fitted:
        if one.model is None:
            missing.append((one, one.reason))
            continue
        rows += _rows(one, one.model)
        findings += [(one, sentence) for sentence in (*one.model.findings, *one.notes)]
    said = _alike(findings)
    if len(fitted) < len(every):
        told = f"{len(every)} series were fitted, {len(fitted)} at even distances are shown; models.json holds them all"
        said = (("all series", told), *said)
    return ModelsView(tuple(rows), said, _alike(missing))


def _alike(said: Iterable[tuple[Fitted, str]]) -> tuple[tuple[str, str], ...]:
    groups: dict[tuple[str, str], list[str]] = {}
    for one, sentence in said:
        groups.setdefault((one.probe, sentence), []).append(_name(one))
    return tuple((_names(probe, names), sentence) for (probe, sentence), names in groups.items())


def _names(probe: str, names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{probe} ({len(names)} series)"


def _name(one: Fitted) -> str:
    series = _SIZE.sub(lambda found: f"{found[1]}{format_size(int(found[2]))}", one.series)
    mode = "" if f"mode={one.mode}" in series.split() else one.mode
    return ", ".join(part for part in (f"{one.probe} {series}".strip(), mode) if part)


def _rows(one: Fitted, model: Model) -> list[tuple[str, ...]]:
    low, high = model.valid
    text = format_rate if model.kind in _OVER_RATES else format_size
    valid = f"{text(low)} – {text(high)}"
    error = percent(model.error) if math.isfinite(model.error) else "too few sizes"
    rows: list[tuple[str, ...]] = []
    for name, p in model.parameters.items():
        series, *facts = ("", "", "", "") if rows else (_name(one), model.kind, valid, error)
        rows.append((series, name, parameter_text(p, p.value), _interval(p), *facts))
    return rows


def _interval(parameter: Parameter) -> str:
    return range_text(parameter_text(parameter, parameter.low), parameter_text(parameter, parameter.high))


def parameter_text(parameter: Parameter, value: float) -> str:
    """Return a value of the parameter in its unit; "unbounded" where it is infinite."""
    if math.isinf(value):
        return "unbounded"
    if math.isnan(value):
        return "-"
    text = _TEXT.get(parameter.unit)
    return text(value) if text else f"{value:.4g} {parameter.unit}".strip()
