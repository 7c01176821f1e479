"""nccl-tests: the text of all_reduce_perf and its siblings, old and new, however it was launched and tagged."""

from __future__ import annotations

import re

from iobench.importers.imported import Imported
from iobench.importers.log import Log
from iobench.importers.nccltext import Text

TITLE = "nccl-tests"
STATE = False
COVERS = ("nccl-info",)

_ROW = re.compile(
    r"^.{0,120}?\d+[ \t]+\d+[ \t]+(?:float|half|bfloat16|double|u?int\d+|f(?:loat)?8\w+|fp8\w+|fp\d+|bf16|char|int)"
    r"[ \t]+(?:[a-z]+[ \t]+)?(?:-?\d+(?:\[\d+\])?[ \t]+)?[\d.]+(?:e[+-]?\d+)?[ \t]+[\d.]+",
    re.M,
)
_HEADER = re.compile(r"\b(?:size|bytes)\b.{0,80}\btype\b.{0,80}\balgbw\b")
_NEURON = re.compile(r"count\(elems\)[ \t]+type[ \t]+time(?::avg)?\(us\)")  # nccom-test: another tool, its GB are GiB
_BANNER = re.compile(r"nThreads? +\d+ +nGpus +\d+ +minBytes +\d+")


def recognise(head: str) -> float:
    """Score by the banner, the table's header and its rows; rccl-tests names itself."""
    if "rccl-tests: Version" in head or "RCCL version" in head or _NEURON.search(head):
        return 0.0
    return score(head)


def score(head: str) -> float:
    """Score the table, whoever printed it."""
    marks = bool(_BANNER.search(head)) + bool(_HEADER.search(head)) + ("# Out of bounds values" in head)
    if marks:
        return min(0.6 + 0.15 * marks, 1.0)
    return 0.5 if _ROW.search(head) else 0.0


def read(log: Log) -> Imported:
    """Read every run in the log."""
    return Text(log, "nccl").read()
