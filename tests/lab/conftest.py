"""A virtual machine for the tests of the lab: booted once, set up once, asked often.

Under pytest-xdist (``make lab``) each worker has a machine of its own, and the tests of a file share one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from lab import cli, machine, packages, setup
from lab.kernel import LabError
from lab.vm import Guest

WANTED = "IOBENCH_LAB"  # 1: run the lab's tests; required: without the packages they fail instead of being skipped


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "guest" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.lab)


_booted: list[float] = []


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Gather what a worker of pytest-xdist says at its end."""
    _booted.extend(getattr(node, "workeroutput", {}).get("booted", []))


def pytest_sessionfinish(session: pytest.Session) -> None:
    if (said := getattr(session.config, "workeroutput", None)) is not None:
        said["booted"] = _booted


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for seconds in _booted:
        terminalreporter.write_line(f"lab: a virtual machine was up after {seconds:.1f} s")


@pytest.fixture(scope="session")
def guest() -> Iterator[Guest]:
    """The running machine with its devices driven: CXL memory as devdax, NVMe mounted, soft-RoCE up."""
    wanted = os.environ.get(WANTED)
    if not wanted:
        pytest.skip("the emulated lab takes minutes: make lab")
    reason = packages.why_not()
    if reason:
        (pytest.fail if wanted == "required" else pytest.skip)(reason)
    cli.prepare()
    with Guest(machine.LAB) as booted:
        _booted.append(booted.booted)
        done = booted.run(setup.DEVICES, timeout=900)
        if done.code:
            raise LabError(f"the devices did not come up: {done.text}")
        yield booted
