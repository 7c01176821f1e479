"""The bytes that GPUs copy: the pattern, its check that looks at every byte, and the kernels' twin on the CPU."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from iobench import gpu
from iobench.errors import WrongData
from iobench.gpu import pattern
from iobench.kernels import gpu as kernels

# The first outputs of splitmix64 started with 1234567, as published with the generator.
SPLITMIX = (6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821)


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
