"""kvikio itself, where it is installed, reading into host memory: no GPU, no cuFile, so every read is by POSIX.

Labels are right and a short read is an error on a disk, on tmpfs, on a stacked filesystem and of a file with holes.
cupy is a stand-in whose arrays are numpy's, the CUDA driver one that knows no memory: kvikio takes both for the host's.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from iobench.errors import IobenchError, Unavailable
from iobench.storage import cache, files, filesystem, through
from iobench.storage.files import Files
from iobench.storage.way import Way
from iobench.timing.sampler import Sampler
from iobench.units import MIB

from weighing import skip_without_cache, with_holes

CUPY = """
import os, numpy
uint8, zeros = numpy.uint8, numpy.zeros
class cuda:
    class runtime:
        @staticmethod
        def deviceSynchronize(): pass
if os.environ.get("SHRINK"):  # this is imported right before kvikio
    import kvikio
    class CuFile(kvikio.CuFile):
        def __init__(self, path, *more):
            super().__init__(path, *more)
            os.truncate(path, 1 << 20)
    kvikio.CuFile = CuFile
"""
# What kvikio looks up in the driver; memory is none of CUDA's (CUDA_ERROR_NOT_INITIALIZED), all else does nothing
DRIVER = """
int cuPointerGetAttribute(void) { return 3; }
int cuPointerGetAttributes(void) { return 3; }
int cuGetErrorName(int error, const char **text) { *text = "error"; return 0; }
int cuGetErrorString(int error, const char **text) { *text = "of the stand-in"; return 0; }
int cuCtxGetCurrent(void **context) { *context = 0; return 0; }
"""
IDLE = """
cuInit cuMemHostAlloc cuMemFreeHost cuMemHostRegister cuMemHostRegister_v2 cuMemHostUnregister cuMemcpyAsync
cuMemcpyHtoDAsync cuMemcpyHtoDAsync_v2 cuMemcpyDtoHAsync cuMemcpyDtoHAsync_v2 cuCtxPushCurrent cuCtxPushCurrent_v2
cuCtxPopCurrent cuCtxPopCurrent_v2 cuCtxGetDevice cuCtxCreate cuCtxCreate_v2 cuCtxCreate_v4 cuCtxDestroy
cuCtxDestroy_v2 cuMemGetAddressRange cuMemGetAddressRange_v2 cuDeviceGet cuDeviceGetCount cuDeviceGetAttribute
cuDevicePrimaryCtxRetain cuDevicePrimaryCtxRelease cuDevicePrimaryCtxRelease_v2 cuStreamSynchronize cuStreamCreate
cuStreamDestroy cuStreamDestroy_v2 cuDriverGetVersion cuEventCreate cuEventQuery cuEventRecord cuEventSynchronize
cuEventDestroy cuEventDestroy_v2 cuLaunchHostFunc cuMemcpyBatchAsync cuMemcpyBatchAsync_v2
"""
LOADERS = ["kvikio", "kvikio-compat"]

pytestmark = pytest.mark.skipif(
    not importlib.util.find_spec("kvikio"), reason="needs kvikio: pip install kvikio-cu13 (or -cu12)"
)


@pytest.fixture(autouse=True)
def host_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the child process find the stand-ins for cupy and the driver before any others."""
    compiler = shutil.which("gcc") or shutil.which("clang") or pytest.skip("needs a C compiler (gcc or clang)")
    folder = tmp_path / "packages"
    folder.mkdir()
    (folder / "cupy.py").write_text(CUPY)
    driver = folder / "driver.c"
    driver.write_text(DRIVER + "".join(f"int {name}(void) {{ return 0; }}\n" for name in IDLE.split()))
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "libcuda.so.1", driver], check=True)
    for variable in ("PYTHONPATH", "LD_LIBRARY_PATH"):
        monkeypatch.setenv(variable, f"{folder}:{os.environ.get(variable, '')}")


@pytest.fixture
def weights(tmp_path: Path) -> Iterator[Files]:
    with files.own(tmp_path, 2 * MIB + 77, 2) as found:
        yield found


def loaded(weights: Files, method: str, **more: Any) -> Any:
    sampler = Sampler(budget=0.05, max_samples=10)
    try:
        return through.load(weights, Way(method, 2, 64 << 10, **more), "gpu", sampler, deadline=900.0)
    except (cache.ResidencyUnknown, Unavailable) as reason:
        if "kvikio" in str(reason):
            raise
        pytest.skip(str(reason))
    except IobenchError as reason:
        skip_without_cache(reason)
        raise


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("state", ["cold", "warm"])
def test_every_byte_comes_and_the_way_is_compat(weights: Files, loader: str, state: str) -> None:
    found = loaded(weights, f"{loader}-{state}")
    assert found.verdict.path.startswith("compat")
    assert found.facts["loader"].startswith("kvikio ")
    assert found.facts["bytes_asked"] == weights.nbytes
    moved = found.facts["backends"]
    assert moved is None or moved.pop("posix") >= weights.nbytes
    assert not moved or not any(moved.values())


@pytest.mark.parametrize("loader", LOADERS)
def test_on_tmpfs(loader: str) -> None:
    shm = Path("/dev/shm")
    if not (shm.is_dir() and os.access(shm, os.W_OK) and filesystem.filesystem_of(shm).name == "tmpfs"):
        pytest.skip("no writable tmpfs at /dev/shm")
    if shutil.disk_usage(shm).free < 16 * MIB:
        pytest.skip("no room in /dev/shm")
    with files.own(shm, 2 * MIB, 1) as found:
        verdict = loaded(found, f"{loader}-warm").verdict
    assert verdict.path.startswith("compat")
    assert not verdict.proven


@pytest.mark.parametrize("loader", LOADERS)
def test_on_an_overlay(weights: Files, loader: str) -> None:
    stacked = dataclasses.replace(weights, filesystem=filesystem.Filesystem("overlay"), device=None)
    verdict = loaded(stacked, f"{loader}-warm").verdict
    assert verdict.path == "compat, from an unknown device"
    assert not verdict.proven


@pytest.mark.parametrize("loader", LOADERS)
def test_a_file_with_holes(tmp_path: Path, loader: str) -> None:
    got = loaded(with_holes(tmp_path), f"{loader}-cold")
    assert got.verdict.path == "compat, not from the device"
    assert not got.verdict.proven


@pytest.mark.parametrize("loader", LOADERS)
def test_a_file_that_shrinks_while_it_is_open(weights: Files, loader: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHRINK", "1")
    with pytest.raises(IobenchError, match="kvikio"):
        loaded(weights, f"{loader}-warm")
