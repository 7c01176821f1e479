"""Piecewise affine models: breaks found or known, parameters held by their intervals, findings as sentences."""

import json
import math

import numpy as np
import pytest
from iobench.errors import UserError
from iobench.fit import FitPoint, Model, fit, segments, trial
from iobench.units import GB, KIB, MIB, US

SIZES = [8 << step for step in range(26)]


def two_protocols(nbytes):
    return 5 * US + nbytes / (2 * GB) if nbytes < 64 * KIB else 30 * US + nbytes / (40 * GB)


def points(shape=two_protocols, sizes=SIZES, noise=0.01, launches=3, iterations=10, seed=0, **more):
    rng = np.random.default_rng(seed)
    return [
        FitPoint(n, tuple(shape(n) * np.exp(rng.normal(0, noise, iterations)) for _ in range(launches)), **more)
        for n in sizes
    ]


def value(model, name):
    return model.parameters[name].value


def test_two_protocols_are_told_apart():
    model = fit(points(), "piecewise")
    assert list(model.parameters) == ["a1", "B1", "a2", "B2", "break1"]
    assert value(model, "a1") == pytest.approx(5 * US, rel=0.03)
    assert value(model, "B1") == pytest.approx(2 * GB, rel=0.03)
    assert value(model, "a2") == pytest.approx(30 * US, rel=0.03)
    assert value(model, "B2") == pytest.approx(40 * GB, rel=0.03)
    assert 32 * KIB < value(model, "break1") < 64 * KIB
    assert (model.parameters["break1"].low, model.parameters["break1"].high) == (32 * KIB, 64 * KIB)
    assert model.error < 0.06, "only the sizes at the break are missed"


def test_one_line_is_one_stretch_however_noisy():
    cut = sum(
        len(fit(points(lambda n: 5 * US + n / GB, noise=0.1, seed=s), "piecewise").parameters) > 2 for s in range(20)
    )
    assert cut <= 1


def test_the_formula_jumps_and_the_prediction_follows_the_points():
    model = fit(points(noise=0.001), "piecewise")
    assert model.curve(60_000) == pytest.approx(two_protocols(60_000), rel=0.6)
    for nbytes in (100, 3000, 20_000, 200_000, 50 * MIB):
        assert model.curve(nbytes) == pytest.approx(two_protocols(nbytes), rel=0.01)
        assert model.predict(nbytes).seconds == pytest.approx(two_protocols(nbytes), rel=0.01)


def test_search_is_exact():
    """No cut of at most three stretches has less misfit than the one found."""
    rng = np.random.default_rng(8)
    sizes, weights = np.array(SIZES[:12], dtype=float), rng.uniform(0.5, 1.5, 12)
    seconds = np.exp(rng.normal(0, 0.5, 12)) * US
    for pieces in (1, 2, 3):
        found = segments.search(sizes, seconds[None], weights, pieces=pieces)[0]
        starts = [(0,)] if pieces == 1 else [(0, i) for i in range(3, 10)]
        if pieces == 3:
            starts = [(0, i, j) for i in range(3, 7) for j in range(i + 3, 10)]
        least = min(segments.given(sizes, seconds, weights, one).rss for one in starts)
        assert found.rss == pytest.approx(least, rel=1e-9)
        assert segments.given(sizes, seconds, weights, found.starts).rss == pytest.approx(least, rel=1e-9)


def test_rates_and_fixed_costs_are_never_negative():
    falling = {8: 9.0, 16: 8.0, 32: 7.0, 64: 6.0, 128: 5.0}
    steep = {n * MIB: n**1.5 for n in (1, 2, 4, 8, 16)}
    for times in (falling, steep):
        model = fit([FitPoint(n, (np.full(5, t * US),)) for n, t in times.items()], "piecewise")
        assert all(parameter.low >= 0 for parameter in model.parameters.values())
    assert value(model, "a1") == 0
    assert math.isinf(value(fit([FitPoint(n, (np.full(5, t * US),)) for n, t in falling.items()], "piecewise"), "B1"))


def tuning(switch, sizes=SIZES):
    return [
        {"nbytes": n, "algo": "RING" if n < switch else "NVLS", "proto": "LL" if n < switch else "SIMPLE"}
        for n in sizes
    ]


