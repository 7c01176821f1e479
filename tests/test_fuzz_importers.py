"""A short run of the fuzzer; ``make fuzz`` is the long one."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

from iobench.importers.log import from_bytes
from tests.fuzz import fuzz_importers


def test_a_short_run_finds_nothing(tmp_path: Path) -> None:
    script = Path(fuzz_importers.__file__)
    # so many inputs, not so much time: a faster machine must not meet inputs that no other has seen
    done = subprocess.run(
        [sys.executable, script, "600", "1", "400"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "none misbehaved" in done.stdout


def test_the_fuzzer_reports_what_misbehaves(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    def broken(*_: object) -> None:
        raise KeyError("boom")

    monkeypatch.setattr(fuzz_importers.importers, "read_log", broken)
    assert "KeyError: 'boom'" in fuzz_importers.problem(b"x")
    monkeypatch.setattr(fuzz_importers, "SLOWEST", -1.0)
    monkeypatch.setattr(fuzz_importers.importers, "read_log", lambda log: None)
    monkeypatch.setattr(fuzz_importers, "size_of", lambda run: 0)
    monkeypatch.setattr(fuzz_importers.importers, "to_run", lambda log, imported: None)
    assert "s of CPU" in fuzz_importers.problem(b"x")


def test_slow_is_what_is_slow_every_time(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """A pause of the machine while it reads one input is no finding; an input that always takes long is."""
    took: list[float] = []

    class Clock:
        now = 0.0

        def process_time(self) -> float:
            return self.now

    clock = Clock()

    def read(_: object) -> None:
        clock.now += took.pop(0)

    monkeypatch.setattr(fuzz_importers, "time", clock)
    monkeypatch.setattr(fuzz_importers.importers, "read_log", read)
    monkeypatch.setattr(fuzz_importers, "size_of", lambda run: 0)
    monkeypatch.setattr(fuzz_importers.importers, "to_run", lambda log, imported: None)
    took += [30.0, 3.0, 0.1]
    assert fuzz_importers.problem(b"x") == ""
    took += [30.0, 3.0, 2.1]
    assert fuzz_importers.problem(b"x") == "took 2.1 s of CPU for 1 bytes"


def test_mutations_are_the_same_for_the_same_seed() -> None:
    corpus = fuzz_importers.seeds()
    assert len(corpus) > 20
    first, second = (fuzz_importers.mutated(random.Random(9), corpus) for _ in range(2))
    assert first == second
    assert from_bytes(first or b"x")
