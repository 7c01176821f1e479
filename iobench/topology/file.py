"""Topology files: the graph as JSON, one node and one link per line, so that a change shows as one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from iobench import files
from iobench.errors import UserError
from iobench.topology.graph import Topology


def load(path: str | Path) -> Topology:
    """Read a topology file; UserError where it is missing, unreadable or not one."""
    try:
        return Topology.from_dict(json.loads(Path(path).read_text(encoding="utf-8")))
    except OSError as error:
        raise UserError(
            f"cannot read {path}: {error.strerror}; write one with 'iobench topology --save FILE'"
        ) from error
    except (ValueError, AttributeError, RecursionError) as error:  # not JSON, not UTF-8, not a topology
        reason = str(error).splitlines()[0][:120]
        raise UserError(
            f"{path} is not a topology file ({reason}); write one with 'iobench topology --save FILE'"
        ) from error


def save(topology: Topology, path: str | Path) -> None:
    """Write a topology file; UserError where that is impossible."""
    try:
        files.replace(Path(path), dumps(topology))
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; choose another place") from error


def dumps(topology: Topology) -> str:
    """Return the text of a topology file."""
    data = topology.to_dict()
    head = [f' "{key}": {_line(data[key])},' for key in ("schema", "name", "facts")]
    lists = [f' "{key}": [\n{_lines(data[key])}\n ]' for key in ("nodes", "links")]
    return "{\n" + "\n".join(head) + "\n" + ",\n".join(lists) + "\n}\n"


def _lines(rows: list[Any]) -> str:
    return ",\n".join(f"  {_line(row)}" for row in rows)


def _line(value: Any) -> str:
    return json.dumps(value, allow_nan=False)
