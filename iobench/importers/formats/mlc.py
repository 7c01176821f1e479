"""Intel Memory Latency Checker: idle latencies, the two matrices between NUMA nodes, peak bandwidths, loaded latencies.

The words of its titles changed between versions; the rows did not. "MB/sec" are 1,000,000 bytes, as it says itself.
MLC states means only, and where it could not switch the prefetchers off, its latency is that of random access.
Options that change what is measured (-Wn the mix, -r and -U random access) are told from the line that repeats them;
runs under different options are different points.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from iobench.importers.formats._rows import keep, number, rated, timed, untag
from iobench.importers.imported import Imported, tell_apart
from iobench.importers.log import Log
from iobench.record import Line
from iobench.units import MB, NS

TITLE = "Intel MLC"
STATE = False

_IDLE = re.compile(r"^[ \t]*Each iteration took ([\d.]+) ?(?:core|base frequency|\w+) clocks \(\s*([\d.]+)\s*ns\)", re.MULTILINE)  # fmt: skip  # noqa: E501
_TITLES = (
    ("idle", re.compile(r"^\s*Measuring idle latencies\b.*\(in ns\)")),
    ("peak", re.compile(r"^\s*Measuring (?:Peak Injection|Peak|Maximum) Memory Bandwidths for the system")),
    ("matrix", re.compile(r"^\s*Measuring Memory Bandwidths between nodes within system")),
    ("loaded", re.compile(r"^\s*Measuring Loaded Latencies for the system")),
    ("cache", re.compile(r"^\s*Measuring cache-to-cache transfer latency")),
)
_COLUMNS = re.compile(r"^\s*(?:Numa node|Socket|Memory node|Numa Node)\s+(\d+(?:\s+\d+)*)\s*$", re.IGNORECASE)
_ROW = re.compile(r"^\s*(\d{1,4})\s+((?:[\d.]+|-|N/A)(?:\s+(?:[\d.]+|-|N/A))*)\s*$")
_PEAK = re.compile(
    r"^\s*(ALL Reads|\d+:\d+ Reads-Writes|Stream-triad like|All NT writes|[\w: -]{3,40}?)\s*:\s*([\d.]+)\s*$"
)
_LOADED = re.compile(
    r"^[\s\"'*`]*(\d{1,6})\s+([\d.]+)\s+([\d.]+)[\"'*`]*\s*(?:[<#(-].{0,200})?$"
)  # remarks of who pasted it
_TRAFFIC = re.compile(r"^\s*Using (.+?) traffic type")
_COMMAND = re.compile(r"^\s*Command line parameters:([^\n]*)")
_BANNER = "Memory Latency Checker"
# what -Wn asks of the threads that load the memory; other numbers keep theirs
_MIXES = {
    "2": "2:1 reads-writes", "3": "3:1 reads-writes", "5": "1:1 reads-writes", "6": "0:1 reads-nt-writes",
    "7": "2:1 reads-nt-writes", "8": "1:1 reads-nt-writes", "10": "triad", "19": "9:1 reads-writes",
}  # fmt: skip
_AGGREGATE = "mean over MLC's measuring time"
_RATIOS = {"ALL Reads": "read", "Stream-triad like": "triad"}


@dataclass
class State:
    """Which table is being read."""

    part: str = ""
    columns: list[int] = field(default_factory=list)
    traffic: str = ""
    access: str = ""
    rows: int = 0
    options: str = ""  # of the command line, as MLC repeats it
    mix: str = ""
    random: bool = False


def recognise(head: str) -> float:
    """Tell MLC by its banner or the title of a table."""
    if re.search(r"Intel\(R\) Memory Latency Checker", head):
        return 1.0
    titled = any(re.search(pattern.pattern.removeprefix(r"^\s*"), head) for _, pattern in _TITLES)
    return (
        0.95
        if titled
        else 0.8
        if re.search(r"Each iteration took [\d.]+ ?[\w ]+ clocks \(\s*[\d.]+\s*ns\)", head)
        else 0.0
    )


def read(log: Log) -> Imported:
    """Read every row of every table."""
    imported, state = Imported(), State()
    for place, raw in enumerate(log.lines, start=1):
        _line(imported, state, place, untag(raw).replace("|", " "))
    _end(imported, state)
    tell_apart(imported.lines, lambda line: {"options": line.evidence.get("options") or "none"})
    if imported.lines:
        imported.normalise("MLC's MB/sec are 1,000,000 bytes per second")
    return imported


def _line(imported: Imported, state: State, place: int, line: str) -> None:
    before = len(imported.lines)
    _take(imported, state, place, line)
    for made in imported.lines[before:]:
        made.evidence |= {"options": state.options} if state.options else {}


def _take(imported: Imported, state: State, place: int, line: str) -> None:
    command = _COMMAND.match(line)
    if command or _BANNER in line:  # another start of MLC
        _end(imported, state)
        _options(state, command[1] if command else "")
        return
    for part, pattern in _TITLES:
        if pattern.match(line):
            _end(imported, state)
            state.part, state.columns, state.rows = part, [], 0
            access = re.search(r"latencies for (random|sequential)", line)
            state.traffic, state.access = "", access[1] if access else ""
            return
    if idle := _IDLE.match(line):
        point = {"kernel": "chase", "measured": "idle", **_access(state)}
        _keep(imported, timed("dram", point, (number(idle[2]) or 0.0) * NS, mode="chase"), place, line)
    elif traffic := _TRAFFIC.match(line):
        state.traffic = traffic[1]
    elif state.part in {"idle", "matrix"}:
        _matrix(imported, state, place, line)
    elif state.part == "peak":
        _peak(imported, state, place, line)
    elif state.part == "loaded":
        _loaded(imported, state, place, line)


def _options(state: State, text: str) -> None:
    words = [word for word in text.split() if word.startswith("-")]
    state.options = " ".join(word for word in text.split() if len(word) <= 80)[:200]
    mix = next((word[2:] for word in words if re.fullmatch(r"-W[0-9]{1,2}", word)), "")
    state.mix = _MIXES.get(mix, f"mix -W{mix}") if mix else ""
    state.random = "-r" in words or "-U" in words


def _access(state: State) -> dict[str, str]:
    access = state.access or ("random" if state.random else "")
    return {"access": access} if access else {}


def _matrix(imported: Imported, state: State, place: int, line: str) -> None:
    if columns := _COLUMNS.match(line):
        state.columns = [int(word) for word in columns[1].split()]
        return
    row = _ROW.match(line)
    if not row or not state.columns:
        return
    cells = row[2].split()
    if len(cells) != len(state.columns):
        imported.skip(place, line, f"{len(cells)} figures under {len(state.columns)} nodes")
        return
    state.rows += 1
    for column, text in zip(state.columns, cells, strict=True):
        if text in {"-", "N/A"}:
            continue
        point: dict[str, Any] = {"cpu_node": int(row[1]), "memory_node": column}
        point |= _access(state)
        value = number(text) or 0.0
        made = (
            timed("dram", {"kernel": "chase", **point}, value * NS, mode="chase")
            if state.part == "idle"
            else rated(
                "dram",
                {"kernel": state.mix or "read", **point},
                value * MB,
                mode="stream",
                moved_rule="reads and writes",
            )
        )
        _keep(imported, made, place, line, text)


def _peak(imported: Imported, state: State, place: int, line: str) -> None:
    row = _PEAK.match(line)
    if not row or row[1].startswith(("Using", "Command", "Bandwidths", "Note")):
        return
    state.rows += 1
    point = {"kernel": _RATIOS.get(row[1], row[1].lower()), "measured": "peak of the system"}
    _keep(imported, rated("dram", point, (number(row[2]) or 0.0) * MB, mode="stream", moved_rule="reads and writes"), place, line)  # fmt: skip  # noqa: E501


def _loaded(imported: Imported, state: State, place: int, line: str) -> None:
    row = _LOADED.match(line)
    if not row:
        return
    state.rows += 1
    point: dict[str, Any] = {"measured": "loaded", "delay": int(row[1])}
    if state.mix or state.traffic:
        point["traffic"] = state.mix or state.traffic
    point |= _access(state)
    latency = timed("dram", {"kernel": "chase", **point}, (number(row[2]) or 0.0) * NS, mode="chase")
    _keep(imported, latency, place, line, row[2])
    if latency is not None and (load := number(row[3])):
        latency.evidence["load_bytes_per_s"] = load * MB
    rate = rated(
        "dram",
        {"kernel": state.mix or "read", **point},
        (number(row[3]) or 0.0) * MB,
        mode="stream",
        moved_rule="the load",
    )
    _keep(imported, rate, place, line, row[3], again=True)


def _keep(imported: Imported, made: Line | None, place: int, text: str, printed: str = "", again: bool = False) -> None:
    imported.rows += not again
    if made is not None:
        made.aggregate = _AGGREGATE
        made.evidence = {"row": place, "printed": printed or text.strip()[:120], "unit": "ns" if made.quantity == "latency" else "MB/s (1e6)"}  # fmt: skip  # noqa: E501
    keep(imported, made, place, text, "no positive number")


def _end(imported: Imported, state: State) -> None:
    """Say what a table that is over lacks."""
    missing = ""
    if state.part and state.part != "cache" and not state.rows:
        missing = f"the table of {_WORDS[state.part]} has no row"
    elif state.part == "loaded" and state.rows < _LEAST_LOADED:
        missing = f"loaded latencies end after {state.rows} rows"
    if missing:
        imported.incomplete = f"{imported.incomplete}; {missing}" if imported.incomplete else missing
    state.part = ""


_WORDS = {"idle": "idle latencies", "peak": "peak bandwidths", "matrix": "bandwidths between nodes", "loaded": "loaded latencies"}  # fmt: skip  # noqa: E501
_LEAST_LOADED = 1
