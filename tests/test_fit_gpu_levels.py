"""Latency levels of a GPU: windows that the probe itself tells, far and near L2, TLB misses in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from iobench import probe as probes
from iobench.errors import UserError
from iobench.fit import FitPoint, Model, fit, fit_run
from iobench.fit.kinds import get
from iobench.gpu import Device
from iobench.record import Line
from iobench.units import GIB, KIB, MIB, NS
from tests.make_run import run_of

HBM = probes.load("hbm")
CARD = Device(0, "NVIDIA H200", "0000:00:06.0", 132, 60 * MIB, 141 * GIB, (9, 0), shared_nbytes=228 * KIB)
# read on an H200: ns by working set; 24 MiB is near, 64 and 128 MiB lie between the L2 and the memory
READ = {
    16 * KIB: 16.2, 64 * KIB: 16.2, 128 * KIB: 16.2, 192 * KIB: 16.2, 512 * KIB: 141.6, 2 * MIB: 142.1, 8 * MIB: 142.2,
    16 * MIB: 142.1, 24 * MIB: 142.1, 40 * MIB: 264.8, 48 * MIB: 265.6, 64 * MIB: 336.0, 128 * MIB: 345.0,
    512 * MIB: 348.4, 4 * GIB: 350.2, 32 * GIB: 350.1, 96 * GIB: 367.2,
}  # fmt: skip
SIZES = tuple(READ)
TRUE = {"L1": 16.2, "L2 near": 142.1, "L2 far": 265.2, "memory": 350.2}


def hopper(nbytes: int) -> float:
    return READ[nbytes]


def windows(load: str = "ca") -> list[list[object]]:
    import sys

    return sys.modules["iobench_probe_hbm"]._levels(CARD, load)


def points(shape: Callable[[int], float], sizes: tuple[int, ...] = SIZES) -> list[FitPoint]:
    wobble = (0.995, 1.0, 1.004)
    return [FitPoint(n, [[shape(n) * NS * w * v for v in wobble] for w in wobble]) for n in sizes]


def values(model: Model) -> Mapping[str, float]:
    return {name: parameter.value / NS for name, parameter in model.parameters.items()}


def test_an_h200s_four_levels_are_found() -> None:
    model = fit(points(hopper), "levels", windows=windows())
    assert values(model) == pytest.approx(TRUE, rel=0.01)
    for name, parameter in model.parameters.items():
        assert parameter.low <= TRUE[name] * NS <= parameter.high
    assert model.findings == []


def test_tlb_misses_are_told_from_memory() -> None:
    model = fit(points(lambda n: 520.0 if n >= 32 * GIB else hopper(n)), "levels", windows=windows())
    assert values(model)["memory"] == pytest.approx(349.3, rel=0.01)
    assert any("memory is slower above 4 GiB (up to 520 ns): TLB misses" in finding for finding in model.findings)


def test_past_l1_there_are_three() -> None:
    past = fit(points(lambda n: max(hopper(n), TRUE["L2 near"])), "levels", windows=windows("cg"))
    assert list(values(past)) == ["L2 near", "L2 far", "memory"]
    assert values(past)["L2 near"] == pytest.approx(TRUE["L2 near"], rel=0.01)


def test_a_level_that_was_not_measured_says_where_to_measure() -> None:
    few = tuple(n for n in SIZES if not 30 * MIB < n < 60 * MIB)
    model = fit(points(hopper, few), "levels", windows=windows())
    assert list(values(model)) == ["L1", "L2 near", "memory"]
    assert any("L2 far has no working set well inside it: measure some between 36 MiB and 54 MiB" in f
               for f in model.findings)  # fmt: skip


def test_every_default_size_of_the_probe_serves_a_level_or_lies_between_two() -> None:
    region = get("levels").region
    found = [region(n, {"windows": windows()}) for n in SIZES]
    assert {name: found.count(name) for name in TRUE} == {"L1": 3, "L2 near": 4, "L2 far": 2, "memory": 4}


def test_windows_that_are_none_are_refused() -> None:
    with pytest.raises(UserError, match="windows must be"):
        fit(points(hopper), "levels", windows=["L1"])


def test_a_run_takes_the_probes_levels_not_the_cpus_caches() -> None:
    def line(nbytes: int, launch: int) -> Line:
        made = Line("hbm", "sha256:0", {"kernel": "chase", "gpu": 0, "load": "ca", "nbytes": nbytes}, launch)
        made.quantity, made.mode, made.nbytes, made.moved, made.verified = (
            "latency",
            "dependent loads",
            nbytes,
            32,
            True,
        )
        made.seconds = [[hopper(nbytes) * NS * wobble for wobble in (0.998, 1.0, 1.002)]]
        made.evidence, made.proven, made.path = {"levels": windows()}, True, "one thread"
        return made

    models = {"hbm": [dict(model) for model in HBM.models]}
    run = run_of([line(n, launch) for n in SIZES for launch in range(3)], probes={"hbm": {"models": models["hbm"]}})
    (fitted,) = fit_run(run)
    assert fitted.model is not None
    assert values(fitted.model) == pytest.approx(TRUE, rel=0.01)
