"""All models of one machine in one file: topologies/<machine>.models.json, for planners and for predictions.

The file: type, schema, machine, what it was fitted to (run, date, number of records), the units of every figure,
``series`` (one model over size each, see fit.store) and ``scale`` (one collective over ranks and nodes each).
The same run gives the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iobench import files, sources
from iobench.errors import UserError
from iobench.fit import store
from iobench.fit.fitted import Fitted, fit_run
from iobench.fit.scale import gather
from iobench.fit.scale.model import ScaleModel
from iobench.record import Run, dumps
from iobench.units import format_rate, format_seconds

TYPE = "machine-models"
SCHEMA = 1
UNITS = {
    "seconds, low, high": "s",
    "nbytes, valid": "bytes",
    "parameters": "each has its unit",
    "error, between": "fraction of the time",
}
_AGAIN = "make it again with iobench fit RUN --save FILE"
_HEAD = 4096


@dataclass(frozen=True)
class MachineModels:
    """The models of one machine and what they rest on."""

    machine: str
    rests_on: dict[str, Any]
    series: tuple[Fitted, ...]
    scale: tuple[ScaleModel, ...]

    def summary(self) -> str:
        """Return one line per collective: counts measured, latency per hop, bandwidth, with units and ranges."""
        return "\n".join(line for model in self.scale for line in _scale_lines(model))

    def save(self, path: str | Path) -> Path:
        """Write the file; UserError where it cannot be written."""
        file = Path(path)
        data = {
            "type": TYPE,
            "schema": SCHEMA,
            "machine": self.machine,
            "rests_on": self.rests_on,
            "units": UNITS,
            "series": [store.to_dict(one) for one in self.series],
            "scale": [one.to_dict() for one in self.scale],
        }
        text = json.dumps(json.loads(dumps(data)), indent=1, ensure_ascii=False) + "\n"
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            files.replace(file, text)
        except OSError as error:
            raise UserError(f"cannot write {file}: {error.strerror}; choose another file with --save") from error
        return file


def _scale_lines(model: ScaleModel) -> Iterator[str]:
    rest = " ".join([model.mode, *(f"{name}={value}" for name, value in model.axes.items() if name != "op")]).strip()
    counts = ", ".join(f"{c.ranks}" + (f" on {c.nodes} nodes" if c.nodes > 1 else "") for c in model.curves)
    yield f"{model.op} ({rest}): {counts} ranks"
    for name, value in model.parameters.items():
        show = format_rate if value.unit == "bytes/s" else format_seconds
        yield f"  {name}: {show(value.value)} ({show(value.low)} to {show(value.high)})"


def of_run(run: Run) -> MachineModels:
    """Fit every series of ``run``: what its probes declare, and its collectives over size, ranks and nodes."""
    groups = gather.collectives(run)
    declared = [one for one in fit_run(run) if not gather.is_collective({**one.axes, "nbytes": 1})]
    rests_on = {
        "run": run.header.run_id,
        "created": run.header.created,
        "iobench": run.header.version,
        "records": sum(1 for record in run if record.used),
    }
    found = (*declared, *gather.series(groups))
    return MachineModels(run.machine, rests_on, found, tuple(gather.scale_models(run, groups)))


def open(spec: str | Path) -> MachineModels:
    """Return the models that ``spec`` names: a models file, or a run, log or published curve fitted on the fly.

    Raises UserError where it is none of these or holds nothing to fit.
    """
    path = Path(spec)
    if path.suffix == ".json" and path.is_file():
        return load(path)
    models = of_run(sources.open(spec))
    if not models.series and not models.scale:
        raise UserError(f"{spec} holds no series that a model can be fitted to; measure several sizes of one operation")
    return models


def open_all(specs: Sequence[str | Path]) -> MachineModels:
    """Return the models of several runs as one: curves of one collective at several counts join (first one wins)."""
    opened = [open(spec) for spec in specs]
    if len(opened) == 1:
        return opened[0]
    joined: dict[str, ScaleModel] = {}
    for model in (model for models in opened for model in models.scale):
        key = dumps([model.mode, sorted(model.axes.items())])
        joined[key] = joined[key].joined(model) if key in joined else model
    names = list(dict.fromkeys(models.machine for models in opened))
    runs = [str(models.rests_on.get("run", spec)) for spec, models in zip(specs, opened, strict=True)]
    counts = sum(int(models.rests_on.get("records", 0)) for models in opened)
    series = tuple(one for models in opened for one in models.series)
    return MachineModels(" + ".join(names), {"run": ", ".join(runs), "records": counts}, series, tuple(joined.values()))


def load(path: Path) -> MachineModels:
    """Read what ``save`` wrote, or the models.json beside a run; UserError where it is damaged or foreign."""
    try:
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; {_AGAIN}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is no JSON: {_AGAIN}") from error
    if isinstance(data, Mapping) and data.get("type") == "models":
        return MachineModels(path.parent.name, {}, tuple(store.load(path)), ())
    if not isinstance(data, Mapping) or data.get("type") != TYPE or data.get("schema") != SCHEMA:
        raise UserError(f"{path} holds no machine's models of schema {SCHEMA}: {_AGAIN}")
    try:
        series = tuple(store.from_dict(one) for one in data["series"])
        scale = tuple(ScaleModel.from_dict(one) for one in data["scale"])
        return MachineModels(str(data["machine"]), dict(data["rests_on"]), series, scale)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path} is damaged ({error!r}): {_AGAIN}") from error
