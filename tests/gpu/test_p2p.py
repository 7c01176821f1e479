"""The GPU-to-GPU probe on two GPUs: below the links' limit, proven by their counters, planted faults caught."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from iobench import gpu
from iobench import probe as probes
from iobench.check import find_limit
from iobench.errors import WrongData
from iobench.gpu import nvlink
from iobench.gpu.device import machine
from iobench.probe import Probe
from iobench.timing.sampler import Sampler
from iobench.units import KIB, MIB
from iobench.worker import measure

pytestmark = [pytest.mark.gpu, pytest.mark.multigpu]

P2P: Probe = probes.load("p2p")
COPY = {"op": "copy", "gpu": 0, "peer": 1, "direction": "read", "traffic": "one", "engine": "ce"}


@pytest.fixture(autouse=True)
def peers() -> None:
    if not list(P2P.points(machine(), probes.narrow(P2P, []))):
        pytest.skip("no pair of GPUs with peer access")


@pytest.mark.parametrize("direction", ["read", "write"])
@pytest.mark.parametrize(
    "way",
    [
        {"mode": "events"},
        {"mode": "graph"},
        {"mode": "host-call"},
        {"mode": "events", "traffic": "both"},
        {"mode": "events", "engine": "sm"},
        {"mode": "kernel-loop", "engine": "sm", "traffic": "both"},
    ],
)
def test_every_way_is_measured_and_below_the_limit(sampler: Sampler, direction: str, way: dict[str, str]) -> None:
    sampler.budget = 0.05
    line = measure(P2P, {**COPY, "direction": direction, **way, "nbytes": 16 * MIB}, sampler)
    assert (line.status, line.reason) == ("ok", "")
    seconds = float(np.median(line.seconds)) / line.ops
    limit, missing = find_limit(line, machine())
    assert missing == []
    assert limit is None or limit.seconds < seconds < 20 * limit.seconds


def test_the_links_counters_prove_the_way(sampler: Sampler) -> None:
    found = nvlink.links(nvlink.of(gpu.device(0)))
    if found is None or not found.active:
        pytest.skip("NVML shows no active NVLink")
    for nbytes in (4, 64 * MIB):
        samples = P2P.measure({**COPY, "mode": "events", "nbytes": nbytes}, sampler)
        assert samples.proven, samples.path
        assert "NVLink" in samples.path
        assert sum(samples.evidence["nvlink"]["sent_by_link"].values()) > 0


def test_a_load_from_a_peer_is_slower_than_a_local_one(sampler: Sampler) -> None:
    samples = P2P.measure({"op": "chase", "gpu": 0, "peer": 1, "pattern": "random", "nbytes": 2 * MIB}, sampler)
    assert 0.4e-6 < float(np.median(samples.timed.seconds)) / samples.timed.ops < 5e-6


def test_a_copy_that_is_short_is_wrong_data(sampler: Sampler, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = gpu.memcpy

    def short(dst: int, src: int, count: int, stream: Any) -> None:
        whole(dst, src, count - 4 if count == 64 * KIB else count, stream)

    monkeypatch.setattr(gpu, "memcpy", short)
    with pytest.raises(WrongData):
        P2P.measure({**COPY, "mode": "events", "nbytes": 64 * KIB}, sampler)
