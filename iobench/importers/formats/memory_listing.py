"""A listing of a GPU's memory and a disk, one figure or list per line, as a collecting script prints it.

528 256 read 4477 copy 3873 write 4255 GB/s
memcpy 4250.1 memset 4575.3            (GB/s; the copy counts what it reads and writes)
chase 131072 292.3 cycles              (of the clock in the line "clk [before] [after]": SM, ..., memory MHz)
write 1.37 / odirect 131072 [1.2, 1.55] / buffered cold 1.85 / buffered warm 32.5   (GB/s)
"""

from __future__ import annotations

import re
from typing import Any

from iobench.importers.formats._rows import keep, number, rated, timed
from iobench.importers.imported import Imported
from iobench.importers.log import Log
from iobench.record import Leg, Line
from iobench.topology.graph import Topology
from iobench.units import GB, MHZ

TITLE = "a listing of memory and storage rates"
STATE = False

_GRID = re.compile(r"^(\d{1,7}) (\d{1,4}) read ([\d.]+) copy ([\d.]+) write ([\d.]+) GB/s$")
_CALLS = re.compile(r"^memcpy ([\d.]+) memset ([\d.]+)$")
_CHASE = re.compile(r"^chase (\d{1,15}) ([\d.]+) cycles$")
_CLOCK = re.compile(r"^clk \[(\d{1,5}), \d{1,5}, (\d{1,5})\] \[(\d{1,5}), \d{1,5}, \d{1,5}\] bus (\d{1,6})\b")
_DIRECT = re.compile(r"^odirect (\d{1,15}) \[([\d., ]{1,2000})\]$")
_PLAIN = re.compile(r"^(write|buffered cold|buffered warm) ([\d.]+)$")


def recognise(head: str) -> float:
    """Tell it by two of its kinds of lines."""
    words = ((_GRID, " GB/s"), (_CALLS, "memset"), (_CHASE, "chase"), (_DIRECT, "odirect"))
    kinds = sum(bool(word in head and re.search(kind.pattern, head, re.MULTILINE)) for kind, word in words)
    return 0.9 if kinds >= 2 else 0.0


def read(log: Log) -> Imported:
    """Read every figure; the chase's cycles need the clock's line."""
    imported = Imported()
    clock = next((match for line in log.lines if (match := _CLOCK.match(line))), None)
    for place, line in enumerate(log.lines, start=1):
        for made, printed in _figures(imported, clock, place, line):
            if made is not None:
                made.evidence = {"row": place, "printed": printed}
                raw = len(made.seconds[0]) > 1  # a list holds every pass
                made.aggregate = "" if raw else "figure of a listing; how it was averaged is not said"
            keep(imported, made, place, line, "no positive number")
    if clock:
        _add_limit(imported, clock)
        imported.machine |= {"sm_hz": int(clock[1]) * MHZ, "memory_hz": int(clock[2]) * MHZ, "bus_bits": int(clock[4])}
    return imported


def _add_limit(imported: Imported, clock: re.Match[str]) -> None:
    """Give the GPU's memory its limit, 2 * memory clock * bus width / 8, so that figures above it are found."""
    graph = Topology("from-a-listing")
    graph.add("machine", "machine")
    graph.add("gpu:0", "gpu")
    graph.add("vram:0", "vram", gpu="gpu:0")
    limit = 2 * int(clock[2]) * MHZ * int(clock[4]) / 8
    source = f"the listing: 2 * {clock[2]} MHz * {clock[4]} bit / 8"
    graph.link("vram:0", "gpu:0", "hbm", limit or None, duplex=False, source=source)
    imported.topology = graph.to_dict()
    for line in imported.lines:
        if line.probe == "hbm" and line.quantity == "bandwidth":
            line.legs = [Leg("vram:0", "gpu:0")]


def _figures(imported: Imported, clock: re.Match[str] | None, place: int, line: str) -> list[tuple[Line | None, str]]:
    if match := _GRID.match(line):
        imported.rows += 1
        shape = {"blocks": int(match[1]), "threads": int(match[2])}
        return [(_hbm(kernel, text, shape), text) for kernel, text in zip(("read", "copy", "write"), match.groups()[2:], strict=True)]  # fmt: skip  # noqa: E501
    if match := _CALLS.match(line):
        imported.rows += 1
        return [(_hbm("memcpy", match[1], {}), match[1]), (_hbm("memset", match[2], {}), match[2])]
    if match := _CHASE.match(line):
        imported.rows += 1
        return [(_chase(clock, match), match[2])]
    if match := _DIRECT.match(line):
        imported.rows += 1
        return [(_direct(int(match[1]), match[2]), match[2])]
    if match := _PLAIN.match(line):
        imported.rows += 1
        return [(_plain(match[1], match[2]), match[2])]
    if re.match(r"^(?:chase|odirect|memcpy|buffered)\b|^\d+ \d+ read\b", line):
        imported.skip(place, line, "not the form of its kind of line")
    return []


def _hbm(kernel: str, text: str, shape: dict[str, Any]) -> Line | None:
    return rated(
        "hbm", {"kernel": kernel, "gpu": 0, **shape}, (number(text) or 0.0) * GB, mode="events",
        moved_rule="what is read and what is written, each once",
    )  # fmt: skip


def _chase(clock: re.Match[str] | None, match: re.Match[str]) -> Line | None:
    """Turn cycles into seconds by the SM clock, which has to be the same before and after."""
    if clock is None or clock[1] != clock[3]:
        return None
    point = {"kernel": "chase", "gpu": 0, "nbytes": int(match[1])}
    return timed("hbm", point, (number(match[2]) or 0.0) / (int(clock[1]) * MHZ), mode="clock")


def _direct(block: int, text: str) -> Line | None:
    rates = [number(word) or 0.0 for word in text.split(",")]
    if not rates or min(rates) <= 0:
        return None
    line = rated("weights", {"method": "direct", "block": block}, rates[0] * GB, mode="whole-file")
    if line is not None:
        line.seconds = [[1.0 / rate for rate in rates]]
    return line


def _plain(what: str, text: str) -> Line | None:
    probe, point = {
        "write": ("storage", {"rw": "write"}),
        "buffered cold": ("weights", {"method": "buffered-cold"}),
        "buffered warm": ("weights", {"method": "buffered-warm"}),
    }[what]
    return rated(probe, point, (number(text) or 0.0) * GB, mode="whole-file")
