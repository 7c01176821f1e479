"""The crosscheck beside fio: its parsing, its judgement, and one quick run where fio is installed."""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from iobench.crosscheck import storage
from iobench.crosscheck.storage import Fio, Ours, Tried
from iobench.errors import IobenchError, Unavailable, UserError
from iobench.storage import flight
from iobench.storage.filesystem import filesystem_of
from iobench.storage.make import made
from iobench.units import MIB


def output(moved: int, milliseconds: int, error: int = 0) -> str:
    job = {"jobname": "peer", "error": error, "read": {"io_bytes": moved, "runtime": milliseconds}}
    return json.dumps({"fio version": "fio-3.33", "jobs": [job]})


def test_the_rate_is_bytes_over_runtime() -> None:
    assert storage.rate(output(2_000_000_000, 500), "", 0, 2_000_000_000) == 4e9


def test_words_before_the_json_are_passed_over() -> None:
    text = "note: both iodepth >= 1 and synchronous I/O engine are selected\n" + output(1000, 1)
    assert storage.rate(text, "", 0, 1000) == 1e6


@pytest.mark.parametrize(
    ("out", "err", "code", "words"),
    [
        ("", "fio: engine libaio not loadable\nmore", 1, "engine libaio not loadable"),
        ("", "", 1, "status 1"),
        (output(1000, 1, error=1), "fio: io_uring_setup: Operation not permitted", 0, "not permitted"),
        (output(1000, 1), "killed", 137, "killed"),
        ("{}", "", 0, "."),
        ("{", "", 0, "."),
        ('{"jobs": [{"error": 0, "read": {"io_bytes": null, "runtime": 1}}]}', "", 0, "."),
        (output(400, 1), "", 0, "read 400 of 1000 bytes"),
        (output(1000, 0), "", 0, "read 1000 of 1000 bytes"),
    ],
)
def test_a_failed_fio_is_an_error_with_its_words(out: str, err: str, code: int, words: str) -> None:
    with pytest.raises(IobenchError, match=words):
        storage.rate(out, err, code, 1000)


def test_a_fio_that_does_not_end_is_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def hangs(command: list[str], timeout: float, **_: Any) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", hangs)
    with made(tmp_path, MIB, 1) as found, pytest.raises(IobenchError, match="fio has not ended within"):
        Fio("psync", MIB).measure(found.checkpoint)


def test_fio_reads_the_same_bytes_with_direct_io() -> None:
    command = Fio("psync", MIB, jobs=8).command(Path("/x"), 512 * MIB)
    assert {"--direct=1", "--rw=read", "--filename=/x", f"--size={64 * MIB}", "--numjobs=8"} <= set(command)
    assert f"--io_size={storage.PASSES * 64 * MIB}" in command


