"""A second process that reads ahead changes nothing but the time: lines, warnings and complaints are the same."""

import errno
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from iobench import ahead
from iobench.errors import UserError
from iobench.record import read

from make_run import demo_run, save


def outcome(file: Path) -> Any:
    try:
        run = read(file)
    except UserError as error:
        return str(error)
    return [record.lines for record in run], [record.key for record in run], run.warnings, run.resumed


def changed(values: list[Any], how: str) -> str:
    last = values[-1]
    if how == "odd":
        last["status"], last["seconds"], last["reason"] = "skipped", [], "no such device"
    elif how == "legs":
        last["legs"] = [{"src": "cpu:0", "dst": "memory:0", "count": 0}]
    elif how == "foreign":
        last["type"] = "strange"
    elif how == "resumed":
        values.insert(-1, {"type": "resume", "at": "later"})
    text = "".join(json.dumps(value) + "\n" for value in values)
    return text[:-20] if how == "torn" else text


def full() -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("how", ["whole", "odd", "legs", "foreign", "resumed", "torn"])
def test_two_processes_read_what_one_reads(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = save(demo_run(), tmp_path / "r").read_text(encoding="utf-8")
    file = tmp_path / "records.jsonl"
    file.write_text(changed([json.loads(line) for line in whole.splitlines()], how), encoding="utf-8")
    alone = outcome(file)
    started = []
    helper = ahead._helper
    monkeypatch.setattr(ahead, "WORTH", 1)
    monkeypatch.setattr(ahead.os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(ahead, "_helper", lambda *args: started.append(args) or helper(*args))
    assert outcome(file) == alone
    assert len(started) == 1
    fails = tmp_path / "fails"
    fails.write_text("#!/bin/sh\nexit 1\n")
    fails.chmod(0o755)
    for program in (fails, tmp_path / "missing"):
        monkeypatch.setattr(sys, "executable", str(program))
        assert outcome(file) == alone
    monkeypatch.setattr(ahead.tempfile, "TemporaryFile", full)
    assert outcome(file) == alone
    assert len(started) == 3


def test_a_small_file_is_read_by_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = save(demo_run(), tmp_path / "r")
    monkeypatch.setattr(ahead, "_helper", None)
    assert len(read(file)) > 10
