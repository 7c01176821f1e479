"""What several test files share: the command line as a subprocess, the shipped topologies."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

try:
    from hypothesis import HealthCheck, settings
except ModuleNotFoundError:  # the tests on hardware do without
    pass
else:
    # Examples are no stopwatch: a slow machine is no failure. What is drawn is the same on every run; other examples
    # on every run are for who looks for faults: IOBENCH_RANDOM=1.
    settings.register_profile(
        "iobench",
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        derandomize=not os.environ.get("IOBENCH_RANDOM"),
    )
    settings.load_profile("iobench")

ROOT = Path(__file__).resolve().parent.parent
Cli = Callable[..., "subprocess.CompletedProcess[str]"]


def pytest_configure(config: pytest.Config) -> None:
    """Have temporary folders elsewhere where programs in them may not run (a hardened /tmp): tests build some."""
    usual = tempfile.gettempdir()
    for place in (usual, "/var/tmp", "/dev/shm", str(ROOT)):
        if os.access(place, os.W_OK) and not os.statvfs(place).f_flag & os.ST_NOEXEC:
            if place != usual:
                tempfile.tempdir = os.environ["TMPDIR"] = place
            return


# What would change what a command prints (colours, warnings), or make it one process of a job that waits for others.
_STRANGE = re.compile(
    r"(FORCE_COLOR|NO_COLOR|PY_COLORS|CLICOLOR(_FORCE)?|GITHUB_ACTIONS|TTY_\w+|LINES|PYTHON(WARNINGS|DEVMODE|SAFEPATH)"
    r"|(LOCAL_|GROUP_)?RANK|(LOCAL_|GROUP_)?WORLD_SIZE|MASTER_(ADDR|PORT)|MPI_\w+|(SLURM|OMPI|PMI|PMIX)_\w+)"
)


def cli_environment() -> dict[str, str]:
    """The environment in which a subprocess imports the same iobench as the tests, and prints plain text."""
    import iobench.paths

    plain = {name: text for name, text in os.environ.items() if not _STRANGE.fullmatch(name)}
    return {**plain, "PYTHONPATH": str(iobench.paths.source_root()), "COLUMNS": "200"}


@contextlib.contextmanager
def hearing_interrupts() -> Iterator[None]:
    """Let what is started inside hear Ctrl-C, also where the tests inherit that it is ignored (a shell's background).

    A handled signal gets its default action with exec. Code between fork and exec (preexec_fn) would do as well, but
    it may block for ever where the tests' process has threads.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Run ``iobench ARGS`` in a fresh folder; returns the finished process with its output as text."""

    def call(*args: object, timeout: float = 900, **more: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "iobench", *map(str, args)]
        options = {"cwd": tmp_path, "env": cli_environment(), **more}
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, **options)

    return call


@pytest.fixture
def roomy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let small buffers be had whatever a control group has left at this moment."""
    monkeypatch.setattr("iobench.hostmem.available_nbytes", lambda *_: None)
