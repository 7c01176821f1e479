"""Two runs in a row: what agrees, what does not, and what is said."""

from __future__ import annotations

from iobench.crosscheck import repeat
from iobench.record import Record, Run
from tests.make_run import lines, run_of


def record(median: float, spread: float = 0.01) -> Record:
    medians = [median * factor for factor in (1 - spread, 1, 1 + spread)]
    return run_of(lines("null", {"kind": "empty"}, medians, noise=0)).records[0]


def test_agrees_inside_the_interval_or_within_three_percent() -> None:
    first = record(1.0, spread=0.05)
    assert first.time.low < 0.9 < first.time.high
    assert repeat.agrees(first, record(0.9))
    tight = record(1.0, spread=0.0001)
    assert repeat.agrees(tight, record(1.029, spread=0))
    assert not repeat.agrees(tight, record(1.04, spread=0))


def test_judge_says_each_disagreement_and_the_share() -> None:

    def run(shift: float) -> Run:
        made = []
        for n in range(10):
            seconds = 1e-3 * (shift if n == 0 else 1.0)
            made += lines("null", {"kind": "wait", "nbytes": n}, seconds, noise=0.001)
        return run_of(made)

    said: list[str] = []
    assert repeat.judge(run(1.0), run(1.0), said.append)
    assert said[-1] == "PASS: 100.0% of 10 points agree (bar 90%)"
    said.clear()
    assert repeat.judge(run(1.0), run(2.0), said.append), "9 of 10 is the bar itself"
    assert sum(text.startswith("apart") for text in said) == 1
    assert not repeat.judge(run_of([]), run_of([]), said.append)
