"""A worker seen from its parent, on a clock of the tests' own: what is silence, and what is only a pause of us both."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from iobench import child as module
from iobench import patience
from iobench.child import START_SECONDS, TICK_SECONDS, Child, Hung
from iobench.worker import Order

DEADLINE = 4.0


class Waiting:
    """Stands for ``time`` and ``select``: a look at the pipe takes as long as ``looks`` says, and finds what ``says``
    has for it."""

    def __init__(self, looks: Callable[[int], float], says: dict[int, bytes], write: int) -> None:
        self.now, self._looks, self._says, self._write, self._count = 0.0, looks, says, write, itertools.count()

    def monotonic(self) -> float:
        return self.now

    def select(self, read: list[int], *_: object) -> tuple[list[int], list[int], list[int]]:
        number = next(self._count)
        self.now += self._looks(number)
        if number not in self._says:
            return [], [], []
        os.write(self._write, self._says[number])
        return read, [], []


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., tuple[list[Any], float]]]:
    """Return what a worker's events are, and when it was given up."""
    read, write = os.pipe()

    def hear(looks: Callable[[int], float], says: dict[int, bytes] | None = None) -> tuple[list[Any], float]:
        made = object.__new__(Child)
        made._read, made._buffer, made._closed = read, b"", False
        fake = Waiting(looks, says or {}, write)
        monkeypatch.setattr(patience, "time", fake)
        monkeypatch.setattr(module, "select", fake)
        events: list[Any] = []
        try:
            for event in made.events(DEADLINE):
                events += [event] if event else []
        except Hung:
            return events, fake.now
        raise AssertionError("never given up")

    yield hear
    os.close(read)
    os.close(write)


def test_a_start_may_take_long_and_silence_after_it_may_not(heard: Callable[..., tuple[list[Any], float]]) -> None:
    _, at = heard(lambda _: TICK_SECONDS)
    assert at == pytest.approx(START_SECONDS, abs=2 * TICK_SECONDS)
    _, at = heard(lambda _: TICK_SECONDS, {250: b'{"event": "ready"}\n'})  # after 50 s
    assert at == pytest.approx(251 * TICK_SECONDS + DEADLINE, abs=2 * TICK_SECONDS)


@pytest.mark.parametrize("pause", [5.0, 3600.0])
def test_a_pause_of_the_whole_machine_is_no_silence(
    heard: Callable[..., tuple[list[Any], float]], pause: float
) -> None:
    """One look takes an hour: this process did not run, and neither did the worker, which answers right after."""
    says = {0: b'{"event": "ready"}\n', 3: b'{"event": "start"}\n', 6: b'{"event": "done"}\n'}

    def looks(number: int) -> float:
        return pause if number in (2, 5) else TICK_SECONDS

    events, at = heard(looks, says)
    assert [event["event"] for event in events] == ["ready", "start", "done"]
    assert at == pytest.approx(2 * pause + 5 * TICK_SECONDS + DEADLINE, abs=2 * TICK_SECONDS)


def test_events_that_come_in_pieces_are_whole(heard: Callable[..., tuple[list[Any], float]]) -> None:
    events, _ = heard(lambda _: TICK_SECONDS, {0: b'{"event": "re', 1: b'ady"}\n{"event": "start"}\n{"ev'})
    assert [event["event"] for event in events] == ["ready", "start"]


@pytest.mark.parametrize("ignores", ["", "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "])
def test_what_is_ended_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ignores: str) -> None:
    """A worker that hears no SIGTERM is killed; when ``end`` returns there is no process left."""
    worker = tmp_path / "python"
    worker.write_text(f"#!/bin/sh\nexec {sys.executable} -c '{ignores}print(1, flush=True); input(); input()'\n")
    worker.chmod(0o755)
    monkeypatch.setattr(module.sys, "executable", str(worker))
    made = Child(Order("probe.py", [], 0, str(tmp_path)), tmp_path / "log")
    while not (tmp_path / "log").read_bytes():
        assert made.process.poll() is None
    assert made.end().startswith("killed by SIG")
    assert made.process.returncode is not None
