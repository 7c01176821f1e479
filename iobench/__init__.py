"""iobench: interconnect and memory-subsystem microbenchmarks for AI-inference machines.

The verbs of the command line are functions here, for notebooks and scripts::

    run = iobench.run(["dram"], axes=["threads=1"], budget=30)
    frame = run.to_frame()
    old = iobench.load("reports/.../records.jsonl")
    models = iobench.fit(run)
    print(iobench.compare(old, run))
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from iobench.record import Run

__version__ = "0.1.0"
_VERBS = ("run", "fit", "predict", "compare", "check", "report", "topology")


def load(path: str | Path) -> Run:
    """Read a run: its folder or file, "published:NAME", or another tool's log; UserError where it is none."""
    from iobench import sources

    return sources.open(path)


def __getattr__(name: str) -> Any:
    if name in _VERBS:
        return importlib.import_module(f"iobench.{name}")
    raise AttributeError(f"module 'iobench' has no attribute '{name}'")
