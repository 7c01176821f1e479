"""Reads the logs of other tools into the same records as iobench's own runs.

``read(path)`` gives a ``Run`` in memory; ``iobench import LOG`` writes it as a run's folder. Adding a format is
adding one file to ``iobench/importers/formats/``; nothing else is touched. Such a file has

    TITLE = "nccl-tests"               # how the tool is called, for people
    STATE = False                      # True: it holds facts of a machine (topology, attributes), no measurements
    COVERS = ("nccl-info",)            # optional: formats whose facts this one reads itself

    def recognise(head: str) -> float: # 0: not mine, 1: surely mine. By content, never by a file's name.
    def read(log: Log) -> Imported:    # see iobench.importers.imported

``head`` is the first MiB of the log and its last 64 KiB. The log's text is clean already (``log.py``): decoded, no
NUL bytes, escape sequences or control characters but the tab; ``log.lines[i]`` is line i + 1 of the file.
The format with the highest score reads the log; every STATE format that scores 0.5 or more reads it too, and its
machine facts and topology are added. Rules for ``read``:

- One ``Line`` per point and process launch, with the canonical axes of the probe whose name it bears, ``seconds`` in
  seconds and ``aggregate`` saying what each value is where it is no raw sample. Lines of one point that stand in the
  log more than once are counted up as launches by the framework; leave ``launch`` at 0. Points that would be the same
  though they were measured differently get an axis that tells them apart (``tell_apart``).
- The original stays in ``Line.evidence``: "rows" (or "row"), the line's number, and the figures, units and labels
  as printed.
- What the log does not prove is not said: no ``transport``, ``ranks`` or ``path`` by guess, ``proven`` False.
- A row that looks like a measurement and can't be read is ``imported.unread``; what is wrong with the log as a whole
  is a sentence in ``problems``; units and definitions that were changed are sentences in ``normalised``; a log that
  ends early or lacks planned rows has ``incomplete`` say so.
- Data that the tool itself found wrong: ``verified=False`` and status "failed" with its reason.
- Host names the log names go to ``hosts``; the framework replaces them by node-1, node-2 everywhere.
- Nothing of a log is executed, fetched, or used as a path.
"""

from __future__ import annotations

from pathlib import Path

from iobench.importers.imported import Imported, Unread, tell_apart
from iobench.importers.log import Log, load
from iobench.importers.registry import names, read_log
from iobench.importers.torun import to_run
from iobench.record import Run

__all__ = ["Imported", "Log", "Unread", "load", "names", "read", "read_log", "tell_apart", "to_run"]


def read(path: str | Path, as_format: str = "", keep_hosts: bool = False) -> Run:
    """Return the log at ``path`` as a Run in memory; what to know of the log stands in ``Run.warnings``.

    ``as_format`` names the format where the content does not tell. Raises UserError for a file that can't be read,
    is no log of a known tool, or holds no row that could be read.
    """
    log = load(Path(path))
    return to_run(log, read_log(log, as_format, keep_hosts))
