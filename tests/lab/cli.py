"""The real command line inside the guest, with this checkout and this Python."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from iobench import record, topology
from iobench.record import Run
from iobench.topology.graph import Topology

from lab.kernel import cache_folder
from lab.vm import SHARED, Done, Guest

CHECKOUT = Path(__file__).resolve().parent.parent.parent
# Kernels compiled for no processor in particular are the same here and in the guest, where compiling takes minutes.
_KERNELS = {"NUMBA_CPU_NAME": "generic"}
_PREPARE_SECONDS = 600


def environment() -> dict[str, str]:
    """Return what iobench needs to be set: the same source, compiled kernels from the cache, nothing written back."""
    return {
        "PYTHONPATH": str(CHECKOUT),
        "PYTHONDONTWRITEBYTECODE": "1",
        "NUMBA_CACHE_DIR": str(cache_folder() / "kernels"),
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "200",
        **_KERNELS,
    }


def script(*arguments: object, env: Mapping[str, str] | None = None) -> str:
    """Return the bash line that runs ``iobench ARGUMENTS`` in the guest."""
    words = [f"{name}={shlex.quote(value)}" for name, value in {**environment(), **(env or {})}.items()]
    return " ".join(["env", *words, sys.executable, "-m", "iobench", *(shlex.quote(str(word)) for word in arguments)])


def discover(guest: Guest, name: str, timeout: float = 300) -> tuple[Topology, Done]:
    """Run ``iobench topology`` in the guest; return the graph that it saved and what it printed."""
    done = guest.run(script("topology", "--save", f"{SHARED}/{name}.json"), timeout=timeout)
    assert done.code == 0, done.text
    return topology.load(guest.shared / f"{name}.json"), done


def measure(guest: Guest, name: str, *arguments: object, timeout: float = 900, code: int = 0) -> Run:
    """Run ``iobench run ARGUMENTS`` in the guest, shortly; return the run as read on this side."""
    line = script("run", *arguments, "--quick", "--no-report", "--deadline", 600, "--out", f"{SHARED}/{name}")
    done = guest.run(line, timeout=timeout)
    assert done.code == code, done.text
    return record.read(guest.shared / name)


def prepare() -> None:
    """Compile on this side what would take the guest minutes: iobench's modules and the kernels of the CPU probes."""
    host = [sys.executable, "-m"]
    env = {**os.environ, **environment()}
    subprocess.run([*host, "compileall", "-q", str(CHECKOUT / "iobench")], check=False, timeout=_PREPARE_SECONDS)
    subprocess.run(
        [*host, "lab.compile_kernels"], cwd=CHECKOUT / "tests", check=True, env=env, timeout=_PREPARE_SECONDS
    )
