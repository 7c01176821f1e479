"""The real command line inside the guest, with this checkout and this Python."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

from iobench import record, topology
from iobench.record import Run
from iobench.topology.graph import Topology

from lab.kernel import cache_folder, locked
from lab.vm import SHARED, Done, Guest

CHECKOUT = Path(__file__).resolve().parent.parent.parent
# Kernels compiled for no processor in particular are the same here and in the guest, where compiling takes minutes.
_KERNELS = {"NUMBA_CPU_NAME": "generic"}
_PREPARE_SECONDS = 600
BUDGET_SECONDS = 2


def environment() -> dict[str, str]:
    """Return what iobench needs to be set: the same source, compiled kernels from the cache, nothing written back."""
    return {
        "PYTHONPATH": f"{CHECKOUT}:{CHECKOUT}/tests",
        "PYTHONDONTWRITEBYTECODE": "1",
        "NUMBA_CACHE_DIR": str(cache_folder() / "kernels"),
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "200",
        **_KERNELS,
    }


def script(*lines: str) -> str:
    """Return the bash line that runs ``iobench LINE`` for each of the command lines in the guest, in one process."""
    words = [f"{name}={shlex.quote(value)}" for name, value in environment().items()]
    return " ".join(["env", *words, sys.executable, "-m", "lab.many", *map(shlex.quote, lines)])


def topology_line(name: str) -> str:
    """Return the command line that saves the guest's topology for ``graph``."""
    return f"topology --save {SHARED}/{name}.json"


def run_line(name: str, arguments: str) -> str:
    """Return the command line of a short measurement for ``measured``; without time to repeat disturbed points."""
    return f"run {arguments} --quick --budget {BUDGET_SECONDS} --no-report --deadline 1800 --out {SHARED}/{name}"


def call(guest: Guest, *lines: str, timeout: float = 1800) -> Done:
    """Run command lines in the guest; every one must succeed."""
    done = guest.run(script(*lines), timeout=timeout)
    assert done.code == 0, done.text
    return done


def graph(guest: Guest, name: str) -> Topology:
    return topology.load(guest.shared / f"{name}.json")


def measured(guest: Guest, name: str) -> Run:
    return record.read(guest.shared / name)


def prepare() -> None:
    """Compile on this side what would take the guest minutes: iobench's modules and the kernels of the CPU probes."""
    host = [sys.executable, "-m"]
    env = {**os.environ, **environment()}
    with locked():
        subprocess.run([*host, "compileall", "-q", str(CHECKOUT / "iobench")], check=False, timeout=_PREPARE_SECONDS)
        subprocess.run(
            [*host, "lab.compile_kernels"], cwd=CHECKOUT / "tests", check=True, env=env, timeout=_PREPARE_SECONDS
        )
