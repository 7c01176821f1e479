"""cupy's runtime API: whether it can be used here, and what its errors mean."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from iobench.errors import IobenchError, Unavailable
from iobench.needs import missing
from iobench.units import format_size

# cudaError_t values (CUDA runtime API, "Error Handling")
_OUT_OF_MEMORY, _NO_ROOM_ON_HOST = 2, 304
_NO_DEVICE, _OLD_DRIVER = 100, 35


class OutOfMemory(IobenchError):
    """The device (or the host, for pinned memory) has no room for a buffer: the point fails, the run goes on."""


def require(count: int = 1) -> Any:
    """Return the module cupy once ``count`` GPUs can be used; loads the driver, makes no context.

    Raises Unavailable with one sentence: no cupy, no driver, a driver older than the toolkit, fewer GPUs.
    """
    cupy = _import()
    found = _count(cupy.cuda.runtime)
    if found < count:
        shown = "1 GPU" if found == 1 else f"{found} GPUs"
        raise Unavailable(f"needs {count} GPUs, CUDA shows {shown} to this process (see CUDA_VISIBLE_DEVICES)")
    return cupy


def runtime() -> Any:
    """Return cupy's runtime module; raises as ``require``."""
    return require().cuda.runtime


def _import() -> Any:
    try:
        import cupy
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and error.name in (None, "cupy"):
            raise Unavailable(missing("cupy-cuda13x")) from error
        raise Unavailable(f"cupy is installed but does not load: {' '.join(str(error).split())[:200]}") from error
    return cupy


def _count(api: Any) -> int:
    """Return how many GPUs CUDA shows; Unavailable where it cannot be asked."""
    try:
        return int(api.getDeviceCount())
    except api.CUDARuntimeError as error:
        raise Unavailable(_trouble(api, error)) from error


def _trouble(api: Any, error: Exception) -> str:
    """Return the sentence for a CUDA that does not start."""
    code = status(error)
    driver = api.driverGetVersion()  # 0 where there is none; it needs no device
    if code == _OLD_DRIVER and driver:
        return (
            f"the NVIDIA driver (CUDA {version(driver)}) is older than cupy's toolkit (CUDA "
            f"{version(api.runtimeGetVersion())}): update the driver or install the cupy of an older CUDA"
        )
    if not driver:
        return "no NVIDIA driver on this machine (libcuda.so.1 is missing or has no device)"
    if code == _NO_DEVICE:
        return "CUDA shows no GPU to this process (see CUDA_VISIBLE_DEVICES)"
    return f"CUDA does not start: {' '.join(str(error).split())[:200]}"


def version(number: int) -> str:
    """Return "13.0" for CUDA's 13000."""
    return f"{number // 1000}.{number % 1000 // 10}"


def status(error: BaseException) -> int | None:
    """Return the cudaError_t behind a CUDARuntimeError, None where it is none."""
    code = getattr(error, "status", None)
    return int(code) if code is not None else None


@contextlib.contextmanager
def room_for(nbytes: int, where: str, free: int | None = None) -> Iterator[None]:
    """Turn an allocation's failure for want of memory into OutOfMemory; other errors pass through."""
    api = runtime()
    try:
        yield
    except api.CUDARuntimeError as error:
        if status(error) not in (_OUT_OF_MEMORY, _NO_ROOM_ON_HOST):
            raise
        left = f", {format_size(free)} are free" if free is not None else ""
        raise OutOfMemory(f"{where} has no room for {format_size(nbytes)}{left}") from error


def memcpy(dst: int, src: int, nbytes: int, stream: Any) -> None:
    """Enqueue cudaMemcpyAsync(Default) of ``nbytes`` on a stream of gpu.stream().

    It does not go through ``require``: it runs once per operation that is timed.
    """
    from cupy.cuda import runtime as api

    api.memcpyAsync(dst, src, nbytes, 4, stream.ptr)  # 4: cudaMemcpyDefault, the addresses say the direction


def synchronize() -> None:
    """Wait for everything on the current device."""
    runtime().deviceSynchronize()
