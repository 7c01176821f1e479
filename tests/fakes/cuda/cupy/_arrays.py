"""Arrays in the memory of a pretended GPU: only what iobench asks of cupy's."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
from cupy._machine import MACHINE


class ndarray:  # noqa: N801  cupy's name
    def __init__(self, view: Any, owner: Any) -> None:
        self._view, self._owner = view, owner

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=int(self._view.ctypes.data))

    @property
    def nbytes(self) -> int:
        return int(self._view.nbytes)

    @property
    def shape(self) -> Any:
        return self._view.shape

    def get(self) -> Any:
        MACHINE.wait_all()
        return self._view.copy()

    def fill(self, value: Any) -> None:
        from cupy.cuda import current_stream

        view = self._view
        MACHINE.put(current_stream().ptr, 3e-6, lambda line: view.fill(value))

    def __getitem__(self, index: Any) -> Any:
        MACHINE.wait_all()
        return ndarray(self._view[index], self._owner)

    def __int__(self) -> int:
        return int(self.get())


class _Owner:
    """Frees the memory with the last array that looks into it."""

    def __init__(self, nbytes: int) -> None:
        self.start = MACHINE.allocate(max(nbytes, 1), MACHINE.device)

    def __del__(self) -> None:
        MACHINE.areas.pop(self.start, None)


def zeros(shape: Any, dtype: Any = float) -> ndarray:
    kind, count = np.dtype(dtype), int(np.prod(shape))
    owner = _Owner(count * kind.itemsize)
    flat = (ctypes.c_uint8 * max(count * kind.itemsize, 1)).from_address(owner.start)
    view = np.frombuffer(flat, np.uint8)[: count * kind.itemsize].view(kind).reshape(shape)
    view[...] = 0
    return ndarray(view, owner)


def asarray(data: Any) -> ndarray:
    host = np.ascontiguousarray(data)
    made = zeros(host.shape, host.dtype)
    MACHINE.wait_all()
    made._view[...] = host
    return made
