"""The GPU core without a GPU: what is said where there is none, sizes, patterns, gates and the choice of operations."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from iobench import gpu, worker
from iobench.errors import Unavailable, WrongData
from iobench.gpu import memory, numa, pattern, runtime
from iobench.gpu.device import address, peak, place, slice_fraction
from iobench.kernels import gpu as kernels
from iobench.probe import load_file
from iobench.timing import cuda
from iobench.timing.gate import Gate
from iobench.timing.sampler import Sampler
from iobench.topology import load
from iobench.units import GIB, MHZ, MIB
from tests.conftest import ROOT

# The first outputs of splitmix64 started with 1234567, as published with the generator.
SPLITMIX = (6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821)


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


def test_the_pattern_is_splitmix64() -> None:
    words = pattern.expected(40, 1234567).view("<u8")
    assert tuple(int(word) for word in words) == SPLITMIX


@pytest.mark.parametrize(("start", "nbytes"), [(0, 0), (0, 1), (3, 5), (7, 2), (8, 8), (13, 100), (16, 1)])
def test_a_part_of_the_pattern_is_that_part(start: int, nbytes: int) -> None:
    whole = pattern.expected(200, 7)
    assert np.array_equal(pattern.expected(nbytes, 7, start), whole[start : start + nbytes])


def test_seeds_give_different_patterns() -> None:
    assert np.count_nonzero(pattern.expected(4096, 1) == pattern.expected(4096, 2)) < 64


@pytest.mark.parametrize("nbytes", [1, 7, 8, 9, 4096, 100_003])
@pytest.mark.parametrize("chunk", [24, 1 << 24])
def test_every_byte_is_looked_at(nbytes: int, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pattern, "_CHUNK", chunk if nbytes < 5000 else 1 << 16)
    data = np.zeros(nbytes, dtype=np.uint8)
    gpu.fill_host(data, 3)
    gpu.check_host(data, 3)
    for at in {0, nbytes // 2, nbytes - 1}:
        data[at] ^= 1
        with pytest.raises(WrongData, match=rf"a copy: 1 of {nbytes} bytes differ, the first at byte {at}$"):
            gpu.check_host(data, 3, "a copy")
        data[at] ^= 1


def test_a_shifted_copy_is_wrong() -> None:
    data = np.roll(pattern.expected(4096, 5), 8)
    with pytest.raises(WrongData):
        gpu.check_host(data, 5)


def test_a_check_that_skips_its_tail_does_not_pass() -> None:
    with pytest.raises(WrongData, match="looked at 4088 of 4096"):
        pattern.verdict(0, 2**64 - 1, 4088, 4096, "the copy")


HARNESS = r"""
#include <cstring>
#define __global__
#define __device__
#define __forceinline__ inline
struct Index { unsigned x; };
static Index threadIdx, blockIdx, blockDim, gridDim;
static void atomicAdd(unsigned long long* at, unsigned long long value) { *at += value; }
static void atomicMin(unsigned long long* at, unsigned long long value) { if (value < *at) *at = value; }
#include "pattern.cu"
template <class Body> static void grid(unsigned blocks, unsigned threads, Body body) {
  gridDim.x = blocks; blockDim.x = threads;
  for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x)
    for (threadIdx.x = 0; threadIdx.x < threads; ++threadIdx.x) body();
}
extern "C" void fill(unsigned blocks, unsigned threads, unsigned char* p, unsigned long long n, unsigned long long s) {
  grid(blocks, threads, [&] { pattern_fill(p, n, s); });
}
extern "C" void check(unsigned blocks, unsigned threads, unsigned char* p, unsigned long long n, unsigned long long s,
                      unsigned long long* found) {
  grid(blocks, threads, [&] { pattern_check(p, n, s, found); });
}
"""


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The kernels of pattern.cu, run on the CPU one thread after the other."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    folder = tmp_path_factory.mktemp("pattern")
    (folder / "twin.cpp").write_text(HARNESS, encoding="utf-8")
    command = [compiler, "-O1", "-std=c++17", "-shared", "-fPIC", f"-I{kernels.source('pattern').parent}"]
    subprocess.run([*command, "-o", folder / "twin.so", folder / "twin.cpp"], check=True)
    return ctypes.CDLL(str(folder / "twin.so"))


GRIDS = [(1, 1), (1, 32), (3, 7), (1000, 64)]


@pytest.mark.parametrize("blocks", GRIDS)
@pytest.mark.parametrize("nbytes", [0, 1, 7, 8, 9, 1000, 4099])
@pytest.mark.parametrize("shift", [0, 4, 1])
def test_the_kernels_write_and_see_every_byte_for_every_grid(
    twin: Any, blocks: tuple[int, int], nbytes: int, shift: int
) -> None:
    room = np.full(8192, 0xEE, dtype=np.uint8)
    first = -room.ctypes.data % 8 + shift
    data = room[first : first + nbytes]
    at, size, seed = ctypes.c_void_p(data.ctypes.data), ctypes.c_ulonglong(nbytes), ctypes.c_ulonglong(99)
    twin.fill(*blocks, at, size, seed)
    gpu.check_host(data.copy(), 99)
    assert set(room[first + nbytes :]) == {0xEE}  # nothing beyond the end
    assert set(room[:first]) <= {0xEE}

    def found() -> list[int]:
        result = np.array([0, 2**64 - 1, 0], dtype=np.uint64)
        twin.check(*blocks, at, size, seed, ctypes.c_void_p(result.ctypes.data))
        return [int(value) for value in result]

    assert found() == [0, 2**64 - 1, nbytes]
    if nbytes:
        data[nbytes - 1] ^= 0x80
        assert found() == [1, nbytes - 1, nbytes]


def test_every_kernel_source_compiles_without_standard_headers() -> None:
    """NVRTC has none: an #include <...> fails only on a machine with a GPU."""
    for file in Path(kernels.__file__).parent.glob("*.cu"):
        text = file.read_text(encoding="utf-8")
        assert "#include <c" not in text, file.name


