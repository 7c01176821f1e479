"""gdsio: one line per run. "XferType: GPUD" is what was asked for, not what happened: gdsio prints it in compatibility
mode too, so the path stays unproven. Rates are GiB/s.
"""

from __future__ import annotations

import re
from typing import Any

from iobench.importers.formats._rows import keep, number, untag
from iobench.importers.imported import Imported, tell_apart
from iobench.importers.log import Log
from iobench.record import Line
from iobench.units import GIB, KIB

TITLE = "gdsio"
STATE = False

_RUN = re.compile(
    r"IoType: (\w+) XferType: (\w+) Threads: (\d{1,6})(?: +IoDepth: (\d{1,6}))? +"
    r"DataSetSize: (\d{1,18})(?:/(\d{1,18}))?\(([KMG]iB)\) "
    r"IOSize: ([\d-]{1,40})\(([KMG]iB)\)\s+Throughput: ([\d.eE+-]{1,24}) GiB/sec, ?"
    r"Avg_Latency: ([\d.eE+-]{1,24}) usecs "
    r"ops: (\d{1,18}) total_time ([\d.eE+-]{1,24}) secs"
)
_STARTS = re.compile(r"IoType: \w+ XferType:")
_TAIL = re.compile(r"Throughput: [\d.eE+-]{1,24} GiB/sec, ?Avg_Latency:")
_UNITS = {"KiB": KIB, "MiB": KIB * KIB, "GiB": GIB}
_HOST = {"CPUONLY"}
_TOLERANCE = 0.03


def recognise(head: str) -> float:
    """Tell gdsio by its one line."""
    return 1.0 if _STARTS.search(head) else 0.6 if "Throughput:" in head and _TAIL.search(head) else 0.0


def read(log: Log) -> Imported:
    """Read every run's line, also where it was broken into two or three."""
    imported = Imported()
    lines = [untag(line).lstrip("# ").strip() for line in log.lines]
    for place, line in enumerate(lines, start=1):
        if not _STARTS.search(line):
            if re.search(r"(?i)verification.*(fail|mismatch)|data mismatch|^(?:Error|ERROR)\b", line):
                imported.problem(f"line {place}: {line[:160]}")
            elif _TAIL.search(line) and not _began(lines, place):
                keep(imported, None, place, line, "the start of the run's line is missing")
            continue
        text = _whole(lines, place)
        match = _RUN.search(text)
        keep(imported, _made(match, place) if match else None, place, text, "not the whole line of a run")
        imported.rows += match is not None
    tell_apart(imported.lines, lambda line: {"dataset": line.evidence["printed"]["file_kib"]})
    if any(line.point["method"].startswith("GPUD") for line in imported.lines):
        imported.problem("XferType GPUD says what was asked for: gdsio prints it in compatibility mode too")
    return imported


def _began(lines: list[str], place: int) -> bool:
    """Tell whether one of the two lines above starts the run that this line goes on with."""
    above = lines[max(0, place - 3) : place - 1]
    return any(_STARTS.search(line) and "Throughput:" not in line for line in above)


def _whole(lines: list[str], place: int) -> str:
    """Return a run's line together with what was broken off it, two lines at most."""
    text = lines[place - 1]
    for more in lines[place : place + 2]:
        if "total_time" in text or _STARTS.search(more):
            break
        text = f"{text} {more}"
    return text


def _made(match: re.Match[str], place: int) -> Line | None:
    io, xfer, threads, depth, done, whole, unit, block, block_unit, rate, latency, ops, total = match.groups()
    nbytes, seconds, gib = int(done) * _UNITS[unit], number(total), number(rate)
    if not seconds or not gib or not nbytes or seconds <= 0 or gib <= 0:
        return None
    size = int(block) * _UNITS[block_unit] if block.isdigit() else None
    point: dict[str, Any] = {
        "method": xfer, "rw": io.lower(), "target": "host" if xfer in _HOST else "gpu", "threads": int(threads),
    }  # fmt: skip
    if depth:
        point["depth"] = int(depth)
    point |= {"block": size} if size else {"block_range": block}
    printed = {"throughput_gib_s": rate, "avg_latency_us": latency, "ops": ops, "total_s": total, "done_kib": done, "file_kib": whole or done}  # fmt: skip  # noqa: E501
    line = Line(
        "weights" if io == "READ" else "storage", "", point, nbytes=nbytes, moved=nbytes,
        moved_rule="every byte that gdsio moved, over its rate", seconds=[[nbytes / (gib * GIB)]], mode="whole-run",
        aggregate="one run's bytes over its rate", evidence={"row": place, "printed": printed, "unit": "GiB/s"},
    )  # fmt: skip
    if abs(nbytes / seconds / (gib * GIB) - 1) > _TOLERANCE and seconds > 0.01:
        line.status = "suspect"
        line.reason = f"gdsio says {gib} GiB/s, its bytes over its time are {nbytes / seconds / GIB:.4g} GiB/s"
    return line
