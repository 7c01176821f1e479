"""The GPU core without a GPU: what is said where there is none, sizes, places in the graph, host memory."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
from iobench import gpu, worker
from iobench.errors import Unavailable
from iobench.gpu import memory, numa, runtime
from iobench.gpu.device import address, peak, place, slice_fraction
from iobench.probe import load_file
from iobench.timing.sampler import Sampler
from iobench.topology import load
from iobench.units import GIB, MHZ, MIB
from tests.conftest import ROOT


class CudaError(RuntimeError):
    """Stands for cupy's CUDARuntimeError."""

    def __init__(self, status: int) -> None:
        super().__init__(f"cudaError {status}")
        self.status = status


class Runtime:
    """Stands for cupy.cuda.runtime."""

    CUDARuntimeError = CudaError

    def __init__(self, count: int = 0, status: int = 0, driver: int = 0) -> None:
        self._count, self._status, self._driver = count, status, driver

    def getDeviceCount(self) -> int:  # noqa: N802
        if self._status:
            raise CudaError(self._status)
        return self._count

    def driverGetVersion(self) -> int:  # noqa: N802
        return self._driver

    def runtimeGetVersion(self) -> int:  # noqa: N802
        return 13020


def pretend(monkeypatch: pytest.MonkeyPatch, api: Runtime) -> None:
    module = type(sys)("cupy")
    module.cuda = type(sys)("cupy.cuda")
    module.cuda.runtime = api
    monkeypatch.setitem(sys.modules, "cupy", module)


def test_importing_is_cheap() -> None:
    heavy = "[m for m in ('cupy', 'pynvml', 'numpy', 'numba') if m in sys.modules]"
    code = f"import sys, iobench.gpu, iobench.kernels.gpu; print({heavy})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("api", "words"),
    [
        (Runtime(status=35), "no NVIDIA driver"),
        (Runtime(status=35, driver=12040), r"driver \(CUDA 12.4\) is older than cupy's toolkit \(CUDA 13.2\)"),
        (Runtime(status=100, driver=13000), "CUDA shows no GPU"),
        (Runtime(status=999, driver=13000), "CUDA does not start: cudaError 999"),
        (Runtime(count=1), "needs 2 GPUs, CUDA shows 1 GPU"),
        (Runtime(count=0), "needs 2 GPUs, CUDA shows 0 GPUs"),
    ],
)
def test_why_there_is_no_gpu(api: Runtime, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, api)
    with pytest.raises(Unavailable, match=words) as caught:
        gpu.require(2)
    assert "\n" not in str(caught.value)


def test_without_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)  # import cupy then raises ModuleNotFoundError
    with pytest.raises(Unavailable, match="lacks cupy-cuda13x: pip install cupy-cuda13x"):
        gpu.require()


def test_enough_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, Runtime(count=2))
    assert gpu.require(2) is sys.modules["cupy"]


@pytest.mark.parametrize("status", [2, 304])
def test_no_room_is_out_of_memory_with_what_is_free(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, Runtime(count=1))
    with pytest.raises(gpu.OutOfMemory, match=r"gpu:0 has no room for 200 GiB, 3 GiB are free"), \
            runtime.room_for(200 * GIB, "gpu:0", 3 * GIB):  # fmt: skip
        raise CudaError(status)


def test_another_error_of_an_allocation_stays_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, Runtime(count=1))
    with pytest.raises(CudaError), runtime.room_for(1, "gpu:0"):
        raise CudaError(700)


def test_peak_of_an_h200_from_its_own_readings() -> None:
    assert peak(3201 * MHZ, 6016) == pytest.approx(4814.304e9)
    assert peak(None, 6016) is None
    assert peak(3201 * MHZ, None) is None
    assert peak(3201 * MHZ, 6016, None) is None


@pytest.mark.parametrize(
    ("part", "whole", "fraction"),
    [
        (4.75, 39.5, 1 / 8),  # 1g.5gb of an A100-40GB
        (9.75, 39.5, 2 / 8),  # 2g.10gb
        (19.62, 39.5, 4 / 8),  # 3g.20gb
        (39.25, 39.5, 1.0),  # 7g.40gb
        (9.75, 79.6, 1 / 8),  # 1g.10gb of an H100-80GB
        (19.62, 79.6, 2 / 8),  # 1g.20gb: one compute slice, two of memory
        (16.0, 140.4, 1 / 8),  # 1g.18gb of an H200
        (80.0, 79.6, None),
    ],
)
def test_a_slice_gets_eighths_of_the_memory(part: float, whole: float, fraction: float | None) -> None:
    assert slice_fraction(int(part * GIB), int(whole * GIB)) == fraction


def test_a_slice_of_an_unknown_card_has_no_limit() -> None:
    assert slice_fraction(GIB, None) is None


