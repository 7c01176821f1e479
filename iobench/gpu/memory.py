"""Buffers on the GPU and on the host, streams, and pools of rotating buffers larger than the caches."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from iobench.gpu.device import Device


@dataclass(frozen=True)
class Buffer:
    """Device memory: address, bytes, and the CUDA index of its GPU."""

    ptr: int
    nbytes: int
    index: int


@dataclass(frozen=True)
class HostBuffer:
    """Host memory that a GPU can copy from: ``data`` (uint8) looks into it. ``pinned`` memory is mapped as well:
    ``ptr`` is valid inside a kernel. ``nodes`` counts sampled pages by NUMA node, None where unknown."""

    ptr: int
    nbytes: int
    data: NDArray[np.uint8]
    pinned: bool
    nodes: dict[int, int] | None = None


@dataclass(frozen=True)
class Pool:
    """Equal slots in one buffer that are used in turn; ``at(i)`` is the address of slot i modulo ``count``."""

    ptr: int
    nbytes: int
    stride: int
    count: int

    def at(self, turn: int) -> int:
        return self.ptr + turn % self.count * self.stride


@contextlib.contextmanager
def buffer(nbytes: int, device: Device) -> Iterator[Buffer]:
    """cudaMalloc on ``device``; freed on leaving. Raises OutOfMemory with what was asked for and what is free."""
    raise NotImplementedError


@contextlib.contextmanager
def pinned(nbytes: int, node: int | None = None) -> Iterator[HostBuffer]:
    """cudaHostAlloc, mapped and portable, every page touched; with ``node`` the pages lie on that NUMA node.

    Raises OutOfMemory where it fails and Unavailable where the pages came to lie on another node.
    """
    raise NotImplementedError


@contextlib.contextmanager
def pageable(nbytes: int) -> Iterator[HostBuffer]:
    """Ordinary host memory, every page touched."""
    raise NotImplementedError


@contextlib.contextmanager
def pool(nbytes: int, device: Device, l2_nbytes: int | None = None, most_nbytes: int | None = None) -> Iterator[Pool]:
    """Slots of ``nbytes`` on ``device`` that together cover more than 2 x L2 and are two at least."""
    raise NotImplementedError


@contextlib.contextmanager
def host_pool(
    nbytes: int, l2_nbytes: int, pin: bool = True, node: int | None = None
) -> Iterator[tuple[Pool, HostBuffer]]:
    """The same in host memory, pinned or pageable; yields the pool and the buffer it lies in."""
    raise NotImplementedError


@contextlib.contextmanager
def stream(device: Device) -> Iterator[Any]:
    """A non-blocking cupy.cuda.Stream of ``device``, drained and destroyed on leaving; ``.ptr`` is its handle."""
    raise NotImplementedError
