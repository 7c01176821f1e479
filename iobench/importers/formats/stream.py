"""STREAM (5.8 to 5.10): the table of Copy, Scale, Add and Triad. "MB/s" are 1,000,000 bytes; the rate is the best of
all repetitions, so it is compared with nothing but other best ones. A failed validation is wrong data.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from iobench.importers.formats._rows import keep, number, rated, untag, wrong
from iobench.importers.imported import Imported
from iobench.importers.log import Log
from iobench.record import Line
from iobench.units import MB

TITLE = "STREAM"
STATE = False

_HEADING = re.compile(r"^\s*Function\s+(?:Best )?Rate (?:\()?MB/s(?:\))?\s+Avg time\s+Min time\s+Max time")
_ROW = re.compile(r"^\s*(Copy|Scale|Add|Triad):\s+(\S+)\s+(\S+)\s+(\S+)\s+(\S+)\s*$", re.IGNORECASE)
_SIZE = re.compile(r"^\s*Array size = *([0-9]{1,15})\b")
_ELEMENT = re.compile(r"^\s*This system uses ([0-9]{1,2}) bytes per (?:array element|DOUBLE PRECISION word)")
_THREADS = re.compile(
    r"^\s*Number of Threads counted = ([0-9]{1,6})|^\s*Number of Threads (?:requested )?= *([0-9]{1,6})\b"
)
_TIMES = re.compile(r"^\s*(?:Each kernel|Each test) will be (?:executed|run) ([0-9]{1,9}) times")
_ARRAYS = {"copy": 2, "scale": 2, "add": 3, "triad": 3}


def recognise(head: str) -> float:
    """Tell STREAM by its table's heading."""
    if "Function" in head and re.search(_HEADING.pattern.removeprefix("^"), head):
        return 1.0
    return 0.8 if "STREAM version $Revision" in head else 0.0


def read(log: Log) -> Imported:
    """Read the rows of every run in the log."""
    imported, facts = Imported(), dict[str, int]()
    blocks: list[list[Line]] = []
    valid = 0
    for place, raw in enumerate(log.lines, start=1):
        line = untag(raw)
        _facts(line, facts)
        if _HEADING.match(line):
            blocks.append([])
        elif blocks and (row := _ROW.match(line)):
            _row(imported, blocks[-1], facts, place, row)
        elif "Solution Validates" in line and blocks:
            valid += 1
            _validated(blocks[-1])
        elif "Failed Validation" in line:
            imported.problem(f"line {place}: STREAM's own check failed: {line.strip()[:120]}")
            for made in blocks[-1] if blocks else ():
                wrong(made, f"STREAM: {line.strip()[:120]}")
    _end(imported, blocks, valid)
    return imported


def _facts(line: str, facts: dict[str, int]) -> None:
    if match := _SIZE.match(line):
        facts["elements"] = int(match[1])
    elif match := _ELEMENT.match(line):
        facts["element"] = int(match[1])
    elif match := _THREADS.match(line):
        facts["threads"] = int(match[1] or match[2])
    elif match := _TIMES.match(line):
        facts["times"] = int(match[1])


def _row(imported: Imported, block: list[Line], facts: dict[str, int], place: int, row: re.Match[str]) -> None:
    kernel = row[1].lower()
    rate, least = number(row[2]), number(row[4])
    imported.rows += 1
    nbytes = facts.get("elements", 0) * facts.get("element", 0) * _ARRAYS[kernel]
    point: dict[str, Any] = {"kernel": kernel, "stores": "as compiled"}
    if facts.get("threads"):
        point["threads"] = facts["threads"]
    evidence = {"row": place, "printed": list(row.groups()[1:]), "unit": "MB/s (1e6), s", "array_elements": facts.get("elements")}  # fmt: skip  # noqa: E501
    times = facts.get("times")
    line = rated(
        "dram", point, (rate or 0.0) * MB, nbytes, mode="stream", evidence=evidence,
        moved_rule=f"{_ARRAYS[kernel]} arrays, each byte once",
        aggregate=f"fastest of {times} passes" if times else "fastest pass",
    )  # fmt: skip
    if line is not None:
        block.append(line)
        if nbytes and least and abs(nbytes / least / ((rate or 1.0) * MB) - 1) > 0.02 + 1e-6 / least:
            line.status, line.reason = "suspect", "rate, size of the arrays and time do not fit each other"
    keep(imported, line, place, row[0], "no positive rate")


def _validated(block: list[Line]) -> None:
    for made in block:
        made.verified = True if made.verified is None else made.verified


def _end(imported: Imported, blocks: list[list[Line]], valid: int) -> None:
    """Say what is missing; processes that ran at once print their tables into each other, and lack nothing then."""
    if not blocks:
        imported.incomplete = "STREAM ended before its table"
        return
    lines = [line for block in blocks for line in block]
    whole = all(len(block) == len(_ARRAYS) for block in blocks)
    counts = Counter(line.point["kernel"] for line in lines)
    if not whole and len(blocks) > 1 and all(counts[kernel] == len(blocks) for kernel in _ARRAYS):
        imported.normalised.append(f"the tables of {len(blocks)} runs are mixed: they ran at once, a rate is one's own")
        if valid == len(blocks):
            _validated(lines)
        elif any(line.verified is False for line in lines):
            for line in lines:
                wrong(line, "STREAM: the check of one of several mixed runs failed")
    elif not whole:
        short = next(block for block in blocks if len(block) != len(_ARRAYS))
        have = ", ".join(str(line.point["kernel"]) for line in short) or "no row"
        imported.incomplete = f"the table ends early: {have} of copy, scale, add, triad"
    if not imported.incomplete and any(line.verified is None for line in lines):
        imported.problem("the log does not hold STREAM's validation of its arrays")
