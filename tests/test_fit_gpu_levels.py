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
SIZES = (
    16 * KIB, 64 * KIB, 128 * KIB, 192 * KIB, 512 * KIB, 2 * MIB, 8 * MIB, 16 * MIB, 24 * MIB, 40 * MIB, 48 * MIB,
    64 * MIB, 128 * MIB, 512 * MIB, 4 * GIB, 32 * GIB, 96 * GIB,
)  # fmt: skip
TRUE = {"L1": 20.0, "L2 near": 118.0, "L2 far": 162.0, "memory": 355.0}


def hopper(nbytes: int) -> float:
    """The shape of an H200's curve in ns: plateaus, transitions between them, TLB misses from 32 GiB on."""
    for name, most in (("L1", 180 * KIB), ("L2 near", 22 * MIB), ("L2 far", 55 * MIB)):
        if nbytes <= most:
            return TRUE[name]
    return {64 * MIB: 250.0, 128 * MIB: 320.0, 32 * GIB: 520.0, 96 * GIB: 560.0}.get(nbytes, TRUE["memory"])


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
    assert any("memory is slower above 4 GiB (up to 560 ns): TLB misses" in finding for finding in model.findings)


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
