"""Weights into the memory of a pretended GPU (fakes/cuda), from the probe's point to its verified record.

All but CUDA itself runs: pinned slots, streams, events, copies of rows, the kernel that sums (built for the CPU).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from iobench import gpu
from iobench.crosscheck import memory
from iobench.crosscheck import weights as crosscheck
from iobench.errors import Unavailable, WrongData
from iobench.gpu import OutOfMemory
from iobench.storage import files, ongpu, verify
from iobench.storage.filesystem import direct_access, filesystem_of
from iobench.timing.sampler import Sampler
from iobench.units import KIB, MIB
from tests.test_gpu_pretended import FAKES, Pretend, built, pretend
from tests.test_storage_beside import DEFAULTS, KVIKIO

from weighing import WEIGHTS, measured

FIXTURES = (built, pretend)  # pytest finds them by their names here
OWN = ("buffered-cold", "buffered-warm", "mmap-cold", "mmap-warm", "direct")


@pytest.fixture
def sampler(tmp_path: Path) -> Iterator[Sampler]:
    made = Sampler(budget=0.01, scratch=str(tmp_path))
    yield made
    made.close()
    assert not list(tmp_path.glob("iobench-weights-*"))


def point(method: str, **more: Any) -> dict[str, Any]:
    usual = {"method": method, "target": "gpu", "threads": 3, "block": 64 * KIB, "nbytes": 2 * MIB + 5, "shards": 2}
    return {**usual, **more}


@pytest.mark.parametrize("nbytes", [1, 7, 8, 511, 512, 513, 4096, 300_003])
def test_the_kernel_sums_as_the_host_does(pretend: Pretend, nbytes: int) -> None:
    pretend()
    card = gpu.device(0)
    data = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
    with gpu.buffer(nbytes, card) as area, gpu.stream(card) as stream:
        gpu.memcpy(area.ptr, int(data.ctypes.data), nbytes, stream)
        stream.synchronize()
        assert np.array_equal(ongpu.sums(area.ptr, nbytes, card), verify.sums(data))


@pytest.mark.parametrize("method", OWN)
@pytest.mark.parametrize("part", [{}, {"part": "tensors"}, {"part": "slices", "tp": 4, "rank": 3}])
def test_every_way_brings_every_byte(pretend: Pretend, method: str, part: dict[str, Any], sampler: Sampler) -> None:
    pretend()
    found = measured(point(method, **part), sampler)
    assert found.verified
    assert " to CUDA device 0" in found.path or " to gpu:" in found.path
    assert "gds" not in found.path
    if not method.startswith("mmap"):
        assert {"read", "copy", "register", "open", "verify"} <= set(found.evidence["stages"])
        assert found.evidence["ring_nbytes"] == 3 * 2 * 64 * KIB
    if method == "direct":
        assert "bounce" in found.path


@pytest.mark.parametrize(
    "more",
    [
        {"depth": 1},
        {"depth": 5},
        {"register": "each"},
        {"threads": 1},
        {"engine": "io_uring", "depth": 4},
        {"engine": "aio", "depth": 4},
        {"load": 2},
        {"align": 65536},
    ],
)
def test_rings_of_every_shape(pretend: Pretend, more: dict[str, Any], sampler: Sampler) -> None:
    pretend()
    assert measured(point("direct", **more), sampler).verified


@pytest.mark.parametrize("loader", ["kvikio", "kvikio-compat"])
def test_kvikio_into_its_memory_is_summed_by_the_kernel(
    pretend: Pretend, built: Path, loader: str, sampler: Sampler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kvikio itself is a stand-in: without a driver it reads nothing. Its process, memory and check are as always."""
    pretend()
    (tmp_path / "kvikio").mkdir()
    (tmp_path / "kvikio/__init__.py").write_text(KVIKIO)
    (tmp_path / "kvikio/defaults.py").write_text(DEFAULTS)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(FAKES), os.environ.get("PYTHONPATH", "")]))
    found = measured(point(f"{loader}-warm"), sampler)
    assert found.verified
    assert found.path.startswith("compat")
    assert found.evidence["backends"]["posix"] >= found.nbytes
    monkeypatch.setenv("DAMAGE", "1")
    with pytest.raises(WrongData, match="1 of"):
        measured(point(f"{loader}-warm"), sampler)


@pytest.mark.parametrize("method", ["direct", "mmap-warm"])
def test_a_copy_that_is_short_is_wrong_data(
    pretend: Pretend, method: str, sampler: Sampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend()
    whole = gpu.memcpy
    monkeypatch.setattr(gpu, "memcpy", lambda dst, src, nbytes, stream: whole(dst, src, nbytes - 1, stream))
    with pytest.raises(WrongData):
        measured(point(method), sampler)


def test_a_slot_that_is_not_waited_for_is_wrong_data(
    pretend: Pretend, sampler: Sampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fake copies when it is waited for, so a slot that is filled too soon shows."""
    pretend()
    monkeypatch.setattr(ongpu.GpuLane, "wait", lambda self, slot: None)
    with pytest.raises(WrongData):
        measured(point("buffered-warm", threads=1), sampler)


def test_memory_that_does_not_suffice_is_said_with_both_figures(pretend: Pretend, sampler: Sampler) -> None:
    pretend(memory=MIB)
    with pytest.raises(OutOfMemory, match=r"no room for 4 MiB, 1 MiB"):
        WEIGHTS.measure(point("direct"), sampler)


def test_the_crosscheck_of_memory_runs_on_it(pretend: Pretend, tmp_path: Path) -> None:
    pretend()
    with files.own(tmp_path, 4 * MIB, 2) as made:
        try:
            found = memory.measure([shard.path for shard in made.checkpoint.shards])
        except Unavailable as reason:
            pytest.skip(str(reason))
    assert found["target"] != "nowhere"
    assert found["ring"] == 128 * MIB


def test_the_crosscheck_of_weights_runs_on_it(
    pretend: Pretend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not filesystem_of(tmp_path).is_storage:
        pytest.skip("the temporary folder is no storage")
    (tmp_path / "some").write_bytes(bytes(MIB))
    if refused := direct_access(tmp_path / "some").reason:
        pytest.skip(refused)
    pretend()
    monkeypatch.setattr(crosscheck, "NBYTES", 8 * MIB)
    monkeypatch.setattr(crosscheck, "QUICK_ROUNDS", 1)
    monkeypatch.setattr(crosscheck, "MOST", 1)
    monkeypatch.setattr(crosscheck, "LOADERS", ())
    said: list[str] = []
    assert isinstance(crosscheck.run(said.append, quick=True, scratch=tmp_path), bool)
    text = "\n".join(map(str, said))
    assert "to the first GPU's memory" in text
    assert "pinned buffers alone" in text
    assert "iobench direct" in text
