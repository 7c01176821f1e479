"""CUDA C kernels: .cu files beside this one, compiled at run time by NVRTC through cupy."""

from __future__ import annotations

from typing import Any


def function(file: str, name: str, device_index: int | None = None) -> Any:
    """Return the kernel ``name`` (extern "C") of ``file``.cu as a cupy.RawKernel for the current device.

    Call it as kernel((blocks,), (threads,), (args...)) with numpy scalars (np.uint64(ptr)); it goes to the current
    stream. Compiled once per process. Every kernel: 64-bit indices, grid-stride loops.
    """
    raise NotImplementedError
