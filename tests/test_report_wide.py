"""Why an interval is wider than was asked for stands beside it: time was up, or launches differ."""

from __future__ import annotations

from iobench.check import judge
from iobench.record import Line
from iobench.report.notices import Notice, notices
from iobench.units import US
from tests.make_run import run_of


def point(n: int, launches: tuple[float, ...], stop: str) -> list[Line]:
    made = []
    for number, seconds in enumerate(launches):
        line = Line("null", "sha256:0", {"n": n}, number, quantity="latency", mode="host", stop=stop, verified=True)
        line.seconds = [[seconds * (1 + 1e-4 * k) for k in range(10)]]
        made.append(line)
    return made


def found(*points: list[Line]) -> list[Notice]:
    run = run_of([line for lines in points for line in lines])
    return [notice for notice in notices(run, judge(run)) if notice.kind in ("budget", "launches")]


def test_launches_that_differ_are_the_reason() -> None:
    (notice,) = found(
        point(1, (10 * US, 12 * US, 11 * US), "converged"), point(2, (10 * US, 10 * US, 10 * US), "converged")
    )
    assert notice.kind == "launches"
    assert "the launches of 1 point differ by more than ±1 %" in notice.text
    assert "--launches" in notice.text


def test_time_that_was_up_comes_first() -> None:
    (notice,) = found(point(1, (10 * US, 12 * US, 11 * US), "budget"))
    assert notice.kind == "budget"


def test_narrow_intervals_and_single_launches_need_no_reason() -> None:
    assert found(point(1, (10 * US, 10 * US, 10 * US), "converged"), point(2, (10 * US,), "converged")) == []


def test_a_single_sample_has_no_interval_to_be_the_widest() -> None:
    single = Line("null", "s", {"n": 3}, seconds=[[10 * US]], stop="budget")
    (notice,) = found(point(1, (10 * US, 12 * US, 11 * US), "budget"), [single])
    assert "within ±1 %; a single sample has no interval (n 3). Give more time" in notice.text
