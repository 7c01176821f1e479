"""The interval's coverage by simulation with a fixed seed, the tails that n allows, invariances."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from iobench.stats import median_interval, median_intervals, tails

SECONDS = st.floats(1e-9, 1e3)
GROUPS = st.lists(st.lists(SECONDS, min_size=1, max_size=30), min_size=1, max_size=5)
ROUNDS = 400


def _noise(rng: np.random.Generator, n: int, rho: float = 0.0, spread: float = 0.05) -> np.ndarray:
    """AR(1) noise of unit median; ``rho`` 0 is independent."""
    steps = rng.normal(size=n)
    values = np.empty(n)
    values[0] = steps[0]
    for i in range(1, n):
        values[i] = rho * values[i - 1] + math.sqrt(1 - rho * rho) * steps[i]
    return np.exp(spread * values)


def _launches(rng: np.random.Generator, count: int, n: int) -> list[np.ndarray]:
    """Launches that differ five times as much as the samples inside one do."""
    return [np.exp(0.05 * rng.normal()) * _noise(rng, n, spread=0.01) for _ in range(count)]


@pytest.mark.parametrize(
    ("make", "least"),
    [
        pytest.param(lambda rng: [_noise(rng, 2)], 0.92, id="two samples"),
        pytest.param(lambda rng: [_noise(rng, 5)], 0.93, id="five samples"),
        pytest.param(lambda rng: [_noise(rng, 100)], 0.95, id="independent"),
        pytest.param(lambda rng: [_noise(rng, 20) for _ in range(3)], 0.95, id="three launches"),
        pytest.param(lambda rng: [_noise(rng, 1) for _ in range(3)], 0.92, id="one sample in each of three launches"),
        pytest.param(lambda rng: [_noise(rng, 100, 0.5)], 0.93, id="correlated"),
        pytest.param(lambda rng: [_noise(rng, 200, 0.9)], 0.85, id="strongly correlated"),
        pytest.param(lambda rng: _launches(rng, 2, 50), 0.92, id="two launches that differ"),
        pytest.param(lambda rng: _launches(rng, 3, 50), 0.92, id="three launches that differ"),
        pytest.param(lambda rng: _launches(rng, 5, 50), 0.92, id="five launches that differ"),
    ],
)
def test_coverage_of_the_true_median(make: Callable[[np.random.Generator], list[np.ndarray]], least: float) -> None:
    rng = np.random.default_rng(20)
    hits = 0
    for _ in range(ROUNDS):
        interval = median_interval(make(rng))
        hits += interval.low <= 1.0 <= interval.high
    assert hits / ROUNDS >= least


def test_the_interval_narrows_with_n_and_is_not_absurdly_wide() -> None:
    rng = np.random.default_rng(3)
    widths = [np.mean([median_interval([_noise(rng, n)]).fraction for _ in range(50)]) for n in (10, 100, 1000)]
    assert widths[0] > widths[1] > widths[2]
    # The distribution-free interval of n samples is +-1.96 * 1.2533 sigma / sqrt(n).
    assert widths[2] < 2 * 1.96 * 1.2533 * 0.05 / math.sqrt(1000)


def test_order_statistics_are_the_textbook_ranks() -> None:
    """n = 20: ranks 6 and 15 cover 95.9 % (Conover 1999, table A3)."""
    samples = np.arange(1.0, 21.0)
    rng = np.random.default_rng(0)
    rng.shuffle(samples)
    interval = median_interval([samples])
    assert interval.low <= 6.0
    assert interval.high >= 15.0
    assert interval.median == 10.5


def test_more_samples_of_one_launch_never_suddenly_widen_the_interval() -> None:
    """Two batches have one degree of freedom: eight to eleven samples had three times the interval of seven."""
    rng = np.random.default_rng(3)
    widths = [np.median([median_interval([_noise(rng, n)]).fraction for _ in range(200)]) for n in range(4, 25)]
    assert all(after < 1.3 * before for before, after in itertools.pairwise(widths))


@pytest.mark.parametrize("n", range(5, 12))
def test_the_interval_of_few_samples_holds_their_median(n: int) -> None:
    rng = np.random.default_rng(n)
    found = [median_interval([np.exp(rng.normal(0, 0.1, n))]) for _ in range(400)]
    assert sum(one.low <= 1 <= one.high for one in found) >= 0.93 * len(found)


def test_one_sample_never_looks_precise() -> None:
    assert median_interval([np.array([1.0])]).fraction == math.inf


def test_two_wildly_different_launches_keep_a_positive_lower_end() -> None:
    interval = median_interval([np.array([1e-9]), np.array([1e3])])
    assert 0 < interval.low < interval.median < interval.high < math.inf


def test_no_samples_is_an_error() -> None:
    for empty in ([], [np.array([])]):
        with pytest.raises(ValueError, match="no samples"):
            median_interval(empty)


@given(GROUPS)
def test_the_median_lies_in_its_interval_and_counts_are_right(groups: list[list[float]]) -> None:
    interval = median_interval([np.array(g) for g in groups])
    assert 0 < interval.low <= interval.median <= interval.high
    assert interval.n == sum(map(len, groups))
    assert interval.groups == len(groups)


@given(GROUPS, st.floats(1e-3, 1e3))
def test_the_unit_does_not_matter(groups: list[list[float]], factor: float) -> None:
    plain = median_interval([np.array(g) for g in groups])
    scaled = median_interval([np.array(g) * factor for g in groups])
    for a, b in ((plain.low, scaled.low), (plain.median, scaled.median), (plain.high, scaled.high)):
        assert b == pytest.approx(a * factor, rel=1e-6)


@given(GROUPS)
def test_the_order_of_launches_does_not_matter(groups: list[list[float]]) -> None:
    arrays = [np.array(g) for g in groups]
    a, b = median_interval(arrays), median_interval(arrays[::-1])
    assert (a.low, a.median, a.high) == pytest.approx((b.low, b.median, b.high))


@given(GROUPS)
def test_more_confidence_is_never_narrower(groups: list[list[float]]) -> None:
    arrays = [np.array(g) for g in groups]
    narrow, wide = median_interval(arrays, 0.8), median_interval(arrays, 0.99)
    assert wide.low <= narrow.low * (1 + 1e-12)
    assert wide.high >= narrow.high * (1 - 1e-12)


@given(st.lists(SECONDS, min_size=1, max_size=40))
def test_equal_samples_have_an_interval_of_no_width(values: list[float]) -> None:
    same = np.full(len(values), values[0])
    interval = median_interval([same])
    assert interval.low == pytest.approx(interval.high)


@pytest.mark.parametrize("n", [1, 19, 20, 99, 100, 999, 1000])
def test_tails_need_enough_samples(n: int) -> None:
    found = tails([np.arange(1.0, n + 1)])
    assert (found.p95 is None) == (n < 20)
    assert (found.p99 is None) == (n < 100)
    assert (found.p999 is None) == (n < 1000)
    assert found.n == n


@given(st.integers(0, 2**32), st.floats(0.01, 3.0))
def test_tails_are_in_order(seed: int, spread: float) -> None:
    rng = np.random.default_rng(seed)
    found = tails([np.exp(spread * rng.normal(size=400)) for _ in range(3)])
    assert found.p95 is not None
    assert found.p99 is not None
    assert found.p999 is not None
    assert found.p5 <= found.p95 <= found.p99 <= found.p999


@pytest.mark.parametrize("launches", [2, 3, 5])
def test_a_second_run_of_as_many_launches_lies_in_the_interval(launches: int) -> None:
    """Launches differ by 10 %, samples within one by 2 %: what one machine does on two occasions."""
    rng = np.random.default_rng(11)

    def run() -> list[np.ndarray]:
        return [np.exp(shift + rng.normal(0, 0.02, 20)) for shift in rng.normal(0, 0.1, launches)]

    inside = 0
    for _ in range(400):
        interval, second = median_interval(run()), median_interval(run()).median
        inside += interval.low <= second <= interval.high
    assert inside / 400 >= 0.92


@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (1, 9), (1, 40), (2, 1), (3, 10), (5, 7)])
def test_many_points_at_once_get_the_interval_of_each(shape):
    samples = np.exp(np.random.default_rng(4).normal(0, 0.2, (6, *shape)))
    medians, lows, highs = median_intervals(samples)
    each = [median_interval(list(point)) for point in samples]
    assert medians == pytest.approx([one.median for one in each])
    assert lows == pytest.approx([one.low for one in each])
    assert highs == pytest.approx([one.high for one in each])
