"""CXL memory: the data of a real run on node 0 as if it were far, and of a file mapped as a device is."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from iobench.cxl import forms, memory
from iobench.errors import Unavailable, WrongData
from iobench.kernels.gathering import Gathering
from iobench.kernels.team import pinned
from iobench.probe import Samples
from iobench.timing.sampler import Sampler
from iobench.topology.graph import Topology
from iobench.units import GIB, KIB, MIB

from cxl_machines import PROBE, machine

pytestmark = pytest.mark.usefixtures("roomy")


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Samples]:
    """Measure a point on node 0 of this machine as if it were far memory."""
    cpus = tuple(sorted(os.sched_getaffinity(0)))[:2]
    form = forms.Form("node", 0, cpus, "node 0", node=0, nbytes=GIB)
    mixed = forms.Form("interleave", 0, cpus, "node 0 and itself", node=0, nbytes=GIB)
    monkeypatch.setattr(forms, "forms", lambda topology: [form, mixed])

    def run(**point: object) -> Samples:
        sampler = Sampler(budget=0.02, min_samples=3, max_samples=5)
        sampler.__dict__["topology"] = machine((0, 2, 64))
        try:
            with contextlib.closing(sampler):
                return PROBE.measure(
                    {"form": "node", "node": 0, "to": "cpu", "pages": "base", "nbytes": MIB, **point}, sampler
                )
        except Unavailable as why:
            pytest.skip(str(why))

    return run


@pytest.mark.parametrize("kernel", ["read", "triad", "copy", "write"])
def test_streams_move_and_verify(here: Callable[..., Samples], kernel: str) -> None:
    samples = here(kernel=kernel, threads=1)
    assert samples.verified
    reads = {"read": 1.0, "triad": 2 / 3, "copy": 0.5, "write": 0.0}[kernel]
    assert samples.evidence["read_nbytes"] / samples.moved == pytest.approx(reads)


def test_chase_and_gather_are_proven_page_by_page(here: Callable[..., Samples]) -> None:
    chase = here(kernel="chase")
    gather = here(kernel="gather", block=32 * KIB, threads=1)
    assert chase.quantity == "latency"
    assert gather.moved == MIB
    for samples in (chase, gather):
        # the kernel may just move or swap a page when it is asked
        if samples.evidence["placement"] == "move_pages" and not samples.evidence["pages_unknown"]:
            assert samples.proven
            assert sum(samples.evidence["pages_on_node"].values()) == MIB // os.sysconf("SC_PAGE_SIZE")


def test_a_chase_beside_a_load(here: Callable[..., Samples]) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one CPU can't chase beside a load")
    samples = here(kernel="loaded", threads=1, mix="1:1", delay=64)
    told = samples.evidence
    assert samples.quantity == "latency"
    assert samples.verified
    assert told["load_seconds"] > 0
    # what the model is fitted over; 0 where the load's thread was kept from its CPU all the time
    assert told["load_bytes_per_s"] == told["load_nbytes"] / told["load_seconds"] >= 0
    assert PROBE.models[0]["size"] == "evidence.load_bytes_per_s"


def test_a_load_from_other_nodes_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("one CPU can't chase beside a load")
    graph = Topology("made")
    for cpu in cpus[:2]:
        graph.add(f"cpu:{cpu}", "cpu", numa=cpu)
    form = forms.Form("node", 0, (cpus[0],), "node 0", node=0, nbytes=GIB)
    monkeypatch.setattr(forms, "forms", lambda topology: [form])
    sampler = Sampler(budget=0.02, min_samples=3, max_samples=5)
    sampler.__dict__["topology"] = graph
    point = {"form": "node", "node": 0, "kernel": "loaded", "to": "cpu", "threads": 1, "mix": "read", "delay": 0}
    with contextlib.closing(sampler):
        try:
            samples = PROBE.measure({**point, "loaders": "far", "pages": "base", "nbytes": 64 * KIB}, sampler)
        except Unavailable as why:
            pytest.skip(str(why))
    assert samples.path.endswith("the load from CPUs of other nodes")
    assert samples.evidence["cpus"] == [cpus[0]]
    assert samples.evidence["load_cpus"] == [cpus[1]]


def test_gather_notices_a_wrong_word() -> None:
    import numpy as np

    data = np.zeros(2 * MIB + 64, np.uint8)
    data = data[-int(data.ctypes.data) % 64 :]
    with pinned(1) as team:
        work = Gathering.over(data[:MIB], data[MIB : 2 * MIB], 32 * KIB, 3, team)
        with pytest.raises(WrongData):
            work.check()  # nothing gathered yet
        work.take(1)
        work.check()
        assert sorted(work.tables[0].tolist()) == list(range(32))
        work.target[500_000] ^= 1
        with pytest.raises(WrongData, match="word"):
            work.check()
        with pytest.raises(Unavailable):
            Gathering.over(data[:MIB], data[MIB : 2 * MIB], 2 * MIB, 3, team)
        with pytest.raises(ValueError, match="whole lines"):
            Gathering.over(data[:MIB], data[MIB : 2 * MIB], 100, 3, team)


@pytest.fixture
def device() -> Iterator[str]:
    """A file below /dev that can be mapped as a dax device can."""
    file = Path(f"/dev/shm/iobench-{uuid.uuid4().hex}")
    try:
        try:
            file.write_bytes(b"\0" * 4 * MIB)
        except OSError as error:
            pytest.skip(f"no room in /dev/shm: {error}")
        yield str(file.relative_to("/dev"))
    finally:
        file.unlink(missing_ok=True)


def test_a_mapped_device_is_proven_by_the_mapping(device: str) -> None:
    form = forms.Form("devdax", 0, (0,), "a device", device=device, nbytes=4 * MIB)
    with memory.opened(form, MIB, "base") as mapped:
        mapped.data[:] = 7
        proof = mapped.prove()
    assert proof.proven
    assert proof.evidence["mapping"] == f"/dev/{device}"
    assert proof.shares == {f"dax:{device}": 1.0}
    assert Path(f"/dev/{device}").read_bytes()[: MIB + 1] == b"\7" * MIB + b"\0"


def test_a_device_that_is_too_small_or_missing(device: str) -> None:
    small = forms.Form("devdax", 0, (0,), "a device", device=device, nbytes=MIB)
    with pytest.raises(Unavailable, match="ask for less"), memory.opened(small, 4 * MIB, "base"):
        pass
    gone = forms.Form("devdax", 0, (0,), "a device", device="dax99.9", nbytes=GIB)
    with pytest.raises(Unavailable, match="can't be opened"), memory.opened(gone, MIB, "base"):
        pass


def test_mapping_of_an_address() -> None:
    text = "7f00-7f10 rw-s 00000000 00:05 12   /dev/dax0.0\n7f10-7f20 rw-p 00000000 00:00 0 \n"
    assert memory.mapping(text, 0x7F08) == "/dev/dax0.0"
    assert memory.mapping(text, 0x7F10) == ""
    assert memory.mapping(text, 0x8000) == ""
