"""Fitted models as a JSON file, for planners and for later predictions without the run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from iobench import files
from iobench.errors import UserError
from iobench.fit.fitted import Fitted
from iobench.fit.model import Model
from iobench.record import dumps

SCHEMA = 1


def save(fitted: Iterable[Fitted], path: str | Path) -> Path:
    """Write models and the reasons for missing ones to ``path``, one a line; UserError where it cannot be written."""
    file = Path(path)
    try:
        files.replace(file, _texts(fitted))
    except OSError as error:
        raise UserError(
            f"cannot write {file}: {error.strerror}; the records are safe, choose another folder with --out"
        ) from error
    return file


def _texts(fitted: Iterable[Fitted]) -> Iterator[str]:
    yield f'{{"type": "models", "schema": {SCHEMA}, "models": ['
    for place, one in enumerate(fitted):
        yield f"{',' if place else ''}\n{_text(one)}"
    yield "\n]}\n"


def _text(one: Fitted) -> str:
    """Return one series as one line of JSON; the slow way where something in it is no plain number or word."""
    data = to_dict(one)
    try:
        text = json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
        text.encode()
    except (ValueError, TypeError):
        return dumps(data)
    return text


def load(path: str | Path) -> list[Fitted]:
    """Read what ``save`` wrote; UserError where it is damaged, foreign or of another schema."""
    file = Path(path)
    try:
        data = json.loads(file.read_bytes())
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}; make it with iobench fit RUN") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file} is no JSON: make it again with iobench fit RUN") from error
    if not isinstance(data, Mapping) or data.get("type") != "models" or data.get("schema") != SCHEMA:
        raise UserError(f"{file} holds no models of schema {SCHEMA}: make it again with iobench fit RUN")
    try:
        return [from_dict(one) for one in data["models"]]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{file} is damaged ({error!r}): make it again with iobench fit RUN") from error


def to_dict(one: Fitted) -> dict[str, Any]:
    """Return plain data for JSON."""
    return vars(one) | {"model": one.model.to_dict() if one.model else None}


def from_dict(data: Mapping[str, Any]) -> Fitted:
    """Rebuild from ``to_dict``'s data; KeyError, TypeError or UserError where it is not such data."""
    model = None if data["model"] is None else Model.from_dict(data["model"])
    words = {name: str(data[name]) for name in ("series", "probe", "mode", "kind", "reason")}
    return Fitted(**words, axes=dict(data["axes"]), model=model, notes=[str(note) for note in data["notes"]])
