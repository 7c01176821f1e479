"""The most ranks of a run held against what its fewer ranks foretell."""

from __future__ import annotations

import pytest
from iobench.fit.scale import foretold
from iobench.report.models import view_of

from collective_runs import SIZES, collective_run
from make_run import run_of


def test_a_known_machine_is_foretold() -> None:
    run = collective_run(ops=("all_reduce",), counts=(2, 4, 8))
    (trial,) = foretold.trials(run)
    assert (trial.wanted, trial.known, len(trial.points)) == (8, (2, 4), len(SIZES))
    assert all(inside for _, _, inside in trial.points)
    assert max(abs(error) for _, error, _ in trial.points) < 0.05
    assert "8 ranks foretold from 2 and 4, which this run measured: median error" in trial.sentence
    assert f"{len(SIZES)} of {len(SIZES)} sizes lie within the interval foretold" in trial.sentence
    assert any(sentence == trial.sentence for _, sentence in view_of(run).findings)


def test_a_machine_that_breaks_at_eight_is_not() -> None:
    run = collective_run(ops=("all_reduce",), counts=(2, 4))
    slow = collective_run(ops=("all_reduce",), counts=(8,))
    lines = [line for one in (run, slow) for record in one for line in record.lines]
    for line in lines:
        if line.point["ranks"] == 8:
            line.seconds = [[3 * value for value in row] for row in line.seconds]
    (trial,) = foretold.trials(run_of(lines, name="4x-a100", topology={}))
    assert not any(inside for _, _, inside in trial.points)
    assert "worst 6" in trial.sentence


@pytest.mark.parametrize("counts", [(2,), (2, 4)])
def test_two_numbers_of_ranks_are_no_trial(counts: tuple[int, ...]) -> None:
    assert foretold.trials(collective_run(ops=("all_reduce",), counts=counts)) == []
