"""NCCL's own lines (NCCL_DEBUG=INFO): channels, tuning and settings as facts; no times, so no records."""

from __future__ import annotations

import re

from iobench.importers.imported import Imported
from iobench.importers.log import Log
from iobench.nccl.log import MARK, Told

TITLE = "NCCL's log"
STATE = True

_HOST = re.compile(r"(?:^|[\s>\]:])([A-Za-z][\w.-]{0,252}):\d+:\d+ \[\d+\] ")  # behind what a launcher put before it


def recognise(head: str) -> float:
    """Score by the mark that NCCL puts into every line."""
    return 0.6 if MARK in head else 0.0


def read(log: Log) -> Imported:
    """Return the facts in ``machine["nccl"]``; ``rows`` counts the lines that are NCCL's."""
    imported, told = Imported(), Told()
    for line in log.lines:
        if MARK in line:
            imported.rows += 1
            told.add(line)
            host = _HOST.search(line[:400]) if imported.rows <= 1000 else None
            if host and host[1] not in imported.hosts:
                imported.hosts.append(host[1])
        elif "CCL version" in line:
            told.add(line)
    if facts := told.facts():
        imported.machine["nccl"] = facts
    elif imported.rows:
        imported.problem(f"none of NCCL's {imported.rows} lines tells a version, a channel or a choice")
        imported.next_step = "run with NCCL_DEBUG=INFO, and NCCL_DEBUG_SUBSYS=INIT,GRAPH,NET,TUNING"
    imported.environment = dict(told.settings)
    return imported
