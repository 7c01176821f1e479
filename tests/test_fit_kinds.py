"""LogGP, loaded latency and weight loading: what goes in comes out, what is not identifiable is said."""

import json
import math

import numpy as np
import pytest
from iobench.errors import UserError
from iobench.fit import FitPoint, Model, fit, fit_run
from iobench.fit.hops import hops_seconds
from iobench.units import GB, MIB, MS, NS, US

from make_run import hockney, lines, run_of


def groups(seconds, rng, noise=0.01):
    return tuple(seconds * np.exp(rng.normal(0, noise, 10)) for _ in range(3))


def holds(model, name, truth):
    one = model.parameters[name]
    return one.low <= truth <= one.high


# LogGP -------------------------------------------------------------------------------------------

SIZES = [1 << step for step in range(1, 20)]
CONSTANT = {"latency": 1.8 * US, "bandwidth": 0.25 * US}


def messages(*tests, seed=0, noise=0.01):
    rng = np.random.default_rng(seed)
    return [
        FitPoint(n, groups(CONSTANT[test] + (n - 1) / (24 * GB), rng, noise), {"test": test})
        for test in tests
        for n in SIZES
    ]


def overhead(seconds=0.2 * US):
    return [FitPoint(8, groups(seconds, np.random.default_rng(9)), {"test": "overhead"})]


def test_loggp_from_latency_and_stream():
    model = fit(messages("latency", "bandwidth"), "loggp")
    assert set(model.parameters) == {"L+2o", "max(g,o)", "G", "B"}
    assert holds(model, "L+2o", 1.8 * US)
    assert holds(model, "max(g,o)", 0.25 * US)
    assert holds(model, "B", 24 * GB)
    assert model.error < 0.02
    assert any("L and o are not told apart" in sentence for sentence in model.findings)
    assert model.predict(4096, test="latency").seconds == pytest.approx(1.8 * US + 4095 / (24 * GB), rel=0.01)
    assert model.predict(4096, test="bandwidth").seconds == pytest.approx(0.25 * US + 4095 / (24 * GB), rel=0.01)


def test_loggp_says_what_each_series_lacks():
    only = fit(messages("latency"), "loggp")
    assert any("g is not identifiable" in sentence for sentence in only.findings)
    with pytest.raises(UserError, match="no finite time"):
        only.predict(64, test="bandwidth")
    stream = fit(messages("bandwidth"), "loggp")
    assert any("L + 2o is not identifiable" in sentence for sentence in stream.findings)
    one_size = [point for point in messages("latency", "bandwidth") if point.nbytes == 8]
    with pytest.raises(UserError, match="needs 4"):
        fit(one_size, "loggp")


def test_the_overhead_tells_latency_and_gap_apart():
    model = fit([*messages("latency", "bandwidth"), *overhead()], "loggp")
    assert holds(model, "o", 0.2 * US)
    assert holds(model, "L", 1.4 * US)
    assert model.findings == []
    busy = fit([*messages("latency", "bandwidth"), *overhead(0.25 * US)], "loggp")
    assert any("posting" in sentence and "limits the rate" in sentence for sentence in busy.findings)


def test_loggp_intervals_hold_the_truth():
    held = [
        holds(fit(messages("latency", "bandwidth", seed=seed, noise=0.05), "loggp", seed), name, truth)
        for seed in range(12)
        for name, truth in (("L+2o", 1.8 * US), ("max(g,o)", 0.25 * US), ("B", 24 * GB))
    ]
    assert np.mean(held) >= 0.88


def test_foreign_tests_and_missing_ones_are_refused():
    with pytest.raises(UserError, match="no test of LogGP"):
        fit([FitPoint(n, (np.ones(3),), {"test": "ping"}) for n in SIZES], "loggp")
    with pytest.raises(UserError, match="lacks 'test'"):
        fit([FitPoint(n, (np.ones(3),)) for n in SIZES], "loggp")
    with pytest.raises(UserError, match="predicts from test"):
        fit(messages("latency"), "loggp").predict(8)


# loaded latency ----------------------------------------------------------------------------------

LOADS = [5, 20, 40, 60, 80, 90, 95, 98, 100]


def waiting(load, idle=80 * NS, growth=10 * NS, limit=105):
    used = load / limit
    return idle + growth * used / (1 - used)


def loads(values=LOADS, seed=0, noise=0.01):
    rng = np.random.default_rng(seed)
    return [FitPoint(round(load * GB), groups(waiting(load), rng, noise)) for load in values]


def test_loaded_latency_is_found():
    model = fit(loads(), "loaded")
    assert holds(model, "L0", 80 * NS)
    assert holds(model, "a", 10 * NS)
    assert holds(model, "Bmax", 105 * GB)
    assert model.parameters["Bmax"].unit == "bytes/s"
    assert model.error < 0.03
    assert model.findings == []
    assert model.predict(round(50 * GB)).seconds == pytest.approx(waiting(50), rel=0.02)
    with pytest.raises(UserError, match="no finite time"):
        model.predict(round(110 * GB))


def test_without_saturated_points_the_limit_has_no_bound():
    # three published curves: without points above 95 % of the peak the fit ran to its bound
    model = fit(loads([5, 20, 40, 60, 80]), "loaded")
    assert math.isinf(model.parameters["Bmax"].high)
    assert any("Bmax is unbounded: 1 point within 5%" in sentence for sentence in model.findings)
    assert Model.from_dict(json.loads(json.dumps(model.to_dict()))) == model


