"""RDMA into a GPU's memory: registered by dma-buf or nvidia-peermem, compared by copies."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from iobench.errors import Unavailable, WrongData
from iobench.rdma import measure
from iobench.timing.sampler import Sampler

import fake_verbs
from rdma_sides import Sides, point_of, sound_sides


@pytest.fixture
def sides(tmp_path: Path) -> Iterator[Sides]:
    with sound_sides(tmp_path) as made:
        yield made


class Gpu(np.ndarray):
    """cupy's array as far as it is used here: the CPU reaches it by copies only."""

    @property
    def data(self) -> object:  # type: ignore[override]
        return __import__("types").SimpleNamespace(ptr=self.ctypes.data)

    def get(self) -> np.ndarray:
        return np.array(self)

    def set(self, values: np.ndarray) -> None:
        self[:] = values


@pytest.mark.parametrize(("verb", "test"), [("send", "latency"), ("read", "latency"), ("write", "bandwidth")])
def test_gpu_memory_is_compared_by_copies(sides: Sides, monkeypatch: pytest.MonkeyPatch, verb: str, test: str) -> None:
    import contextlib
    import sys
    import types

    from iobench.rdma import memory

    class Device(contextlib.nullcontext[None]):
        def __init__(self, number: int) -> None:
            super().__init__()

        def synchronize(self) -> None:
            pass

    cupy = types.SimpleNamespace(
        uint8=np.uint8, cuda=types.SimpleNamespace(Device=Device), zeros=lambda n, kind: np.zeros(n, kind).view(Gpu)
    )
    monkeypatch.setitem(sys.modules, "cupy", cupy)  # type: ignore[arg-type]
    refused = Unavailable("this driver offers no dma-buf")
    monkeypatch.setattr(memory, "_dma_buf", lambda address, length: (_ for _ in ()).throw(refused))
    monkeypatch.setattr(memory, "_PEER_MODULES", ("no/such/module",))
    monkeypatch.setattr(measure, "pair_of", lambda point, sampler: sides)
    stream = {"depth": 16, "every": 4} if test == "bandwidth" else {}
    point = point_of(verb=verb, test=test, memory="gpu", **stream)
    with pytest.raises(Unavailable, match=r"no dma-buf.*nvidia-peermem is not loaded.*modprobe"):
        measure.measure(point, Sampler(budget=0.01))
    monkeypatch.setattr(memory, "_PEER_MODULES", ("sys",))
    samples = measure.measure(point, Sampler(budget=0.02, min_samples=2, max_samples=5))
    assert samples.evidence["sides"][0]["memory"] == "GPU memory by nvidia-peermem"
    assert samples.evidence["verified_operations"] == 2 * (4 if test == "bandwidth" else 1)
    fake_verbs.DEVICE.corrupt = True
    with pytest.raises(WrongData):
        measure.measure(point, Sampler(budget=0.02, min_samples=2, max_samples=5))


def test_a_dma_buf_comes_first_and_its_descriptor_is_closed(sides: Sides, monkeypatch: pytest.MonkeyPatch) -> None:
    import types

    from iobench.rdma import memory

    asked: list[tuple[int, int]] = []
    handles: list[int] = []

    def ranged(handle: object, address: ctypes.c_uint64, length: ctypes.c_size_t, kind: int, flags: object) -> int:
        asked.append((address.value, length.value))
        handles.append(os.memfd_create("stands for a dma-buf"))
        handle._obj.value = handles[-1]  # type: ignore[attr-defined]
        return 0

    def by_descriptor(pd: object, nbytes: int, access: int, dmabuf: int, offset: int) -> object:
        os.fstat(dmabuf)
        assert offset == 0
        return types.SimpleNamespace(nbytes=nbytes)

    driver = types.SimpleNamespace(cuMemGetHandleForAddressRange=ranged)
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: driver)
    monkeypatch.setattr(sides.sides[0].verbs.mr, "DmaBufMR", by_descriptor)
    made, how, address = memory._register_gpu(sides.sides[0].verbs, None, 4 << 20, 5000, 7)
    assert (made.nbytes, how, address) == (5000, "GPU memory by dma-buf", 0)
    assert asked == [(4 << 20, 8192)], "whole pages"
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(handles[0])
