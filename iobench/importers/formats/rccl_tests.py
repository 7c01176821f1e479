"""rccl-tests: AMD's build of the same tests; the table is that of nccl-tests."""

from __future__ import annotations

from iobench.importers.formats.nccl_tests import score
from iobench.importers.imported import Imported
from iobench.importers.log import Log
from iobench.importers.nccltext import Text

TITLE = "rccl-tests"
STATE = False
COVERS = ("nccl-info",)


def recognise(head: str) -> float:
    """Score as nccl-tests where the log names rccl-tests or RCCL."""
    return score(head) if "rccl-tests: Version" in head or "RCCL version" in head else 0.0


def read(log: Log) -> Imported:
    """Read every run in the log."""
    return Text(log, "rccl").read()
