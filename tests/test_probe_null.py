"""The known workload: what the probe's constants say comes back from the fit, on a clock that nobody stops."""

from __future__ import annotations

import random
import sys

import iobench
import pytest
from iobench import probe as probes
from iobench import worker
from iobench.record import Line
from iobench.timing import clock, sampler
from iobench.timing.sampler import Sampler
from tests.make_run import run_of

READ_NS = 400, 700  # what one reading of the clock takes: a machine whose clock is slow


class Clock:
    """Stands for ``time``: it moves by what a reading costs, and by what is slept."""

    def __init__(self, seed: int) -> None:
        self.now_ns, self._rng = 0, random.Random(seed)

    def perf_counter_ns(self) -> int:
        self.now_ns += self._rng.randint(*READ_NS)
        return self.now_ns

    def perf_counter(self) -> float:
        return self.perf_counter_ns() * 1e-9

    def sleep(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Line]]:
    """Return three launches' lines of each kind."""
    probe = probes.load("null")
    points = list(probe.points(None, probes.narrow(probe, ["kind=wait,sleep", "nbytes=1K:1M"])))  # type: ignore[arg-type]
    made: dict[str, list[Line]] = {}
    for launch in range(3):
        ticking = Clock(launch)
        for module in (clock, sampler, worker, sys.modules["iobench_probe_null"]):
            monkeypatch.setattr(module, "time", ticking)
        for point in points:
            line = worker.measure(probe, point, Sampler(budget=probe.point_seconds, launch=launch))
            made.setdefault(point["kind"], []).append(line)
    return made


def test_the_known_workload_comes_back_from_the_fit(measured: dict[str, list[Line]]) -> None:
    models = {"null": [dict(model) for model in probes.load("null").models]}
    (fitted,) = iobench.fit(run_of(measured["wait"], models=models))
    assert fitted.model is not None
    assert fitted.model.valid == (1 << 10, 1 << 20)
    # The clock is read as the spin begins, half a reading after its end on average, and once for each sample.
    for nbytes in (1 << 10, 3000, 1 << 15, 1 << 20):
        assert fitted.model.predict(nbytes).seconds == pytest.approx(20e-6 + nbytes / 2e9 + 1.1e-6, abs=0.4e-6)
    assert fitted.model.parameters["B"].value == pytest.approx(2e9, rel=0.02)


def test_a_sleep_takes_what_it_sleeps(measured: dict[str, list[Line]]) -> None:
    assert {line.status for lines in measured.values() for line in lines} == {"ok"}
    sleeps = [seconds for line in measured["sleep"] for seconds in line.seconds[0]]
    assert sleeps == pytest.approx([1e-3 + 0.55e-6] * len(sleeps), abs=0.2e-6)
