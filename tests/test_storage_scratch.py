"""Scratch folders: gone at the end, after SIGTERM, and after SIGKILL when the next one starts; never another's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from iobench.storage import scratch
from iobench.storage.make import made
from iobench.units import MIB
from tests.conftest import cli_environment, hearing_interrupts

HOLDS = """
import sys, time
from iobench.storage.make import made
with made(sys.argv[1], 1 << 20, 1):
    print("made", flush=True)
    time.sleep(600)
"""
CHECKS = """
import sys, time
from iobench import cli_crosscheck, crosscheck
from iobench.storage.make import made
def run(say, quick):
    with made(sys.argv[1], 1 << 20, 1):
        say("made")
        time.sleep(600)
crosscheck.find = lambda name: run
crosscheck.use = lambda name, peer: None
cli_crosscheck.crosscheck("storage")
"""


def started(script: str, folder: Path) -> subprocess.Popen[str]:
    """Return a process that has made its files in ``folder`` and sleeps."""
    with hearing_interrupts():
        child = subprocess.Popen(
            [sys.executable, "-c", script, str(folder)], stdout=subprocess.PIPE, text=True, env=cli_environment()
        )
    assert child.stdout is not None
    assert child.stdout.readline() == "made\n"
    assert len(left(folder)) == 1
    return child


def left(folder: Path) -> list[Path]:
    return list(folder.glob("iobench-weights-*"))


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGINT, None)])
def test_a_crosscheck_that_is_ended_leaves_nothing(tmp_path: Path, number: int, status: int | None) -> None:
    child = started(CHECKS, tmp_path)
    child.send_signal(number)
    assert child.wait(timeout=300) != 0
    assert status is None or child.returncode == status
    assert left(tmp_path) == []


def test_what_a_killed_process_left_goes_with_the_next_start(tmp_path: Path) -> None:
    child = started(HOLDS, tmp_path)
    (theirs,) = left(tmp_path)
    try:
        with made(tmp_path, MIB, 1):
            assert len(left(tmp_path)) == 2, "a folder in use was removed"
    finally:
        child.kill()
        child.wait(timeout=300)
    if (theirs / ".unheld").exists():
        pytest.skip("this filesystem has no locks, so nothing that is left is known to be")
    assert left(tmp_path) == [theirs]
    with made(tmp_path, MIB, 1) as found:
        assert left(tmp_path) == [found.checkpoint.path]
    assert left(tmp_path) == []


def test_what_is_not_known_to_be_left_stays(tmp_path: Path) -> None:
    (tmp_path / "iobench-weights-mine").mkdir()
    (tmp_path / "iobench-weights-mine/model.safetensors").write_bytes(b"kept")
    (tmp_path / "iobench-weights-file").write_bytes(b"kept")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/.held").touch()
    (tmp_path / "iobench-weights-link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "iobench-weights-dangling").symlink_to(tmp_path / "nowhere")
    assert scratch.sweep(tmp_path) == []
    (tmp_path / "iobench-weights-left").mkdir()
    (tmp_path / "iobench-weights-left/.held").touch()
    assert scratch.sweep(tmp_path) == [tmp_path / "iobench-weights-left"]
    assert (tmp_path / "iobench-weights-mine/model.safetensors").exists()
    assert (tmp_path / "elsewhere/.held").exists()


def test_folders_of_other_users_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "iobench-weights-left").mkdir()
    (tmp_path / "iobench-weights-left/.held").touch()
    monkeypatch.setattr(os, "geteuid", lambda: 4_000_000)
    assert scratch.sweep(tmp_path) == []


def test_without_locks_it_works_and_is_never_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(scratch.fcntl, "flock", refused)
    with scratch.folder(tmp_path) as mine:
        assert not (mine / ".held").exists()
        assert scratch.sweep(tmp_path) == []
    assert left(tmp_path) == []