def test_every_engine_and_only_fitting_configurations_take_part() -> None:
    names = [contender.engine for contender in storage.contenders(512 * MIB) if isinstance(contender, Fio)]
    assert set(names) == {"psync", "libaio", "io_uring"}
    small = [contender for contender in storage.contenders(16 * MIB) if isinstance(contender, Fio)]
    assert all(16 * MIB // contender.jobs >= 2 * contender.block for contender in small)


def test_iobench_takes_part_with_every_engine() -> None:
    ours = [contender for contender in storage.contenders(512 * MIB) if isinstance(contender, Ours)]
    assert {contender.engine for contender in ours} == set(flight.ENGINES)
    assert all(contender.depth > 1 for contender in ours if contender.engine != flight.PREADV)
    assert len({contender.name for contender in ours}) == len(ours)


def test_a_bar_within_the_interval_is_undecided() -> None:
    peer = Tried(Fio("psync", MIB), [2.0e9] * 5)
    for rates, open_still in (
        ([1.0e9] * 5, False),
        ([2.0e9] * 5, False),
        ([1.8e9, 2.0e9, 1.94e9, 1.8e9, 2.0e9], True),
    ):
        assert storage.undecided([Tried(Ours(1, MIB), list(rates)), peer]) is open_still


def test_turns_alternate_their_order() -> None:
    order: list[str] = []
    tried = [Tried(Ours(1, MIB)), Tried(Fio("psync", MIB, jobs=2))]

    def measure(contender: storage.Contender) -> float:
        order.append(type(contender).__name__)
        return 1.0

    storage.in_turns(tried, measure, 3)
    assert order == ["Ours", "Fio", "Fio", "Ours", "Ours", "Fio"]
    assert [len(entry.rates) for entry in tried] == [3, 3]


@pytest.mark.parametrize(("ours", "met"), [(2.0e9, True), (1.94e9, True), (1.93e9, False)])
def test_the_bar_is_97_percent_of_fios_best(ours: float, met: bool) -> None:
    said: list[str] = []
    finals = [
        Tried(Ours(1, MIB), [0.1e9] * 3),
        Tried(Ours(4, MIB), [ours] * 3),
        Tried(Fio("psync", MIB), [1.0e9] * 3),
        Tried(Fio("libaio", MIB, 16), [2.0e9, 9e9, 1e9]),
    ]
    assert storage.judge(finals, said.append) is met
    assert said[2].startswith("PASS" if met else "FAIL")
    assert f"{ours / 2e9:.3f}" in said[2]
    assert "quiet machine" in said[3], "fio's rates spread so far that the bar lies within the interval"


def test_drift_that_hits_both_cancels() -> None:
    said: list[str] = []
    drift = np.linspace(1e9, 3e9, 25)
    finals = [Tried(Ours(4, MIB), list(0.98 * drift)), Tried(Fio("psync", MIB), list(drift))]
    assert storage.judge(finals, said.append)
    assert len(said) == 2, "the interval of the ratio is narrow although the rates tripled"
    assert "ratio 0.980" in said[1]


def test_without_fio_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    said: list[str] = []
    assert storage.run(said.append) is False
    assert said == [said[0]]
    assert "apt-get install fio" in said[0]


def test_a_folder_in_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/fio")
    monkeypatch.setattr(storage, "filesystem_of", lambda path: storage_filesystem("tmpfs"))
    with pytest.raises(UserError, match="not a storage measurement"):
        storage.run(lambda text: None, scratch=tmp_path)
    assert list(tmp_path.iterdir()) == []


def storage_filesystem(name: str) -> Any:
    from iobench.storage.filesystem import Filesystem

    return Filesystem(name)


def test_an_engine_that_fails_is_left_out_and_said(tmp_path: Path) -> None:
    class Broken(Fio):
        def measure(self, checkpoint: Any) -> float:
            raise IobenchError("io_uring_setup: Operation not permitted")

    said: list[str] = []
    rates = itertools.count(1)
    usable = storage._usable(
        [Broken("io_uring", MIB), Ours(1, MIB)],
        lambda contender: contender.measure(None) if isinstance(contender, Broken) else float(next(rates)),
        said.append,
    )
    assert [type(entry.contender).__name__ for entry in usable] == ["Ours"]
    assert said[0].startswith("left out: fio io_uring")
    assert "not permitted" in said[0]


def works_here(command: list[str]) -> None:
    """Skip where fio itself refuses: no O_DIRECT on this file system, no shared memory for its jobs."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"fio does not work here: {(done.stderr or done.stdout).strip()[:200]}")


def test_both_sides_really_read_the_file(tmp_path: Path) -> None:
    if shutil.which("fio") is None:
        pytest.skip("fio is not installed")
    if not filesystem_of(tmp_path).is_storage:
        pytest.skip(f"the temporary folder is on {filesystem_of(tmp_path).name}: no O_DIRECT to compare")
    with made(tmp_path, 16 * MIB, 1) as files:
        works_here(Fio("psync", MIB, jobs=2).command(files.checkpoint.shards[0].path, 16 * MIB))
        for contender in (Ours(4, MIB), Fio("psync", MIB, jobs=2)):
            assert contender.measure(files.checkpoint) > 0
        for engine in (flight.IO_URING, flight.AIO):
            with contextlib.suppress(Unavailable):
                assert Ours(1, MIB, engine, 4).measure(files.checkpoint) > 0
        command = Fio("libaio", MIB, 4).command(files.checkpoint.shards[0].path, 16 * MIB)
        assert storage._huge_nbytes_of(command) >= 0
