"""What the machine is (``facts``, ``environment``) and what it was like while a point ran (``Watch``).

One small collector per fact; a fact that is not known has no key. No host names, serial numbers,
UUIDs, addresses or user names.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from iobench.machine import cgroup, cpu, memory, system
from iobench.machine.spin import gaps
from iobench.machine.variables import environment
from iobench.machine.verdict import disturbance
from iobench.machine.watch import Watch

__all__ = ["Watch", "disturbance", "environment", "facts", "gaps"]


def facts(root: str | Path = "/") -> dict[str, Any]:
    """Return the machine's static facts for a file's header: sizes in bytes, frequencies in Hz.

    ``root`` is where sysfs and procfs hang (a captured tree in tests). Python and package versions are
    always those of this process.
    """
    base = Path(root)
    return {
        "kernel": system.kernel(base),
        "cpu": cpu.facts(base),
        "memory": memory.facts(base),
        "cgroup": cgroup.facts(base),
        "virtual": system.virtual(base),
        "python": system.python(),
        "packages": system.packages(),
    }
