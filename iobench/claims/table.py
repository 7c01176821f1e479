"""A table of claims: CSV with a line of column names, or TOML with [[claim]] tables of the same keys.

what       in words (needed)
op         all_reduce and the other collectives, copy, read (storage), load (memory)
machine    name of GPUs or system, and of the network ("A100 HDR"), as in topologies/classes.toml
ranks, nodes, algo   of a collective
transport  nvlink, ib, pcie, nvme, cxl, dram
link       one link and its width: pcie4x16, nvlink3x6
stages     times in ns that add up, as "82+146+98"
nbytes     size, as in 8, 64MiB, 1200MB; left out where it was not published
us, ns, ms or GBps   the figure (one of them); plus_minus in the same unit
note       how the claim was read
"""

from __future__ import annotations

import csv
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iobench import busbytes
from iobench.errors import UserError
from iobench.paths import data_dir
from iobench.units import GB, MS, NS, US, parse_size

_TIMES = {"us": US, "ns": NS, "ms": MS}
COLUMNS = (
    "what", "op", "machine", "ranks", "nodes", "algo", "transport", "link", "stages", "nbytes", *_TIMES, "GBps",
    "plus_minus", "note",
)  # fmt: skip
OPS = (*busbytes.OPS, "copy", "read", "load")
_LINK = re.compile(r"(pcie|nvlink)(\d)x(\d{1,2})")
_MOST = 10_000


@dataclass(frozen=True)
class Claim:
    """One published figure. ``seconds`` or ``bytes_per_s`` is the figure; the other follows where the size is known."""

    what: str
    op: str
    figure: str
    seconds: float | None
    bytes_per_s: float | None
    nbytes: int | None = None
    machine: str = ""
    ranks: int = 0
    nodes: int = 1
    algo: str = ""
    transport: str = ""
    link: tuple[str, int, int] | None = None
    stages: tuple[float, ...] = ()
    spread: float | None = None
    note: str = ""


def read(path: str | Path) -> list[Claim]:
    """Read a table of claims; UserError with the row where one is damaged."""
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8-sig")
        rows = _toml(text) if file.suffix == ".toml" else _csv(text)
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}; try {shipped()}") from error
    except (ValueError, csv.Error) as error:
        raise UserError(f"{file} is no table of claims ({error}); columns: {', '.join(COLUMNS)}") from error
    if not rows or len(rows) > _MOST:
        raise UserError(f"{file} holds {len(rows)} claims: give a header and 1 to {_MOST} rows")
    return [_claim(f"{file}: claim {number}", row) for number, row in enumerate(rows, start=1)]


def shipped() -> Path:
    """Return the table that ships with iobench."""
    return data_dir("topologies") / "claims" / "sits2026.csv"


def _csv(text: str) -> list[dict[str, Any]]:
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return list(csv.DictReader(lines, restkey="a cell without a name", skipinitialspace=True))


def _toml(text: str) -> list[dict[str, Any]]:
    rows = tomllib.loads(text).get("claim")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError("no [[claim]] tables")
    return rows


def _claim(where: str, row: Mapping[Any, Any]) -> Claim:
    unknown = [name for name in row if name not in COLUMNS]
    if unknown:
        raise UserError(f"{where}: unknown column {unknown[0]!r}; columns: {', '.join(COLUMNS)}")
    told = {str(name): str(value).strip() for name, value in row.items() if value is not None and str(value).strip()}
    figures = [name for name in (*_TIMES, "GBps") if name in told]
    if len(figures) != 1 or "what" not in told or "op" not in told:
        raise UserError(f"{where}: give what, op, and one figure: {', '.join(_TIMES)} or GBps")
    if told["op"] not in OPS:
        raise UserError(f"{where}: unknown op {told['op']!r}; it is one of {', '.join(OPS)}")
    try:
        return _built(told, figures[0])
    except (UserError, ValueError) as error:
        raise UserError(f"{where}: {error}; see the columns in the README") from error


def _built(told: Mapping[str, str], name: str) -> Claim:
    value = _positive(told[name])
    scale = _TIMES.get(name, GB)
    nbytes = parse_size(told["nbytes"]) if "nbytes" in told else None
    seconds = value * scale if name in _TIMES else nbytes / (value * scale) if nbytes else None
    rate = value * scale if name == "GBps" else nbytes / seconds if nbytes and seconds else None
    unit = "GB/s" if name == "GBps" else name
    spread = told.get("plus_minus")
    return Claim(
        what=told["what"],
        op=told["op"],
        figure=f"{told[name]}{f' +- {spread}' if spread else ''} {unit}",
        seconds=seconds,
        bytes_per_s=rate,
        nbytes=nbytes,
        machine=told.get("machine", ""),
        ranks=_count("ranks", told["ranks"]) if "ranks" in told else 0,
        nodes=_count("nodes", told.get("nodes", "1")),
        algo=told.get("algo", ""),
        transport=told.get("transport", ""),
        link=_link(told["link"]) if "link" in told else None,
        stages=tuple(_positive(part) * NS for part in told.get("stages", "").split("+") if part),
        spread=_positive(spread) * scale if spread else None,
        note=told.get("note", ""),
    )


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is no number") from error
    if not 0 < number < math.inf:
        raise ValueError(f"{text} is no positive number")
    return number


def _count(name: str, text: str) -> int:
    number = _positive(text)
    if number != int(number) or number > 10**7:
        raise ValueError(f"{text} is no number of {name}")
    return int(number)


def _link(text: str) -> tuple[str, int, int]:
    match = _LINK.fullmatch(text)
    if not match:
        raise ValueError(f"{text} is no link: write pcie4x16 or nvlink3x6")
    return match[1], int(match[2]), int(match[3])