def test_collapse_past_saturation_is_left_out():
    late = [FitPoint(round(93 * GB), groups(600 * NS, np.random.default_rng(1)))]
    model = fit([*loads(), *late], "loaded")
    assert any("1 of 10 points lie past saturation" in sentence for sentence in model.findings)
    assert model.parameters["Bmax"].value == pytest.approx(105 * GB, rel=0.01)


def test_loaded_intervals_hold_the_truth():
    held = [
        holds(fit(loads(seed=seed, noise=0.03), "loaded", seed), name, truth)
        for seed in range(10)
        for name, truth in (("L0", 80 * NS), ("a", 10 * NS), ("Bmax", 105 * GB))
    ]
    assert np.mean(held) >= 0.85


# weights -----------------------------------------------------------------------------------------


def checkpoints(files=(1, 4, 16), sizes=(64, 256, 1024)):
    rng = np.random.default_rng(2)
    return [
        FitPoint(n * MIB, groups(0.01 + count * 0.002 + n * MIB / (2 * GB), rng), {"files": count})
        for n in sizes
        for count in files
    ]


def test_a_cost_for_each_file_is_told_from_that_of_starting():
    model = fit(checkpoints(), "weights")
    for name, truth in (("a", 0.01), ("f", 0.002), ("B", 2 * GB)):
        assert holds(model, name, truth)
    wanted = 0.01 + 2 * 0.002 + 512 * MIB / (2 * GB)
    assert model.predict(512 * MIB, files=2).seconds == pytest.approx(wanted, rel=0.01)


def test_files_that_do_not_vary_or_go_with_the_size_are_not_identifiable():
    same = fit(checkpoints(files=(4,), sizes=(64, 256, 1024, 2048)), "weights")
    assert "f" not in same.parameters
    assert any("the number of files is the same everywhere" in sentence for sentence in same.findings)
    rng = np.random.default_rng(0)
    growing = [FitPoint(n * 64 * MIB, groups(n * 0.03, rng), {"files": n}) for n in (1, 2, 4, 8, 16)]
    assert any("goes with the size" in sentence for sentence in fit(growing, "weights").findings)
    one_size = fit(checkpoints(files=(1, 2, 4, 8, 16), sizes=(64,)), "weights")
    assert any("B is not identifiable" in sentence for sentence in one_size.findings)
    with pytest.raises(UserError, match="1 file at least"):
        fit([FitPoint(n, (np.ones(3),), {"files": 0}) for n in SIZES], "weights")


# in runs -----------------------------------------------------------------------------------------


def test_a_run_names_the_axes_of_further_regressors():
    all_lines = []
    for shards in (1, 4, 16):
        all_lines += hockney(
            "p", [MIB << step for step in range(4)], 0.01 + shards * 0.002, 2 * GB, point={"shards": shards}
        )
    models = {"p": [{"kind": "weights", "extras": {"files": "shards"}}]}
    (found,) = fit_run(run_of(all_lines, models=models))
    assert found.model is not None
    assert found.model.parameters["f"].value == pytest.approx(0.002, rel=0.05)
    with pytest.raises(UserError, match="needs the axes of files"):
        fit_run(run_of(all_lines, models={"p": [{"kind": "weights"}]}))


def test_a_run_names_what_was_measured_beside_the_time():
    all_lines = []
    for number, load in enumerate(LOADS):
        all_lines += lines("p", {"delay": number}, waiting(load), evidence={"bytes_per_s": load * GB})
    declared = {"kind": "loaded", "size": "evidence.bytes_per_s", "over": ["delay"]}
    (found,) = fit_run(run_of(all_lines, models={"p": [declared]}))
    assert found.model is not None
    assert holds(found.model, "L0", 80 * NS)
    assert found.axes == {}


def test_what_the_evidence_tells_goes_into_the_fit():
    sizes = [8 << step for step in range(22)]
    point = {"op": "all_reduce", "ranks": 8, "nodes": 1, "transport": "nvlink"}
    all_lines = hockney("p", sizes, 0.1 * US, 1 * GB, point=point, noise=0.001)
    for line in all_lines:
        ring = line.nbytes < 2 * MIB
        line.evidence = {"tuning": {"algo": "RING" if ring else "NVLS", "proto": "LL" if ring else "SIMPLE"}}
    (found,) = fit_run(run_of(all_lines, models={"p": [{"kind": "piecewise"}]}))
    assert found.model is not None
    assert found.model.steps == (2 * MIB,)
    assert any("below what the hops allow" in sentence for sentence in found.model.findings)
    whole = [{"nbytes": n, "algo": "RING", "proto": "LL"} for n in sizes]
    for line in all_lines:
        line.evidence = {"tuning": whole}
    (found,) = fit_run(run_of(all_lines, models={"p": [{"kind": "piecewise"}]}))
    assert found.model.steps == ()


def test_hops():
    assert hops_seconds({"ranks": 8, "transport": "nvlink"}) == pytest.approx(300 * NS)
    assert hops_seconds({"ranks": 8, "transport": "nvlink", "op": "all_reduce", "algo": "ring"}) == pytest.approx(
        4.2 * US
    )
    assert hops_seconds({"ranks": 16, "nodes": 2, "transport": "ib"}) == pytest.approx(800 * NS)
    assert hops_seconds({"ranks": 16}) is None
    assert hops_seconds({"ranks": 1, "transport": "nvlink"}) is None


def test_too_few_points_say_how_to_measure_more():
    with pytest.raises(UserError, match="3 sizes: a weights model needs 4; measure more, as in -a nbytes=256M"):
        fit([FitPoint(n * MIB, [[n * MS]], {"files": 1}) for n in (1, 2, 3)], "weights")
    with pytest.raises(UserError, match=r"give that by name \(-a test=bandwidth\)"):
        fit(messages("bandwidth"), "loggp").predict(4096)