def test_borders_of_the_tuning_log_are_taken_over():
    # 8 x H200: RING/LL up to 1 MiB, NVLS/SIMPLE from 2 MiB; without a jump no search would find it
    model = fit(points(lambda n: 5 * US + n / GB), "piecewise", tuning=tuning(2 * MIB))
    assert value(model, "break1") == pytest.approx(math.sqrt(2) * MIB)
    assert model.steps == (2 * MIB,)
    assert any("NVLS/SIMPLE takes over from RING/LL at 2 MiB" in sentence for sentence in model.findings)
    assert Model.from_dict(json.loads(json.dumps(model.to_dict()))) == model


def test_nothing_interpolates_across_a_known_border():
    model = fit(points(noise=0.001), "piecewise", tuning=tuning(64 * KIB))
    # measured were 32 KiB and 64 KiB; half way between (46,341 bytes) the second protocol is taken to begin
    assert model.predict(40_000).seconds == pytest.approx(5 * US + 40_000 / (2 * GB), rel=0.01)
    assert model.predict(60_000).seconds == pytest.approx(30 * US + 60_000 / (40 * GB), rel=0.01)


def test_a_log_that_lacks_sizes_is_not_used():
    assert fit(points(), "piecewise", tuning=tuning(2 * MIB)[3:]) == fit(points(), "piecewise")
    with pytest.raises(UserError, match="tuning must be"):
        fit(points(), "piecewise", tuning=[{"nbytes": 8}])


def test_findings_against_physics():
    fast = fit(
        points(lambda n: 0.4 * US + n / (600 * GB)), "piecewise", hops_seconds=1 * US, limit_bytes_per_s=450 * GB
    )
    assert any("latency below what the hops allow" in sentence for sentence in fast.findings)
    assert any("bandwidth above the limit: B = 6" in sentence for sentence in fast.findings)
    slow = fit(points(lambda n: 80 * US + n / (40 * GB)), "piecewise", hops_seconds=1 * US, limit_bytes_per_s=450 * GB)
    assert [sentence for sentence in slow.findings if "constant offset" in sentence]
    assert not [sentence for sentence in slow.findings if "above the limit" in sentence]


def test_a_fall_and_a_cliff_are_said():
    # nccl#1291: 2 MiB 389.4 us, 4 MiB 143.0 us
    sizes = [MIB << step for step in range(8)]
    times = [195, 389.4, 143.0, 180, 250, 390, 1900, 3700]
    model = fit([FitPoint(n, (np.full(5, t * US),) * 3) for n, t in zip(sizes, times, strict=True)], "piecewise")
    assert any(sentence.startswith("non-monotone at 4 MiB") for sentence in model.findings)
    assert any(sentence.startswith("cliff at 64 MiB") for sentence in model.findings)


def test_aggregates_have_intervals_from_the_residuals_and_say_so():
    model = fit(points(launches=1, iterations=1, noise=0.02, aggregate="mean of 20 iterations"), "piecewise")
    assert any("aggregates (mean of 20 iterations)" in sentence for sentence in model.findings)
    assert not any("only 1 launch" in sentence for sentence in model.findings)
    for name in ("a1", "B1", "a2", "B2"):
        one = model.parameters[name]
        assert one.low < one.value < one.high


def test_the_same_input_gives_the_same_bytes():
    first, second = (json.dumps(fit(points()[::order], "piecewise").to_dict()) for order in (1, -1))
    assert first == second


@pytest.mark.parametrize("shape", trial.SHAPES, ids=lambda shape: shape.name)
def test_breaks_are_found_and_intervals_hold_the_truth(shape):
    outcomes = list(trial.run(shape, 40, seed=2))
    assert np.mean([one.found for one in outcomes]) >= 0.92
    for letter in "aB":
        assert trial.rate(outcomes, letter) >= 0.90


def test_very_many_sizes_are_searched_on_some_of_them():
    sizes = np.unique(np.geomspace(8, 1 << 30, 1500).round().astype(int))
    model = fit(points(sizes=[int(n) for n in sizes], launches=1, iterations=1), "piecewise")
    assert value(model, "break1") == pytest.approx(64 * KIB, rel=0.05)
    assert value(model, "a2") == pytest.approx(30 * US, rel=0.01)
