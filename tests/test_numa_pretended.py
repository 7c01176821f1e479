"""The NUMA probe's copies on pretended GPUs: bound before anything is pinned, one GPU and a socket's, right data."""

from __future__ import annotations

import os
import sys
from collections import Counter
from typing import Any

import pytest
from iobench import gpu, hostmem, mempolicy, numabound, topology
from iobench import probe as probes
from iobench.errors import Unavailable
from iobench.gpu import Device, bound
from iobench.mempolicy import Placed, Policy
from iobench.record import Line
from iobench.timing.sampler import Sampler
from iobench.topology.graph import Topology
from iobench.units import KIB, MIB
from iobench.worker import measure
from tests.test_gpu_pretended import Pretend, built, pretend

__all__ = ["built", "pretend"]  # fixtures
NUMA = probes.load("numa")


@pytest.fixture
def graph(pretend: Pretend, monkeypatch: pytest.MonkeyPatch) -> Topology:
    """This machine with two GPUs on one socket, as CUDA shows them."""
    pretend(count=2)
    found = topology.discover()
    for name in [node.id for node in found.of("gpu")]:
        del found.nodes[name]
    sockets = found.nodes["numa:0"].get("sockets")
    if not sockets:
        found.add("numa:0", "numa", sockets=[0])
    for number in range(2):
        found.add(f"gpu:{number}", "gpu", vendor="NVIDIA", numa=0, address=f"0000:f0:0{number}.0")
        found.add(f"vram:{number}", "vram")
    monkeypatch.setattr(sys.modules[Device.__module__], "machine", lambda: found)
    return found


@pytest.fixture
def bindable(graph: Topology) -> None:
    try:
        numabound.cpus_of(graph, 0)
        with hostmem.buffer(16 * MIB, policy=Policy((0,))) as area:  # more than any test here needs
            area.data[:] = 1
    except Unavailable as reason:
        pytest.skip(f"threads and memory can't be bound to node 0 here: {reason}")


def run(graph: Topology, **point: Any) -> Line:
    sampler = Sampler(budget=0.02, max_samples=20)
    sampler.__dict__["topology"] = graph
    try:
        return measure(NUMA, {"op": "h2d", "mem": 0, "cpu": 0, "gpus": "0", "nbytes": 4 * KIB, **point}, sampler)
    finally:
        sampler.close()


@pytest.mark.usefixtures("bindable")
@pytest.mark.parametrize("gpus", ["0", "1", "socket0"])
@pytest.mark.parametrize("nbytes", [4 * KIB, MIB])
@pytest.mark.parametrize("op", ["h2d", "d2h"])
def test_bound_and_unbound(graph: Topology, op: str, nbytes: int, gpus: str) -> None:
    lanes = 2 if gpus == "socket0" else 1
    for ends in (0, "unbound"):
        line = run(graph, op=op, nbytes=nbytes, gpus=gpus, mem=ends, cpu=ends)
        assert (line.status, line.reason, line.verified) == ("ok", "", True)
        assert line.moved == nbytes * lanes
        assert len(line.evidence["host_pages"]) == lanes
        for shown in line.evidence["host_pages"]:
            assert set(shown["pages_on_node"]) == {"0"} or ends == "unbound"
            assert shown["pages_unknown"] == 0
        assert line.quantity == ("latency" if nbytes == 4 * KIB else "bandwidth")
        assert len(line.seconds) == (lanes if nbytes > 64 * KIB else 1)
        assert ("bound to node 0" in line.path) is (ends == 0)


@pytest.mark.usefixtures("bindable")
def test_bound_and_unbound_are_equal_on_one_node_and_the_report_says_what_that_proves(graph: Topology) -> None:
    lines = [run(graph, nbytes=4 * MIB, mem=ends, cpu=ends) for ends in (0, "unbound")]
    rates = [line.moved * line.ops / min(line.seconds[0]) for line in lines]
    assert rates[0] == pytest.approx(rates[1], rel=0.01)  # by the pretended clock
    if len(graph.of("mem")) == 1:
        assert all(any("proves nothing about NUMA" in note for note in line.notes) for line in lines)


def test_the_plan_covers_each_gpu_and_the_socket(graph: Topology) -> None:
    found = list(NUMA.points(graph, probes.narrow(NUMA, [])))
    assert {point["gpus"] for point in found} == {"0", "1", "socket0"}
    sizes = {gpus: {point["nbytes"] for point in found if point["gpus"] == gpus} for gpus in ("0", "socket0")}
    assert sizes == {"0": {4 * KIB, 64 * MIB}, "socket0": {4 * KIB, 64 * MIB}}


def test_memory_is_bound_before_it_is_touched_and_touched_before_it_is_pinned(
    graph: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    from iobench.gpu.runtime import runtime

    seen: list[str] = []
    api = runtime()
    pin, unpin = api.hostRegister, api.hostUnregister
    monkeypatch.setattr(mempolicy, "apply", lambda address, nbytes, policy, root: seen.append(f"bind {policy}"))
    monkeypatch.setattr(
        mempolicy, "placed", lambda data: seen.append("look") or Placed(Counter({0: 1}), 0, "move_pages")
    )

    def register(address: int, nbytes: int, flags: int) -> None:
        seen.append(f"pin {flags} {address % os.sysconf('SC_PAGE_SIZE')}")
        pin(address, nbytes, flags)

    monkeypatch.setattr(api, "hostRegister", register)
    monkeypatch.setattr(api, "hostUnregister", lambda address: seen.append("unpin") or unpin(address))
    with bound.registered(MIB, 0, gpu.device(0)) as (host, placed):
        assert host.data.max() == 0
        assert placed.on((0,))
    assert seen == ["bind bind 0", "pin 3 0", "look", "unpin"]


@pytest.mark.usefixtures("bindable")
def test_memory_that_the_pin_moved_is_no_result(graph: Topology, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mempolicy, "placed", lambda data: Placed(Counter({0: 1, 1: 9}), 0, "move_pages"))
    line = run(graph)
    assert (line.status, line.seconds) == ("skipped", [])
    assert "came to lie elsewhere" in line.reason


@pytest.mark.parametrize("gpus", ["0", "socket0"])
@pytest.mark.parametrize("nbytes", [4 * KIB, MIB])
def test_a_copy_that_misses_bytes_is_wrong_data(
    graph: Topology, monkeypatch: pytest.MonkeyPatch, gpus: str, nbytes: int
) -> None:
    whole = gpu.memcpy
    monkeypatch.setattr(
        gpu, "memcpy", lambda dst, src, count, stream: whole(dst, src, count - 4 if count == nbytes else count, stream)
    )
    line = run(graph, mem="unbound", cpu="unbound", gpus=gpus, nbytes=nbytes)
    assert (line.status, line.verified) == ("failed", False)


@pytest.mark.parametrize(("code", "kind"), [(801, Unavailable), (2, gpu.OutOfMemory)])
def test_what_cuda_will_not_pin_is_said(
    graph: Topology, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[Exception]
) -> None:
    from iobench.gpu.runtime import runtime

    api = runtime()

    def refuse(*_: int) -> None:
        raise api.CUDARuntimeError(code)

    monkeypatch.setattr(api, "hostRegister", refuse)
    with pytest.raises(kind), bound.registered(MIB, None, gpu.device(0)):
        pass


def test_a_gpu_that_cuda_does_not_show_is_said(graph: Topology) -> None:
    line = run(graph, gpus="7", mem="unbound", cpu="unbound")
    assert line.status == "skipped"
    assert "CUDA does not show gpu:7" in line.reason
