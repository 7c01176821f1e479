"""Makes a Run of what a format read: launches counted, header filled, warnings written."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import iobench
from iobench.errors import UserError
from iobench.importers.about import about
from iobench.importers.imported import Imported
from iobench.importers.log import Log
from iobench.importers.registry import all_formats
from iobench.parse import problem
from iobench.record import Header, Line, Run, merge

MOST_LAUNCHES = 100  # more repetitions of a point become further values of these
_SHOWN_ROWS = 5


def to_run(log: Log, imported: Imported) -> Run:
    """Return the Run; UserError where the log held neither a row that could be read nor facts of a machine."""
    title = all_formats()[imported.format].TITLE
    lines = _sound(imported)
    state = all_formats()[imported.format].STATE
    if not lines and not (state and (imported.machine or imported.topology)):
        raise UserError(_nothing(log, imported, title))
    lines = _count_launches(lines)
    header = Header(
        run_id=f"import-{log.digest[:12]}",
        created=imported.started,
        version=iobench.__version__,
        machine={"name": _name(imported, title), **{k: v for k, v in imported.machine.items() if k != "name"}},
        topology=imported.topology,
        request=_request(log, imported),
        probes={probe: imported.about.get(probe) or about(probe, title) for probe in {line.probe: 0 for line in lines}},
        environment=imported.environment,
    )
    return Run(Path(log.name), header, merge(lines), warnings(imported))


def warnings(imported: Imported) -> list[str]:
    """Return what a reader must know of the log, most serious first."""
    found = [f"incomplete: {imported.incomplete}"] if imported.incomplete else []
    found += imported.problems
    rows = imported.unread
    if rows:
        shown = "; ".join(str(row) for row in rows[:_SHOWN_ROWS])
        more = f"; and {len(rows) - _SHOWN_ROWS} more" if len(rows) > _SHOWN_ROWS else ""
        found.append(f"{len(rows)} {'row' if len(rows) == 1 else 'rows'} could not be read: {shown}{more}")
    return found


def _sound(imported: Imported) -> list[Line]:
    """Return the lines that a records file takes; what is out of any range becomes an unread row."""
    kept = []
    for line in imported.lines:
        found = problem(line)
        if found:
            imported.skip(_number(line), str(line.point), f"out of range ({found})")
        else:
            line.source = line.source or f"import:{imported.format}"
            kept.append(line)
    return kept


def _number(line: Line) -> int:
    rows = line.evidence.get("rows")
    first = rows[0] if isinstance(rows, list) and rows else line.evidence.get("row", 0)
    first = first[0] if isinstance(first, list) and first else first
    found = re.match(r"line (\d{1,9}):", first) if isinstance(first, str) else None
    return int(found[1]) if found else first if isinstance(first, int) else 0


def _count_launches(lines: list[Line]) -> list[Line]:
    """Number the repetitions of each point in the order they stand in the log."""
    seen: Counter[str] = Counter()
    first: dict[tuple[str, int], Line] = {}
    kept = []
    for line in lines:
        key = line.key
        number = seen[key]
        seen[key] += 1
        line.launch = number % MOST_LAUNCHES
        earlier = first.setdefault((key, line.launch), line)
        if earlier is line or not _join(earlier, line):
            kept.append(line)
    return kept


def _join(earlier: Line, line: Line) -> bool:
    """Add a further repetition to the launch that has its number."""
    if len(earlier.seconds) != len(line.seconds) or earlier.verified is False:
        return True  # wrong data stays the verdict on the point
    for have, more in zip(earlier.seconds, line.seconds, strict=True):
        have += more
    rows, more_rows = earlier.evidence.get("rows"), line.evidence.get("rows")
    if isinstance(rows, list) and isinstance(more_rows, list):
        rows += more_rows
    if line.verified is False:
        earlier.verified, earlier.status, earlier.reason = False, line.status, line.reason
    return True


def _name(imported: Imported, title: str) -> str:
    return str(imported.machine.get("name") or f"a machine known from a log of {title}")


def _request(log: Log, imported: Imported) -> dict[str, Any]:
    return {
        "imported": log.name,
        "format": imported.format,
        "digest": f"sha256:{log.digest}",
        "rows": imported.rows,
        "unread": [str(row) for row in imported.unread[:1000]],
        "unread_rows": len(imported.unread),
        "incomplete": imported.incomplete,
        "problems": imported.problems,
        "normalised": imported.normalised,
    }


def _nothing(log: Log, imported: Imported, title: str) -> str:
    why = "; ".join(warnings(imported)) or "it has none, or the tool ended before the first"
    why = why if len(why) <= 600 else why[:597] + "..."
    return f"{log.name}: no row of {title} could be read: {why}: {imported.next_step}"
