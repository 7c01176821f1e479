"""GPU memory on a GPU: every kernel proven, a planted fault found, levels in their order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from iobench import check, gpu, topology
from iobench import probe as probes
from iobench.errors import WrongData
from iobench.kernels import gpu as kernels
from iobench.record import Line, Record
from iobench.timing.sampler import Sampler
from iobench.units import GIB, KIB, MIB
from iobench.worker import measure as measure_line

pytestmark = pytest.mark.gpu
HBM = probes.load("hbm")
TAIL = ("if (i < n) { FETCH; USE; }", "if (false) { FETCH; USE; }")
HALF = ("first < n; first", "first < n / 2; first")


@pytest.fixture
def sampler() -> Iterator[Sampler]:
    made = Sampler(budget=0.05)
    yield made
    made.close()


def point(kernel: str, nbytes: int, **more: Any) -> dict[str, Any]:
    if kernel == "chase":
        return {"kernel": kernel, "gpu": 0, "load": "ca", "nbytes": nbytes, **more}
    return {
        "kernel": kernel, "gpu": 0, "buffers": "rotating", "mode": "events", "shape": "auto", "nbytes": nbytes, **more
    }  # fmt: skip


def line_of(samples: probes.Samples, where: dict[str, Any]) -> Line:
    """Return the line that the worker would write."""
    return measure_line(HBM_WITH(samples), where, Sampler())


def HBM_WITH(samples: probes.Samples) -> probes.Probe:  # noqa: N802 - a probe whose measuring is done
    return probes.Probe(**{**HBM.__dict__, "measure": lambda *_: samples})


@pytest.mark.parametrize("mode", ["events", "graph"])
@pytest.mark.parametrize("kernel", ["read", "write", "copy", "triad", "memcpy", "memset"])
def test_every_stream_is_proven_and_below_the_peak(sampler: Sampler, kernel: str, mode: str) -> None:
    where = point(kernel, 2 * GIB + 24, mode=mode)
    line = line_of(HBM.measure(where, sampler), where)
    verdict = check.verdict(Record("hbm", where, [line]), topology.discover())
    assert line.verified
    assert verdict.status in ("ok", "suspect"), verdict.sentence
    assert verdict.fraction is None or verdict.fraction > 0.5, verdict.sentence


@pytest.mark.parametrize(
    ("nbytes", "buffers"), [(4 * KIB, "one"), (100_001, "one"), (3 * MIB + 8, "rotating"), (150 * MIB + 48, "rotating")]
)
@pytest.mark.parametrize("kernel", ["read", "write", "copy", "triad", "memcpy", "memset"])
def test_odd_sizes_are_proven(sampler: Sampler, kernel: str, nbytes: int, buffers: str) -> None:
    samples = HBM.measure(point(kernel, nbytes, buffers=buffers), sampler)
    assert samples.verified
    assert nbytes - 24 < samples.moved <= nbytes


@pytest.mark.parametrize("fault", [TAIL, HALF], ids=["tail", "half"])
@pytest.mark.parametrize("kernel", ["read", "write", "copy", "triad"])
def test_a_kernel_that_skips_is_called_wrong(
    monkeypatch: pytest.MonkeyPatch, sampler: Sampler, kernel: str, fault: tuple[str, str]
) -> None:
    cupy = gpu.require()
    text = kernels.source("hbm").read_text(encoding="utf-8")
    assert fault[0] in text
    module = cupy.RawModule(code=text.replace(*fault), options=("-std=c++17",), backend="nvrtc")
    true = kernels.function
    monkeypatch.setattr(
        kernels, "function", lambda file, name: module.get_function(name) if file == "hbm" else true(file, name)
    )
    with pytest.raises(WrongData):
        HBM.measure(point(kernel, 2 * GIB + 48), sampler)


def test_a_rate_above_the_peak_is_impossible(sampler: Sampler) -> None:
    """Had nothing verified the half-skipping read, its time would still give it away."""
    where = point("read", 4 * GIB)
    line = line_of(HBM.measure(where, sampler), where)
    line.seconds = [[value / 2 for value in row] for row in line.seconds]
    verdict = check.verdict(Record("hbm", where, [line]), topology.discover())
    assert verdict.status == "impossible"


def test_levels_of_latency_rise(sampler: Sampler) -> None:
    sizes = [32 * KIB, 4 * MIB, 2 * GIB]
    found = [HBM.measure(point("chase", nbytes), sampler) for nbytes in sizes]
    nanoseconds = [min(samples.timed.seconds[0]) / samples.timed.ops * 1e9 for samples in found]
    assert nanoseconds == sorted(nanoseconds)
    assert 5 < nanoseconds[0] < 60
    assert nanoseconds[2] > 2 * nanoseconds[1]
    for samples in found:
        hertz = samples.evidence["cycles"][-1] / samples.evidence["nanoseconds"][-1]
        assert 0.2 < hertz < 4, "GHz"


def test_more_than_the_card_fails_the_point_only(sampler: Sampler) -> None:
    with pytest.raises(gpu.OutOfMemory):
        HBM.measure(point("read", 2 * gpu.device(0).memory_nbytes), sampler)
    assert HBM.measure(point("read", 256 * MIB), sampler).verified
