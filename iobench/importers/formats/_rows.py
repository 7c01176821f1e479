"""What the formats of tables share: prefixes that launchers put before a line, numbers, and Lines made of a rate."""

from __future__ import annotations

import math
import re
from typing import Any

from iobench.importers.imported import Imported
from iobench.record import Line
from iobench.units import GB

# where a log says a rate but not how long one operation took: seconds of this many bytes stand for it
NOMINAL = GB
NOMINAL_RULE = "a nominal 1 GB: the log says the rate, not the size of one operation"

_TAGS = re.compile(
    r"^(?:"
    r"\[\d+,\d+\]<std(?:out|err)>:\s?"  # mpirun --tag-output
    r"|\[[\w./-]{1,120}\]\s(?=\s*[\w#+|\[-])(?<!\d\]\s)"  # kubectl --prefix: [pod/name/container]
    r"|\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?[ \t]"  # time stamps
    r"|\d{1,5}:(?=\s)"  # srun --label
    r"|>\s?"  # quoted in mail
    r")"
)
_NUMBER = re.compile(r"[+-]?(?:\d{1,30}(?:\.\d{0,30})?|\.\d{1,30})(?:[eE][+-]?\d{1,3})?")
_MOST_TAGS = 3


def untag(line: str) -> str:
    """Return a line without what launchers, loggers and mail programs put before it."""
    for _ in range(_MOST_TAGS):
        match = _TAGS.match(line)
        if not match or not match.end():
            return line
        line = line[match.end() :]
    return line


def number(text: str | None) -> float | None:
    """Return a finite number as tools print it; None for N/A, nan, inf and everything else."""
    if text is None or not _NUMBER.fullmatch(text.strip()):
        return None
    value = float(text)
    return value if math.isfinite(value) else None


def count(text: str | None) -> int | None:
    """Return a whole number that is not negative, None otherwise."""
    word = (text or "").strip()
    return int(word) if word.isascii() and word.isdigit() and len(word) <= 19 else None


def rated(
    probe: str, point: dict[str, Any], bytes_per_s: float, nbytes: int = 0, factor: int = 1, **more: Any
) -> Line | None:
    """Return a bandwidth's Line: the time is what ``nbytes`` (a nominal 1 GB where unknown) take at the rate.

    ``factor``: the bytes moved per byte of the tool's count (2 where it counts a copy once and reads and writes are
    meant). None for a rate that is not positive.
    """
    if not (math.isfinite(bytes_per_s) and bytes_per_s > 0):
        return None
    size = nbytes or NOMINAL
    more.setdefault("moved_rule", "" if nbytes else NOMINAL_RULE)
    if not nbytes:
        more["moved_rule"] = NOMINAL_RULE if factor == 1 else f"{NOMINAL_RULE}; {more['moved_rule']}".rstrip("; ")
    return Line(
        probe,
        "",
        {**point, **({"nbytes": nbytes} if nbytes else {})},
        nbytes=nbytes,
        moved=size * factor,
        seconds=[[size / bytes_per_s]],
        **more,
    )


def timed(probe: str, point: dict[str, Any], seconds: float, moved: int = 0, **more: Any) -> Line | None:
    """Return a latency's Line; None for a time that is not positive."""
    if not (math.isfinite(seconds) and seconds > 0):
        return None
    nbytes = point.get("nbytes", 0)
    return Line(probe, "", point, quantity="latency", nbytes=nbytes, moved=moved, seconds=[[seconds]], **more)


def keep(imported: Imported, line: Line | None, row: int, text: str, why: str) -> None:
    """Add a Line with its row, or note the row as unread."""
    if line is None:
        imported.skip(row, text, why)
        return
    line.evidence.setdefault("row", row)
    imported.lines.append(line)


def wrong(line: Line, reason: str) -> Line:
    """Mark a Line whose data the tool itself found wrong."""
    line.verified, line.status, line.reason = False, "failed", reason
    return line
