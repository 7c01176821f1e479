"""CUDA C kernels: .cu files beside this one, compiled at run time by NVRTC through cupy."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

_OPTIONS = ("-std=c++17",)


def source(file: str) -> Path:
    """Return where ``file``.cu lies."""
    return Path(__file__).with_name(f"{file}.cu")


def function(file: str, name: str) -> Any:
    """Return the kernel ``name`` (extern "C") of ``file``.cu as a cupy.RawKernel.

    Call it as kernel((blocks,), (threads,), (args...)) with NumPy scalars (np.uint64(ptr)); it goes to the current
    stream. Compiled once per process; the module is loaded for each device when it is first launched there: launch
    once outside the timed part. NVRTC has no standard headers: no #include <cstdint> in a source. Every kernel uses
    64-bit indices and grid-stride loops. Raises Unavailable where there is no GPU; cupy's CompileException, with the
    compiler's words, for a source that does not compile.
    """
    return _module(file).get_function(name)


@functools.cache
def _module(file: str) -> Any:
    from iobench.gpu.runtime import require

    return require().RawModule(code=source(file).read_text(encoding="utf-8"), options=_OPTIONS, backend="nvrtc")
