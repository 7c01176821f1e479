"""The NUMA probe on a GPU: bound and unbound copies, every page shown, the same rate where there is one node."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from iobench import gpu, mempolicy
from iobench import probe as probes
from iobench.errors import Unavailable, WrongData
from iobench.gpu import Device, bound
from iobench.gpu.device import machine
from iobench.mempolicy import Placed
from iobench.timing.sampler import Sampler
from iobench.units import KIB, MIB

pytestmark = pytest.mark.gpu
NUMA = probes.load("numa")


def rate(samples: probes.Samples) -> float:
    seconds = float(np.median(np.max(np.asarray(samples.timed.seconds), axis=0))) / samples.timed.ops
    return samples.moved / seconds


def point(**more: Any) -> dict[str, Any]:
    return {"op": "h2d", "mem": 0, "cpu": 0, "gpus": "0", "nbytes": 64 * MIB, **more}


@pytest.mark.parametrize("op", ["h2d", "d2h"])
@pytest.mark.parametrize("nbytes", [4 * KIB, 64 * MIB])
@pytest.mark.parametrize("ends", [0, "unbound"])
def test_every_way_is_measured_and_verified(sampler: Sampler, op: str, nbytes: int, ends: Any) -> None:
    samples = NUMA.measure(point(op=op, nbytes=nbytes, mem=ends, cpu=ends), sampler)
    assert samples.verified is True
    (shown,) = samples.evidence["host_pages"]
    assert shown["pages_on_node"]
    assert shown["pages_unknown"] == 0
    assert samples.quantity == ("latency" if nbytes == 4 * KIB else "bandwidth")


def test_one_node_is_as_fast_bound_as_unbound(sampler: Sampler) -> None:
    if len(machine().of("mem")) > 1:
        pytest.skip("more than one NUMA node: bound and unbound may differ")
    sampler.budget = 0.5
    rates = [rate(NUMA.measure(point(mem=ends, cpu=ends), sampler)) for ends in (0, "unbound", 0, "unbound")]
    assert max(rates[0], rates[2]) == pytest.approx(max(rates[1], rates[3]), rel=0.05)


def test_buffers_are_fresh_and_their_own(card: Device) -> None:
    with bound.lane(card, "h2d", MIB, 0) as one, bound.lane(card, "h2d", MIB, 0) as two:
        assert one.copy.src.ptr != two.copy.src.ptr
        assert one.placed.on((0,))


def test_memory_that_the_pin_moved_is_no_result(sampler: Sampler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mempolicy, "placed", lambda data: Placed(Counter({0: 1, 1: 9}), 0, "move_pages"))
    with pytest.raises(Unavailable, match="came to lie elsewhere"):
        NUMA.measure(point(nbytes=4 * KIB), sampler)


def test_a_copy_that_misses_bytes_is_wrong_data(sampler: Sampler, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = gpu.memcpy
    monkeypatch.setattr(gpu, "memcpy", lambda dst, src, nbytes, stream: whole(dst, src, max(nbytes - 4, 4), stream))
    with pytest.raises(WrongData):
        NUMA.measure(point(nbytes=MIB), sampler)


@pytest.mark.multigpu
@pytest.mark.parametrize("nbytes", [4 * KIB, 64 * MIB])
def test_all_gpus_of_a_socket_copy_at_once(sampler: Sampler, nbytes: int) -> None:
    groups = {p["gpus"] for p in NUMA.points(machine(), probes.narrow(NUMA, [])) if not p["gpus"].isdigit()}
    if not groups:
        pytest.skip("no socket is known to have two GPUs")
    samples = NUMA.measure(point(gpus=min(groups), nbytes=nbytes), sampler)
    count = len(samples.evidence["host_pages"])
    assert count > 1
    assert samples.moved == nbytes * count
    # a small message to all of them has one time, each stream of large ones its own
    assert len(samples.timed.seconds) == (1 if nbytes == 4 * KIB else count)
