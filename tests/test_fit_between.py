"""Predictions between measured sizes: exact where the formula is, at ease with noise, never wild."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from iobench.fit import between
from iobench.units import GB, KIB, MIB, US

SIZES = np.array([8.0 * 2**step for step in range(20)])
LINE = 5 * US + SIZES / (20 * GB)


def at(sizes, seconds, wanted):
    rows = [np.repeat(np.asarray(values, dtype=float)[None, :], len(wanted), axis=0) for values in (sizes, seconds)]
    return between.predict(*rows, np.asarray(wanted, dtype=float))


def test_an_affine_curve_is_predicted_exactly():
    wanted = [9, 100, 3000, 70_000, 3_000_000]
    assert at(SIZES, LINE, wanted) == pytest.approx([5 * US + n / (20 * GB) for n in wanted], rel=1e-6)
    assert between.left_out(SIZES[None], LINE[None]).max() < 1e-6


curves = st.lists(st.floats(1e-9, 1e3), min_size=2, max_size=12)
grids = st.lists(st.floats(1.01, 60.0), min_size=12, max_size=12)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(seconds=curves, steps=grids)
def test_a_measured_size_gives_its_own_median_and_nothing_is_wild(seconds, steps):
    sizes = np.cumprod([8.0, *steps[: len(seconds) - 1]])
    assert at(sizes, seconds, sizes) == pytest.approx(seconds, rel=1e-6)
    wanted = np.sqrt(sizes[:-1] * sizes[1:])
    found = at(sizes, seconds, wanted)
    assert np.isfinite(found).all()
    assert (found > 0).all()
    assert (found <= 16 * max(seconds)).all()


def test_the_unit_of_size_and_of_time_does_not_matter():
    rng = np.random.default_rng(3)
    seconds = LINE * np.exp(rng.normal(0, 0.1, len(SIZES)))
    wanted = SIZES[:-1] * 1.3
    assert at(SIZES * 7, seconds * 1e6, wanted * 7) == pytest.approx(at(SIZES, seconds, wanted) * 1e6, rel=1e-9)


def test_a_lone_spike_does_not_spoil_the_sizes_beside_it():
    # alltoall, 4 H100: 6.48, 17.67, 7.00 us at 512 B, 1 KiB, 2 KiB
    seconds = np.array([6.5, 6.4, 17.7, 7.0, 7.1, 7.3, 7.5]) * US
    sizes = np.array([256.0 * 2**step for step in range(7)])
    ours = between.left_out(sizes[None], seconds[None])[0]
    lines = [abs(np.interp(sizes[i], np.delete(sizes, i), np.delete(seconds, i)) / seconds[i] - 1) for i in range(1, 6)]
    assert ours.mean() < 0.9 * np.mean(lines)


def test_noise_costs_less_than_with_straight_lines():
    rng = np.random.default_rng(5)
    ours, lines = [], []
    for _ in range(40):
        seconds = LINE * np.exp(rng.normal(0, 0.05, len(SIZES)))
        ours.append(between.left_out(SIZES[None], seconds[None]).mean())
        keep = [np.delete(np.arange(len(SIZES)), i) for i in range(1, len(SIZES) - 1)]
        guesses = [np.interp(SIZES[i], SIZES[k], seconds[k]) for i, k in enumerate(keep, 1)]
        lines.append(np.abs(np.array(guesses) / seconds[1:-1] - 1).mean())
    assert np.mean(ours) < np.mean(lines)


def test_left_out_leaves_out():
    """The error at a size is that of a prediction which never saw it."""
    seconds = LINE.copy()
    seconds[7] *= 3
    kept = np.delete(np.arange(len(SIZES)), 7)
    smooth = between.left_out(SIZES[None], seconds[None])[0][6]
    assert smooth == pytest.approx(abs(LINE[7] / seconds[7] - 1), rel=1e-3)
    assert at(SIZES[kept], seconds[kept], [SIZES[7]])[0] == pytest.approx(LINE[7], rel=1e-3)
    assert between.left_out(SIZES[None, :2], LINE[None, :2]).shape == (1, 0)


def test_rows_are_independent():
    both = between.left_out(np.stack((SIZES, SIZES * 3)), np.stack((LINE, np.sqrt(LINE))))
    assert both[0] == pytest.approx(between.left_out(SIZES[None], LINE[None])[0])
    assert both[1] == pytest.approx(between.left_out(SIZES[None] * 3, np.sqrt(LINE)[None])[0])
    assert SIZES[-1] > 2 * MIB > KIB


def test_only_near_sizes_have_a_say():
    """Leaving out from a window of neighbours gives what leaving out from all sizes gives."""
    sizes = np.array([8.0 * 2 ** (step / 2) for step in range(50)])
    seconds = (5 * US + sizes / (20 * GB)) * np.exp(np.random.default_rng(7).normal(0, 0.2, 50))
    whole = [abs(at(np.delete(sizes, i), np.delete(seconds, i), [sizes[i]])[0] / seconds[i] - 1) for i in range(1, 49)]
    assert between.left_out(sizes[None], seconds[None])[0] == pytest.approx(whole, rel=1e-9)