def test_addresses_as_sysfs_writes_them() -> None:
    assert address("00000000:3B:00.0") == "0000:3b:00.0"
    assert address("0000:00:06.0") == "0000:00:06.0"
    assert address("10000:01:00.0") == "10000:01:00.0"


def test_a_gpu_is_found_in_the_graph_by_its_address() -> None:
    graph = load(ROOT / "topologies" / "hgx-8x-h100.json")
    gpus = {node.id: node.get("address") for node in graph.of("gpu")}
    assert place(gpus["gpu:5"], graph) == ("gpu:5", "vram:5", "mem:1")
    assert place(gpus["gpu:0"], graph) == ("gpu:0", "vram:0", "mem:0")
    assert place("0000:ff:00.0", graph) == (None, None, None)


def test_one_memory_is_the_nearest_even_where_no_node_is_told() -> None:
    graph = load(ROOT / "topologies" / "1x-h200.json")
    assert place("0000:00:06.0", graph) == ("gpu:0", "vram:0", "mem:0")


@pytest.mark.parametrize("nbytes", [1, 4, 511, 512, 513, 64 * 1024, 10 * MIB, 59 * MIB, 61 * MIB, GIB])
def test_a_pool_covers_more_than_twice_the_cache(nbytes: int) -> None:
    count, stride = memory.slots(nbytes, 60 * MIB)
    assert count >= 2
    assert count * stride > 2 * 60 * MIB
    assert stride % 512 == 0
    assert nbytes <= stride < nbytes + 512


def test_slots_follow_each_other_and_come_round() -> None:
    count, stride = memory.slots(1000, 4096)
    pool = memory.Pool(1 << 20, 1000, stride, count)
    places = [pool.at(turn) for turn in range(2 * count)]
    assert len(set(places)) == count
    assert places[:count] == places[count:] == sorted(places[:count])
    assert all(b - a >= 1000 for a, b in itertools.pairwise(places[:count]))
    assert pool.span == places[count - 1] + 1000 - places[0]


def test_a_pool_keeps_to_its_bound() -> None:
    assert memory.slots(GIB, 60 * MIB, most_nbytes=GIB)[0] == 1
    assert memory.slots(MIB, 60 * MIB, most_nbytes=8 * MIB)[0] == 8


def test_memory_on_a_node_leaves_the_thread_where_it_was(tmp_path: Path) -> None:
    """A node with one of this thread's CPUs and another that is none of its."""
    before = os.sched_getaffinity(0)
    node = tmp_path / "sys/devices/system/node/node7"
    node.mkdir(parents=True)
    (node / "cpulist").write_text(f"{min(before)},{max(before) + 1}\n")
    with numa.allocating_on(7, str(tmp_path)):
        assert os.sched_getaffinity(0) == {min(before)}
    assert os.sched_getaffinity(0) == before
    with numa.allocating_on(None, str(tmp_path)):
        assert os.sched_getaffinity(0) == before


def test_a_kernel_without_nodes_has_one_memory(tmp_path: Path) -> None:
    before = os.sched_getaffinity(0)
    with numa.allocating_on(0, str(tmp_path)):
        assert os.sched_getaffinity(0) == before


def test_no_such_node(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="no NUMA node 999"), numa.allocating_on(999, str(tmp_path)):
        pass


@pytest.mark.parametrize(
    ("suspect", "verified", "status"), [("", True, "ok"), ("busy", True, "suspect"), ("busy", False, "failed")]
)
def test_a_probe_can_call_its_samples_suspect(suspect: str, verified: bool, status: str, tmp_path: Path) -> None:
    file = tmp_path / "odd.py"
    file.write_text(
        '"""A probe."""\n'
        "from iobench.probe import Samples\n"
        "from iobench.timing.sampler import Timed\n"
        "AXES = {}\n"
        "def points(topology, axes):\n    yield {}\n"
        "def measure(point, sampler):\n"
        "    timed = Timed([[1.0]], [], 1, 'budget')\n"
        f"    end = ({verified}, 'way', True)\n"
        f"    return Samples(timed, 1, 1, 'all', 'bandwidth', 'events', *end, suspect={suspect!r})\n",
        encoding="utf-8",
    )
    line = worker.measure(load_file(file), {}, Sampler())
    assert line.status == status
    assert line.reason == ("busy" if status == "suspect" else line.reason)
    assert bool(line.reason) == (status != "ok")


def test_pageable_memory_starts_on_a_page_and_is_touched() -> None:
    with gpu.pageable(100_003) as area:
        assert area.ptr % 4096 == 0
        assert (area.nbytes, area.data.nbytes, area.pinned) == (100_003, 100_003, False)
        assert not area.data.any()


def test_no_room_for_pageable_memory() -> None:
    with pytest.raises(gpu.OutOfMemory, match="host memory has no room"), \
            gpu.pageable(1 << 62):  # fmt: skip
        pass
