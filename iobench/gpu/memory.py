"""Buffers on the GPU and on the host, streams, and pools of rotating buffers larger than the caches."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from iobench.errors import Unavailable
from iobench.gpu.device import Device, using
from iobench.gpu.runtime import OutOfMemory, require, room_for, runtime
from iobench.units import format_size

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_STRIDE = 512  # slots start on a multiple of what cudaMalloc itself aligns to
_CACHES = 2  # a pool covers more than this many L2 caches
_PORTABLE_MAPPED = 1 | 2  # cudaHostAllocPortable | cudaHostAllocMapped


@dataclass(frozen=True)
class Buffer:
    """Device memory: address, bytes, and the CUDA index of its GPU."""

    ptr: int
    nbytes: int
    index: int


@dataclass(frozen=True)
class HostBuffer:
    """Host memory that a GPU can copy from: ``data`` (uint8) looks into it.

    ``pinned`` memory is mapped as well: ``ptr`` is valid inside a kernel. ``nodes`` counts sampled pages by NUMA
    node, None where unknown.
    """

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

    @property
    def span(self) -> int:
        """The bytes from the first slot's start to the last one's end."""
        return (self.count - 1) * self.stride + self.nbytes


def slots(nbytes: int, l2_nbytes: int, most_nbytes: int | None = None) -> tuple[int, int]:
    """Return count and stride of slots of ``nbytes`` that together cover more than 2 x L2, two at least.

    One slot where ``most_nbytes`` leaves no room for two: a buffer that large is rotation enough.
    """
    stride = -(-max(nbytes, 1) // _STRIDE) * _STRIDE
    count = max(2, _CACHES * l2_nbytes // stride + 1)
    if most_nbytes is not None:
        count = max(1, min(count, most_nbytes // stride))
    return count, stride


@contextlib.contextmanager
def buffer(nbytes: int, device: Device) -> Iterator[Buffer]:
    """cudaMalloc on ``device``; freed on leaving. Raises OutOfMemory with what was asked for and what is free."""
    api = runtime()
    with using(device):
        free, _ = api.memGetInfo()
        with room_for(nbytes, device.node or f"CUDA device {device.index}", free):
            ptr = int(api.malloc(max(nbytes, 1)))
    with freed(lambda: _free(api, ptr, device)):
        yield Buffer(ptr, nbytes, device.index)


@contextlib.contextmanager
def pinned(nbytes: int, node: int | None = None) -> Iterator[HostBuffer]:
    """cudaHostAlloc, mapped and portable, every page touched; with ``node`` the pages lie on that NUMA node.

    Raises OutOfMemory where it fails and Unavailable where the pages came to lie on another node.
    """
    from iobench.gpu.numa import allocating_on

    api = runtime()
    with allocating_on(node), room_for(nbytes, "pinned host memory"):
        ptr = int(api.hostAlloc(max(nbytes, 1), _PORTABLE_MAPPED))
    with freed(lambda: api.freeHost(ptr)):
        data = view(ptr, nbytes)
        with allocating_on(node):
            data[:] = 0
        yield _host_buffer(ptr, data, True, node)


@contextlib.contextmanager
def pageable(nbytes: int, node: int | None = None) -> Iterator[HostBuffer]:
    """Ordinary host memory, every page touched, whatever pages the system gives.

    Raises OutOfMemory where it fails and Unavailable where the pages came to lie on another node.
    """
    import numpy as np

    from iobench.gpu.numa import allocating_on

    try:
        area = mmap.mmap(-1, max(nbytes, 1))
    except OSError as error:
        raise OutOfMemory(f"host memory has no room for {format_size(nbytes)}") from error
    data = np.frombuffer(area, np.uint8)[:nbytes]
    with allocating_on(node):
        data[:] = 0
    yield _host_buffer(int(data.ctypes.data), data, False, node)
    # Closing the map while an array still looks into it is refused; it goes when the last one does.
    del data
    with contextlib.suppress(BufferError):
        area.close()


@contextlib.contextmanager
def pool(nbytes: int, device: Device, l2_nbytes: int | None = None, most_nbytes: int | None = None) -> Iterator[Pool]:
    """Slots of ``nbytes`` on ``device`` that together cover more than 2 x L2 and are two at least.

    ``l2_nbytes`` is the device's own unless said; ``most_nbytes`` bounds the whole pool.
    """
    count, stride = slots(nbytes, device.l2_nbytes if l2_nbytes is None else l2_nbytes, most_nbytes)
    with buffer(count * stride, device) as area:
        yield Pool(area.ptr, nbytes, stride, count)


@contextlib.contextmanager
def host_pool(
    nbytes: int, l2_nbytes: int, pin: bool = True, node: int | None = None, most_nbytes: int | None = None
) -> Iterator[tuple[Pool, HostBuffer]]:
    """The same in host memory, pinned or pageable; yields the pool and the buffer it lies in."""
    count, stride = slots(nbytes, l2_nbytes, most_nbytes)
    with (pinned if pin else pageable)(count * stride, node) as area:
        yield Pool(area.ptr, nbytes, stride, count), area


@contextlib.contextmanager
def stream(device: Device) -> Iterator[Any]:
    """A non-blocking cupy.cuda.Stream of ``device``, drained on leaving; ``.ptr`` is its handle."""
    cupy = require(device.index + 1)
    with using(device):
        made = cupy.cuda.Stream(non_blocking=True)
    with freed(made.synchronize):
        yield made


def view(ptr: int, nbytes: int) -> NDArray[np.uint8]:
    """Return host memory that CUDA allocated as an array; it lives no longer than the memory."""
    import ctypes

    import numpy as np

    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(ptr))


@contextlib.contextmanager
def freed(free: Callable[[], Any]) -> Iterator[None]:
    """Free on leaving; after an error the error counts, not what a broken context says to freeing."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(runtime().CUDARuntimeError):
            free()
        raise
    free()


def _free(api: Any, ptr: int, device: Device) -> None:
    with using(device):
        api.free(ptr)


def _host_buffer(ptr: int, data: NDArray[np.uint8], pin: bool, node: int | None) -> HostBuffer:
    from iobench import pageplaces

    places = pageplaces.nodes(data) if data.nbytes else None
    if node is not None and places is not None and set(places) != {node}:
        found = ", ".join(map(str, sorted(places)))
        raise Unavailable(f"host memory was asked for on NUMA node {node} and came to lie on node {found}")
    return HostBuffer(ptr, data.nbytes, data, pin, dict(places) if places is not None else None)
