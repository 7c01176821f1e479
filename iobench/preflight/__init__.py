"""What is wrong with a machine before anything is measured: sentences that say what to do next, within a second.

One file per subject, each with ``find(host) -> list[Finding]``. Nothing here needs a device; what is not there to be
read is left out.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable

from iobench.preflight.host import Finding, Host

__all__ = ["Finding", "Host", "find"]

SUBJECTS = ("nccl", "gds", "rdma")


def find(host: Host, subjects: Iterable[str] = SUBJECTS) -> list[Finding]:
    """Return the findings on the subjects, those that stop a run first."""
    found = [one for name in subjects for one in importlib.import_module(f"{__name__}.{name}").find(host)]
    return sorted(found, key=lambda one: not one.stops)
