"""Weights into GPU memory: every way verified by the kernel, its host twin, a planted fault, labels of kvikio."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from iobench import gpu
from iobench.errors import WrongData
from iobench.gpu import Device
from iobench.storage import ongpu, verify
from iobench.timing.sampler import Sampler
from iobench.units import KIB, MIB

from weighing import WEIGHTS, measured

pytestmark = pytest.mark.gpu


@pytest.fixture
def sampler(tmp_path: Path) -> Iterator[Sampler]:
    made = Sampler(budget=0.05, scratch=str(tmp_path))
    yield made
    made.close()


def point(method: str, **more: Any) -> dict[str, Any]:
    usual = {"method": method, "target": "gpu", "threads": 4, "block": 256 * KIB, "nbytes": 32 * MIB + 5, "shards": 2}
    return {**usual, **more}


@pytest.mark.parametrize("nbytes", [1, 7, 8, 511, 512, 513, 4096, MIB + 3])
def test_the_kernel_sums_as_the_host_does(card: Device, nbytes: int) -> None:
    data = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
    with gpu.buffer(nbytes, card) as area, gpu.stream(card) as stream:
        gpu.memcpy(area.ptr, int(data.ctypes.data), nbytes, stream)
        stream.synchronize()
        assert np.array_equal(ongpu.sums(area.ptr, nbytes, card), verify.sums(data))


@pytest.mark.parametrize("method", ["buffered-cold", "buffered-warm", "mmap-cold", "mmap-warm", "direct"])
@pytest.mark.parametrize("part", [{}, {"part": "tensors"}, {"part": "slices", "tp": 4, "rank": 3}])
def test_every_way_brings_every_byte(method: str, part: dict[str, Any], sampler: Sampler) -> None:
    found = measured(point(method, **part), sampler)
    assert found.verified
    assert "to gpu:" in found.path or "to CUDA" in found.path
    assert "gds" not in found.path
    if not method.startswith("mmap"):
        assert {"read", "copy", "register"} <= set(found.evidence["stages"])


@pytest.mark.parametrize("engine", ["io_uring", "aio"])
@pytest.mark.parametrize("part", [{}, {"part": "slices", "tp": 4, "rank": 3}])
def test_reads_in_flight(engine: str, part: dict[str, Any], sampler: Sampler) -> None:
    found = measured(point("direct", engine=engine, depth=8, threads=2, **part), sampler)
    assert found.verified
    assert "bounce" in found.path


@pytest.mark.parametrize("more", [{"depth": 1}, {"depth": 8}, {"register": "each"}, {"threads": 1}])
def test_rings_of_every_shape(more: dict[str, Any], sampler: Sampler) -> None:
    assert measured(point("buffered-warm", **more), sampler).verified


def test_a_copy_that_is_short_is_wrong_data(sampler: Sampler, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = gpu.memcpy
    monkeypatch.setattr(gpu, "memcpy", lambda dst, src, nbytes, stream: whole(dst, src, nbytes - 1, stream))
    with pytest.raises(WrongData):
        WEIGHTS.measure(point("buffered-warm"), sampler)


@pytest.mark.parametrize("method", ["kvikio-cold", "kvikio-compat-cold", "kvikio-compat-warm"])
def test_kvikio_is_labelled_by_what_counters_saw(method: str, sampler: Sampler) -> None:
    found = measured(point(method), sampler)
    assert found.verified
    if "compat" in method or not Path("/proc/driver/nvidia-fs/stats").exists():
        assert "gds (nvidia-fs)" not in found.path
    if "compat" in method:
        assert found.path.startswith("compat")


@pytest.mark.parametrize("loader", ["safetensors", "fastsafetensors", "runai"])
@pytest.mark.parametrize("state", ["cold", "warm"])
def test_other_loaders(loader: str, state: str, sampler: Sampler) -> None:
    assert measured(point(f"{loader}-{state}"), sampler).verified


def test_direct_takes_little_host_memory(sampler: Sampler) -> None:
    """512 MiB to the GPU: the host grows by the ring (32 MiB), the sums (8 MiB) and their copy, not by the files."""
    found = measured(point("direct", nbytes=512 * MIB, threads=16, block=MIB), sampler)
    assert found.evidence["ring_nbytes"] == 32 * MIB
    assert found.evidence["host_growth_nbytes"] < 128 * MIB
