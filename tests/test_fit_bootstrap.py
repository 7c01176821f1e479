"""The bootstrap of medians: the same distribution as drawing every sample, and honest about few launches."""

import numpy as np
import pytest
from iobench.fit import bootstrap
from scipy import stats


@pytest.mark.parametrize("n", [1, 2, 5, 6, 31, 40])
def test_a_drawn_rank_has_the_distribution_of_a_resampled_median(n):
    rng = np.random.default_rng(n)
    values = np.exp(rng.normal(0, 1, n))
    long_way = np.median(rng.choice(values, (20_000, n)), axis=1)
    short_way = bootstrap._sample_medians(values, 20_000, rng)
    assert np.isin(short_way, long_way).mean() > 0.99  # the same support: an order statistic, or a mean of two
    assert stats.ks_2samp(long_way, short_way).statistic < 0.02


def test_few_launches_are_split_into_batches():
    assert [len(part) for part in bootstrap.units([np.ones(20)])] == [4, 4, 4, 4, 4]
    assert len(bootstrap.units([np.ones(20), np.ones(20)])) == 10
    assert len(bootstrap.units([np.ones(3)])) == 1
    assert len(bootstrap.units([np.ones(20)] * 3)) == 3
    assert len(bootstrap.units([np.ones(20), np.ones(0), np.ones(20), np.ones(20)])) == 3
    with pytest.raises(ValueError, match="no samples"):
        bootstrap.units([np.ones(0)])


def test_widening_falls_to_one():
    factors = [bootstrap.widening(count) for count in (2, 3, 5, 10, 1000)]
    assert factors == sorted(factors, reverse=True)
    assert factors[1] == pytest.approx(np.sqrt(1.5) * 4.3027 / 1.95996, rel=1e-3)
    assert factors[-1] == pytest.approx(1, abs=2e-3)
    assert bootstrap.widening(1) == 1.0


def test_sizes_of_one_launch_are_drawn_together():
    # launch 2 is twice as slow at every size, so a draw that holds it twice is slow at every size
    groups = [np.full(20, 1.0), np.full(20, 1.0), np.full(20, 2.0)]
    draws, parts = bootstrap.joint_draws([groups, groups, groups], seed=1)
    assert parts == 3
    assert draws.shape == (3, bootstrap.DRAWS)
    assert set(np.unique(draws)) == {1.0, 2.0}
    assert np.array_equal(draws[0], draws[1])
    assert np.array_equal(draws[0], draws[2])


def test_half_width_is_student_t_of_the_launches():
    draws = np.random.default_rng(1).normal(5.0, 0.1, 100_000)
    for count in (3, 5, 10):
        expected = stats.t.ppf(0.975, count - 1) * np.sqrt(count / (count - 1)) * 0.1
        assert bootstrap.half_width(draws, 5.0, bootstrap.widening(count)) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("shape", [(3, 10), (5, 7), (3, 1), (1, 23)])
def test_sizes_of_equal_shape_are_drawn_at_once_and_alike(shape):
    series = np.exp(np.random.default_rng(1).normal(0, 0.3, (2, *shape)))
    together, parts = bootstrap.joint_draws([list(groups) for groups in series], 1, 8000)
    assert parts == (5 if shape[0] == 1 else shape[0])
    for groups, draws in zip(series, together, strict=True):
        alone = bootstrap.median_draws(bootstrap.units(list(groups)), np.random.default_rng(2), draws=8000)
        assert stats.ks_2samp(draws, alone).statistic < 0.04


def test_one_value_for_each_size_needs_no_draws():
    draws, parts = bootstrap.joint_draws([[np.array([2.0])], [np.array([3.0])]], 0)
    assert (draws.tolist(), parts) == ([[2.0], [3.0]], 1)
