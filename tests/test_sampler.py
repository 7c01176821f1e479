"""The adaptive sampler on a fake clock: when it stops, what it discards, how long it takes at most."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from iobench.timing import clock as clock_module
from iobench.timing import sampler as sampler_module
from iobench.timing.clock import Clock
from iobench.timing.sampler import MIN_SAMPLES, SURE_SAMPLES, Sampler


class FakeTime:
    """A clock that only moves when an operation takes time; reading it costs ``cost`` seconds."""

    def __init__(self, cost: float = 0.0) -> None:
        self.now, self.cost = 1000.0, cost

    def perf_counter(self) -> float:
        self.now += self.cost
        return self.now

    def perf_counter_ns(self) -> int:
        return round(self.perf_counter() * 1e9)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    return _install(monkeypatch, FakeTime())


def _install(monkeypatch: pytest.MonkeyPatch, fake: FakeTime) -> FakeTime:
    monkeypatch.setattr(sampler_module, "time", fake)
    monkeypatch.setattr(clock_module, "time", fake)
    return fake


class Take:
    """Hands out durations and lets the fake clock run; remembers how many were asked for at once."""

    def __init__(self, fake: FakeTime, duration: Callable[[int], float], ranks: int = 1) -> None:
        self.fake, self.duration, self.ranks = fake, duration, ranks
        self.made = 0
        self.counts: list[int] = []

    def __call__(self, count: int) -> list[list[float]]:
        self.counts.append(count)
        rows: list[list[float]] = [[] for _ in range(self.ranks)]
        for _ in range(count):
            seconds = self.duration(self.made)
            self.made += 1
            self.fake.sleep(seconds)
            for rank, row in enumerate(rows):
                row.append(seconds / (rank + 1))
        return rows


def noisy(spread: float, seconds: float = 1e-3, seed: int = 0) -> Callable[[int], float]:
    rng = np.random.default_rng(seed)
    return lambda _: float(seconds * np.exp(spread * rng.normal()))


def kept(timed: Any) -> int:
    return len(timed.seconds[0])


def test_quiet_data_converges_early(fake: FakeTime) -> None:
    take = Take(fake, noisy(0.002))
    start = fake.now
    timed = Sampler(budget=10.0).collect(take)
    assert timed.stop == "converged"
    assert fake.now - start < 3.0
    assert SURE_SAMPLES <= kept(timed) < 200
    assert kept(timed) + len(timed.warmup[0]) == take.made


@pytest.mark.parametrize(("budget", "least", "most"), [(0.01, 5, 5), (0.04, 5, 11), (10.0, 12, 12)])
def test_few_samples_are_enough_only_where_time_is_up(fake: FakeTime, budget: float, least: int, most: int) -> None:
    """Neighbours are alike: five equal times in a row say little about the sixth."""
    timed = Sampler(budget=budget).collect(Take(fake, lambda _: 4e-3))
    assert least <= kept(timed) <= most
    assert timed.stop == ("converged" if budget > 1 else "budget")
    assert kept(timed) >= MIN_SAMPLES


def test_noisy_data_uses_the_budget_and_little_more(fake: FakeTime) -> None:
    start = fake.now
    timed = Sampler(budget=1.0).collect(Take(fake, noisy(0.5)))
    assert timed.stop == "budget"
    assert 1.0 <= fake.now - start < 1.1


def test_the_number_of_samples_is_bounded(fake: FakeTime) -> None:
    timed = Sampler(budget=1e6, max_samples=300).collect(Take(fake, noisy(0.5)))
    assert timed.stop == "max_samples"
    assert kept(timed) == 300


def test_a_finer_target_takes_more_samples(fake: FakeTime) -> None:
    coarse = Sampler(budget=1e3, target=0.1).collect(Take(fake, noisy(0.1)))
    fine = Sampler(budget=1e3, target=0.01).collect(Take(fake, noisy(0.1)))
    assert coarse.stop == fine.stop == "converged"
    assert kept(fine) > 4 * kept(coarse)


@pytest.mark.parametrize("least", [1, 2, 5, 30])
def test_slow_operations_still_give_the_least_number(fake: FakeTime, least: int) -> None:
    take = Take(fake, noisy(0.3, seconds=2.0))
    timed = Sampler(budget=0.1, min_samples=least).collect(take)
    assert kept(timed) == least
    assert timed.stop == "budget"
    assert take.made <= least + 2  # one to warm up, one more at most within the warm-up's share


def test_one_sample_never_counts_as_converged(fake: FakeTime) -> None:
    timed = Sampler(budget=10.0, min_samples=1).collect(Take(fake, lambda _: 1e-3))
    assert kept(timed) >= 2


def test_fewer_at_most_than_at_least(fake: FakeTime) -> None:
    assert kept(Sampler(budget=1.0, min_samples=5, max_samples=3).collect(Take(fake, noisy(0.1)))) == 3


def test_a_slow_first_operation_is_discarded_and_not_on_the_budget(fake: FakeTime) -> None:
    take = Take(fake, lambda made: 5.0 if made == 0 else 1e-3)
    timed = Sampler(budget=0.3).collect(take)
    assert timed.warmup[0][0] == 5.0
    assert max(timed.seconds[0]) == 1e-3
    assert len(timed.warmup[0]) >= 11  # two full windows agreed after it
    assert timed.stop == "converged"


def test_the_warm_up_waits_until_the_times_settle(fake: FakeTime) -> None:
    take = Take(fake, lambda made: 1e-3 * (1 + 4 * math.exp(-made / 20)))
    timed = Sampler(budget=10.0).collect(take)
    assert timed.seconds[0][0] < 1.3e-3


def test_the_warm_up_ends_even_if_the_times_never_settle(fake: FakeTime) -> None:
    timed = Sampler(budget=4.0).collect(Take(fake, lambda made: 1e-3 * 2 ** (made % 7)))
    assert sum(timed.warmup[0]) < 1.5
    assert kept(timed) >= MIN_SAMPLES


def test_ranks_keep_their_shape_and_the_slowest_decides(fake: FakeTime) -> None:
    timed = Sampler(budget=1.0).collect(Take(fake, noisy(0.01), ranks=3))
    assert len(timed.seconds) == len(timed.warmup) == 3
    assert len({len(row) for row in timed.seconds}) == 1
    assert timed.seconds[2][0] == pytest.approx(timed.seconds[0][0] / 3)


def test_a_plain_list_or_array_is_one_rank(fake: FakeTime) -> None:
    for kind in (list, np.array):
        take = Take(fake, noisy(0.001))
        timed = Sampler(budget=0.1).collect(lambda count, take=take, kind=kind: kind(take(count)[0]))
        assert len(timed.seconds) == 1


@pytest.mark.parametrize("block", [[], [[]], [[0.0]], [[-1.0]], [[math.nan]], [[math.inf]], [[[1.0]]], 1.0])
def test_no_or_impossible_durations_are_an_error_not_an_endless_loop(block: Any) -> None:
    with pytest.raises(ValueError, match="duration"):
        Sampler(budget=0.01).collect(lambda _: block)


@settings(deadline=None, max_examples=80)
@given(
    budget=st.floats(0.0, 2.0),
    seconds=st.floats(1e-6, 1.0),
    spread=st.floats(0.0, 1.0),
    least=st.integers(1, 20),
    seed=st.integers(0, 1000),
)
def test_the_time_taken_is_bounded(budget: float, seconds: float, spread: float, least: int, seed: int) -> None:
    """Never more than the budget, the least number of samples and a few of the slowest operations."""
    with pytest.MonkeyPatch.context() as patch:
        fake = _install(patch, FakeTime(cost=1e-6))
        slowest = [0.0]
        draw = noisy(spread, seconds, seed)

        def duration(made: int) -> float:
            value = min(draw(made), 4 * seconds)
            slowest[0] = max(slowest[0], value)
            return value

        start = fake.now
        timed = Sampler(budget=budget, min_samples=least, max_samples=500).collect(Take(fake, duration))
        taken = fake.now - start
    assert min(least, 500) <= kept(timed) <= 500
    # The mean of few heavy-tailed samples mispredicts the next block by a small factor at most.
    assert taken <= 2 * budget + (least + 4) * slowest[0] + 0.01


def test_blocks_double_so_that_checks_cost_little(fake: FakeTime) -> None:
    take = Take(fake, noisy(0.5, seconds=1e-5))
    Sampler(budget=10.0, max_samples=2000).collect(take)
    assert len(take.counts) < 30


# --- host --------------------------------------------------------------------------------------------


def test_long_operations_are_timed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = _install(monkeypatch, FakeTime(cost=50e-9))
    timed = Sampler(budget=0.1).host(lambda: fake.sleep(1e-4))
    assert timed.ops == 1
    assert timed.notes == []
    assert np.median(timed.seconds[0]) == pytest.approx(1e-4, rel=0.01)


def test_short_operations_are_batched_and_labelled(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = _install(monkeypatch, FakeTime(cost=50e-9))
    timed = Sampler(budget=0.1).host(lambda: fake.sleep(100e-9))
    assert timed.ops >= 50
    assert "batched" in timed.notes[0]
    assert np.median(timed.seconds[0]) / timed.ops == pytest.approx(100e-9, rel=0.02)


def test_a_slow_first_call_does_not_hide_that_the_operation_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = _install(monkeypatch, FakeTime(cost=50e-9))
    calls = iter([0.5])
    timed = Sampler(budget=0.1).host(lambda: fake.sleep(next(calls, 100e-9)))
    assert timed.ops >= 50


def test_a_pause_while_the_batch_is_guessed_does_not_hide_that_the_operation_is_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = _install(monkeypatch, FakeTime(cost=50e-9))
    calls = iter([100e-9, 0.3])
    timed = Sampler(budget=0.1).host(lambda: fake.sleep(next(calls, 100e-9)))
    assert timed.ops >= 30
    assert "batched" in timed.notes[0]
    assert not any("the clock itself" in note for note in timed.notes)


@pytest.mark.parametrize(
    ("sample", "ops", "wanted"), [(4e-6, 1, 1), (1.01e-6, 1, 6), (2e-6, 10, 26), (1e-12, 1, 1 << 20)]
)
def test_more_operations_where_the_samples_are_too_short(
    monkeypatch: pytest.MonkeyPatch, sample: float, ops: int, wanted: int
) -> None:
    _install(monkeypatch, FakeTime(cost=50e-9))
    assert Clock().more(sample, ops) == wanted


def test_before_runs_ahead_of_each_sample_outside_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = _install(monkeypatch, FakeTime(cost=50e-9))
    order: list[str] = []

    def before() -> None:
        order.append("before")
        fake.sleep(1e-2)

    def operation() -> None:
        order.append("operation")
        fake.sleep(1e-6)

    timed = Sampler(budget=0.5).host(operation, before)
    assert timed.ops == 1
    assert order == ["before", "operation"] * (len(order) // 2)
    assert max(timed.seconds[0]) < 1e-4
    assert "clock itself is 5%" in timed.notes[0]


def test_a_clock_of_coarse_steps_costs_one_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = _install(monkeypatch, FakeTime(cost=50e-9))
    exact = fake.perf_counter_ns
    monkeypatch.setattr(fake, "perf_counter_ns", lambda: exact() // 1000 * 1000)
    assert Clock().cost == pytest.approx(1e-6)
    timed = Sampler(budget=0.5).host(lambda: fake.sleep(200e-9))
    assert timed.ops >= 450
    assert np.median(timed.seconds) / timed.ops == pytest.approx(200e-9, rel=0.02)


def test_a_clock_that_stands_still_costs_nothing(fake: FakeTime) -> None:
    assert Clock().cost == 0


def test_an_operation_of_the_real_clock_is_batched() -> None:
    """No bound on how long it takes: whoever else runs here decides that."""
    timed = Sampler(budget=0.02).host(lambda: None)
    assert timed.ops > 1
    assert min(timed.seconds[0]) > 0


def test_the_real_clock_has_a_cost() -> None:
    clock = Clock()
    assert 0 < clock.cost < 1e-5
    assert 0 < clock.call_cost < 1e-5


def test_errors_of_the_operation_come_through() -> None:
    def broken() -> None:
        raise RuntimeError("no device")

    with pytest.raises(RuntimeError, match="no device"):
        Sampler(budget=0.01).host(broken)


# --- shared ------------------------------------------------------------------------------------------


def test_shared_things_are_made_once_and_closed_in_reverse() -> None:
    log: list[str] = []

    @contextlib.contextmanager
    def thing(name: str) -> Iterator[str]:
        log.append(f"open {name}")
        yield name
        log.append(f"close {name}")

    sampler = Sampler()
    assert sampler.shared("a", lambda: thing("a")) == "a"
    assert sampler.shared("a", lambda: thing("never")) == "a"
    assert sampler.shared(("b", 1), lambda: thing("b")) == "b"
    sampler.close()
    assert log == ["open a", "open b", "close b", "close a"]
    assert sampler.shared("a", lambda: thing("again")) == "again"


def test_a_budget_on_the_real_clock_is_kept() -> None:
    start = time.perf_counter()
    timed = Sampler(budget=0.2, target=0.0).host(lambda: time.sleep(0.002))
    assert timed.stop in ("budget", "max_samples")
    assert time.perf_counter() - start < 30  # 2,000 samples, the most it takes, would be 4 s: it ends
