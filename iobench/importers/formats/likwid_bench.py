"""likwid-bench: one run per log or several, each with its test, size, time and "MByte/s" (1,000,000 bytes).

Its volume counts loads and stores, as iobench's does. One kernel's name says more than this reader: it stays as it is
where it is none of those that iobench has.
"""

from __future__ import annotations

import re
from typing import Any

from iobench.importers.formats._rows import count, keep, number, untag
from iobench.importers.imported import Imported
from iobench.importers.log import Log
from iobench.record import Line
from iobench.units import MB

TITLE = "likwid-bench"
STATE = False

_FIELD = re.compile(
    r"^(Test|Time|Iterations|Iterations per thread|Size \(Byte\)|Size|Data volume \(Byte\)|MByte/s):\s+(\S+)"
)
_THREADS = re.compile(r"^Using ([0-9]{1,5}) threads")
_KERNELS = {"copy": "copy", "stream": "triad", "load": "read", "store": "write"}


def recognise(head: str) -> float:
    """Tell it by its banner, or by the figures of a run whose start was cut off."""
    if "LIKWID MICRO BENCHMARK" in head:
        return 1.0
    if "MByte/s:" not in head:
        return 0.0
    return 0.9 if re.search(r"^Data volume \(Byte\):\s", head, re.M) and re.search(r"^MByte/s:\s", head, re.M) else 0.0


def read(log: Log) -> Imported:
    """Read every run: it ends with its rate."""
    imported, fields = Imported(), dict[str, str]()
    for place, raw in enumerate(log.lines, start=1):
        line = untag(raw)
        if "LIKWID MICRO BENCHMARK" in line:
            if fields:
                imported.incomplete = "a run has no rate: it ended early"
            fields = {"started": ""}
        elif threads := _THREADS.match(line):
            fields["threads"] = threads[1]
        elif field := _FIELD.match(line):
            fields[field[1]] = field[2]
            if field[1] == "MByte/s":
                imported.rows += 1
                if "Test" not in fields:
                    imported.problem("no line names the kernel (Test: ...): the start of the output is missing")
                keep(imported, _made(fields, place), place, line, "size, time and rate are not all there")
                fields = {}
    if fields:
        imported.incomplete = "the last run has no rate: it ended early"
    return imported


def _made(fields: dict[str, str], place: int) -> Line | None:
    rate, volume = number(fields.get("MByte/s")), count(fields.get("Data volume (Byte)"))
    nbytes = count(fields.get("Size (Byte)"))
    passes, seconds = count(fields.get("Iterations per thread") or fields.get("Iterations")), number(fields.get("Time"))
    if not (rate and volume and nbytes and passes and seconds) or rate <= 0:
        return None
    test = fields.get("Test", "")
    base, _, rest = test.partition("_")
    kernel = _KERNELS.get(base, test) or "unknown"
    point: dict[str, Any] = {"kernel": kernel, "stores": "nt" if "mem" in rest.split("_") else "plain"}
    point |= {"threads": count(fields.get("threads")) or 1, "nbytes": nbytes}
    line = Line(
        "dram", "", point, nbytes=nbytes, moved=volume // passes, moved_rule="loads and stores, each byte once",
        seconds=[[seconds / passes]], mode="stream", aggregate=f"mean of {passes} passes",
        evidence={"row": place, "printed": dict(fields), "unit": "MB/s (1e6)"},
    )  # fmt: skip
    if abs(volume / seconds / (rate * MB) - 1) > 0.02:
        line.status, line.reason = "suspect", "volume, time and rate do not fit each other"
    return line