@pytest.mark.skipif(not shutil.which("nvcc"), reason="needs nvcc")
@pytest.mark.parametrize("name", ["gate", "pattern"])
def test_nvcc_takes_the_sources(name: str, tmp_path: Path) -> None:
    command = ["nvcc", "-arch=sm_90", "--cubin", "-o", tmp_path / "out.cubin", kernels.source(name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


class Kernel:
    """Stands for the gate's kernel: keeps what it was launched with, and gives up where told to."""

    def __init__(self) -> None:
        self.launched: list[int] = []
        self.words = np.zeros(32, dtype=np.uint32)
        self.gives_up = False

    def __call__(self, grid: Any, block: Any, arguments: Any) -> None:
        ticket = int(arguments[2])
        assert int(self.words[0]) < ticket, "the gate stands open before it is closed"
        self.launched.append(ticket)
        if self.gives_up:
            self.words[16] = ticket


def made_gate() -> tuple[Gate, Kernel]:
    kernel = Kernel()
    return Gate(kernel.words, 0, kernel), kernel


def test_a_gate_opens_once_all_is_enqueued() -> None:
    gate, kernel = made_gate()
    for ticket in (1, 2, 3):
        with gate.closed():
            assert int(kernel.words[0]) == ticket - 1
        assert int(kernel.words[0]) == ticket
        assert not gate.count_late()
    assert kernel.launched == [1, 2, 3]
    assert gate.notes == []


def test_a_gate_opens_after_an_error_too() -> None:
    gate, kernel = made_gate()
    with pytest.raises(KeyboardInterrupt), gate.closed():
        raise KeyboardInterrupt
    assert int(kernel.words[0]) == 1


def test_a_gate_that_gave_up_is_in_the_notes() -> None:
    gate, kernel = made_gate()
    for gives_up in (False, True, False):
        kernel.gives_up = gives_up
        with gate.closed():
            pass
        assert gate.count_late() is gives_up
    assert gate.notes == [
        "the gate gave up after 0.5 s in 1 of 3 samples (the launch queue was full or the host was late): launch cost "
        "is inside them"
    ]


class Side:
    """Stands for a stream whose operations take ``each`` seconds, and whose queue holds ``room`` of them."""

    lead = 1

    def __init__(self, each: float, room: int = 10**6, fixed: float = 1.5e-6) -> None:
        self.each, self.room, self.fixed, self.alone = each, room, fixed, 0.0
        self.asked: list[int] = []

    def sample(self, gate: Gate, ops: int) -> float:
        self.asked.append(ops)
        gate.late += ops > self.room
        return self.fixed + ops * self.each


@pytest.mark.parametrize("each", [0.02, 1e-3, 60e-6, 30e-6, 2e-6, 1e-6])
def test_enough_operations_for_the_events_resolution(each: float) -> None:
    gate, _ = made_gate()
    side = Side(each)
    ops = cuda._choose(side, gate, cuda.RESOLUTION / 0.01)
    assert side.fixed + ops * each >= 50e-6
    assert ops == 1 or ops <= 3 * math.ceil(50e-6 / each), "more than needed"
    assert side.alone == pytest.approx(each + side.fixed / ops)


def test_never_more_operations_than_the_launch_queue_holds() -> None:
    gate, _ = made_gate()
    side = Side(1e-9)
    assert cuda._choose(side, gate, 50e-6) == cuda.MOST_OPS
    assert max(side.asked) == cuda.MOST_OPS


def test_a_full_queue_asks_for_fewer_operations() -> None:
    gate, _ = made_gate()
    assert cuda._choose(Side(1e-6, room=20), gate, 50e-6) <= 32


@pytest.mark.parametrize(("one", "two"), [(1e-3, 1e-3), (1e-3, 3e-4), (3e-4, 1e-3)])
def test_the_other_stream_outlasts_the_measured_one(one: float, two: float) -> None:
    measured, other = Side(one), Side(two)
    measured.alone, other.alone = one, two
    assert cuda._outlasting(4, measured, other) * two > (4 + measured.lead) * one


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


class Fake:
    """Stands for the CUDA runtime and two streams: an operation takes ``each`` seconds, the second stream's start
    holds the first's, and both begin when the gate opens."""

    def __init__(self, each: tuple[float, float]) -> None:
        self.each, self.clock, self.marks = each, [0.0, 0.0], {}

    def eventRecord(self, event: int, stream: int) -> None:  # noqa: N802
        self.marks[event] = self.clock[stream]

    def streamWaitEvent(self, stream: int, event: int) -> None:  # noqa: N802
        self.clock[stream] = self.marks[event] + 3e-6

    def eventSynchronize(self, event: int) -> None:  # noqa: N802
        self.clock = [max(self.clock)] * 2

    def eventQuery(self, event: int) -> int:  # noqa: N802
        return 0

    def eventElapsedTime(self, start: int, end: int) -> float:  # noqa: N802
        return (self.marks[end] - self.marks[start]) * 1e3

    def side(self, number: int) -> Any:
        def work(turn: int) -> None:
            self.clock[number] += self.each[number]

        made = cuda.Side(work, FakeStream(number), 2 * number, 2 * number + 1, self)
        made.current = contextlib.nullcontext  # type: ignore[method-assign]
        made.alone = self.each[number] / 2  # half as fast with the other beside it
        return made


class FakeStream:
    def __init__(self, number: int) -> None:
        self.ptr, self.device_id = number, 0


@pytest.mark.parametrize("each", [(1e-4, 1e-4), (1e-4, 3e-5), (3e-5, 1e-3)])
def test_each_stream_is_timed_while_the_other_outlasts_it(each: tuple[float, float]) -> None:
    gate, _ = made_gate()
    fake = Fake(each)
    duel = cuda._Duel(fake.side(0), fake.side(1), gate, ops=5)
    duel.calibrate()
    duel.overlapped.clear()
    rows = duel.take(7)
    assert all(duel.overlapped)
    assert len(duel.overlapped) == 14
    for row, seconds in zip(rows, each, strict=True):
        assert row == pytest.approx([5 * seconds] * 7)


def test_an_opponent_that_is_too_short_works_longer_next_time() -> None:
    gate, _ = made_gate()
    fake = Fake((1e-4, 1e-4))
    one, two = fake.side(0), fake.side(1)
    two.alone *= 10  # taken for slow: too few operations against the first
    duel = cuda._Duel(one, two, gate, ops=50)
    duel.calibrate()
    duel.overlapped.clear()
    duel.take(2)
    assert all(duel.overlapped)
