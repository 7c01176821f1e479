"""nixlbench: its table of block and batch sizes, of all versions; columns are told by their names.

"GB/Sec" are decimal. The sweep that the configuration above the table announces is held against the rows there are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from iobench.importers.formats._rows import count, keep, number, rated, untag, wrong
from iobench.importers.imported import Imported
from iobench.importers.log import Log
from iobench.record import Line
from iobench.units import GB

TITLE = "nixlbench"
STATE = False

_NAMES = (
    "Block Size (B)", "Batch Size", "Avg Lat. (us)", "B/W (MiB/Sec)", "B/W (GiB/Sec)", "Aggregate B/W (GB/Sec)",
    "B/W (GB/Sec)", "Network Util (%)", "Avg Prep (us)", "P99 Prep (us)", "Avg Post (us)", "P99 Post (us)",
    "Avg Tx (us)", "P99 Tx (us)",
)  # fmt: skip
_HEADING = re.compile("|".join(re.escape(name) for name in _NAMES))
_OPTION = re.compile(r"^\s*[A-Z][^():]{2,60}\(--(\w+)=[^)]*\)\s*:\s*(\S+)")
_ROW = re.compile(r"^\s*[0-9]+\s+[0-9]+\s+[0-9.]+")
_AXES = {"backend": "backend", "op_type": "op", "initiator_seg_type": "initiator", "target_seg_type": "target", "scheme": "scheme", "num_threads": "threads", "mode": "mode"}  # fmt: skip  # noqa: E501


@dataclass
class State:
    """The configuration and the heading above the rows."""

    options: dict[str, str] = field(default_factory=dict)
    columns: list[str] = field(default_factory=list)
    seen: set[tuple[int, int]] = field(default_factory=set)


def recognise(head: str) -> float:
    """Tell it by its heading, or by its configuration alone."""
    if re.search(r"Block Size \(B\)\s+Batch Size\s+", head):
        return 1.0
    return 0.8 if "NIXLBench Configuration" in head else 0.0


def read(log: Log) -> Imported:
    """Read every row; rows that the sweep announces and the log lacks make it incomplete."""
    imported, state = Imported(), State()
    for place, raw in enumerate(log.lines, start=1):
        line = untag(raw)
        if "NIXLBench Configuration" in line:
            _end(imported, state)
            state = State()
        elif option := _OPTION.match(line):
            state.options[option[1]] = option[2]
        elif "Block Size (B)" in line:
            state.columns = _HEADING.findall(line)
        elif state.columns and _ROW.match(line):
            _row(imported, state, place, line)
        elif "Consistency check failed" in line:
            imported.problem(f"line {place}: nixlbench found wrong data")
            for made in imported.lines[-1:]:
                wrong(made, "nixlbench: consistency check failed")
    _end(imported, state)
    return imported


def _row(imported: Imported, state: State, place: int, text: str) -> None:
    words = text.split()
    if len(words) != len(state.columns):
        imported.skip(place, text, f"{len(words)} figures under {len(state.columns)} headings")
        return
    printed = dict(zip(state.columns, words, strict=True))
    block, batch = count(printed.get("Block Size (B)")), count(printed.get("Batch Size"))
    rate = number(printed.get("B/W (GB/Sec)"))
    line: Line | None = None
    imported.rows += 1
    if block and batch and rate:
        state.seen.add((block, batch))
        point: dict[str, Any] = {axis: state.options[name].lower() if axis != "threads" else (count(state.options[name]) or 1) for name, axis in _AXES.items() if name in state.options}  # fmt: skip  # noqa: E501
        point["batch"] = batch
        line = rated(
            "nixl", point, rate * GB, block, mode="pipelined", moved_rule="the block, per worker",
            aggregate="mean over nixlbench's iterations", evidence={"row": place, "printed": printed},
        )  # fmt: skip
    keep(imported, line, place, text, "no positive rate")


def _end(imported: Imported, state: State) -> None:
    planned = _planned(state.options)
    missing = sorted(planned - state.seen)
    if not state.seen and (state.options or state.columns):
        sentence = "nixlbench ended before its first row"
    elif planned and missing:
        sentence = f"{len(missing)} of {len(planned)} rows of the sweep are missing, the first at block {missing[0][0]}, batch {missing[0][1]}"  # fmt: skip  # noqa: E501
    else:
        return
    imported.incomplete = f"{imported.incomplete}; {sentence}" if imported.incomplete else sentence


def _planned(options: dict[str, str]) -> set[tuple[int, int]]:
    """Return the block and batch sizes of the sweep, each doubling; none where it is not said."""
    values = [count(options.get(name)) for name in ("start_block_size", "max_block_size", "start_batch_size", "max_batch_size")]  # fmt: skip  # noqa: E501
    if not all(values):
        return set()
    block, most_block, first_batch, most_batch = (int(value or 0) for value in values)
    planned: set[tuple[int, int]] = set()
    while block <= most_block and len(planned) < 10000:
        batch = first_batch
        while batch <= most_batch:
            planned.add((block, batch))
            batch *= 2
        block *= 2
    return planned
