"""What an exporter is given, and how it is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from iobench import sources
from iobench.errors import UserError
from iobench.fit import machine_models
from iobench.fit.machine_models import MachineModels
from iobench.fit.scale.curve import Curve
from iobench.fit.scale.model import ScaleModel
from iobench.record import Run


@dataclass(frozen=True)
class Options:
    """What a user may choose: the op (some formats hold one only) and the size that one figure stands for."""

    op: str = ""
    nbytes: int = 0


@dataclass(frozen=True)
class Source:
    """Models, and the run behind them where there is one (a models file keeps no single records)."""

    name: str
    models: MachineModels
    run: Run | None

    @classmethod
    def open(cls, spec: str | Path) -> Source:
        """Open what ``spec`` names; UserError where it can't be read or holds nothing to fit."""
        path = Path(spec)
        if path.suffix == ".json" and path.is_file():
            return cls(path.name, machine_models.load(path), None)
        run = sources.open(spec)
        return cls(str(run.header.run_id), machine_models.of_run(run), run)

    def scale(self, op: str) -> ScaleModel | None:
        """Return the model of ``op`` that holds the most points, out of place before in place; None for none."""
        found = [model for model in self.models.scale if model.op == op]
        return max(found, key=_weight, default=None)

    def need(self, op: str) -> ScaleModel:
        """Return the model of ``op``; UserError where it was not measured."""
        model = self.scale(op)
        if model is None:
            have = ", ".join(sorted({one.op for one in self.models.scale})) or "no collectives"
            raise UserError(f"{self.name} holds no {op} (it has {have}): measure it, or choose another with --op")
        return model


@dataclass(frozen=True)
class Format:
    """One export format: its name, what reads it, and the function that writes it."""

    name: str
    reader: str
    write: Callable[[Source, Options], str]


def widest(model: ScaleModel, nodes: int) -> Curve | None:
    """Return the curve of the most ranks on ``nodes`` nodes, None where there is none."""
    found = [curve for curve in model.curves if curve.nodes == nodes]
    return max(found, key=lambda curve: curve.ranks, default=None)


def _weight(model: ScaleModel) -> tuple[bool, int]:
    return model.axes.get("inplace") is not True, sum(len(curve.measured) for curve in model.curves)
