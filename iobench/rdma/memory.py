"""The memory of one side: host memory on a NUMA node, or a GPU's, registered with the device.

GPU memory is registered by its dma-buf (Linux 5.12, the open kernel modules or driver 510 and later), else by its
address through the nv_peer_mem / nvidia-peermem module. The GPU's path could not be run by its authors: no machine
with a GPU and an RDMA port was at hand.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iobench import hostmem
from iobench.errors import RdmaError, Unavailable
from iobench.mempolicy import Policy
from iobench.rdma.verbs import Verbs
from iobench.units import format_size

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_PAGE = 4096
_GPU_ALIGN = 2 << 20  # a dma-buf begins on a page of the GPU
_DMA_BUF_HANDLE = 1  # CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD (cuda.h)
_PEER_MODULES = ("sys/module/nvidia_peermem", "sys/module/nv_peer_mem", "sys/kernel/mm/memory_peers/nv_mem")


@dataclass
class Memory:
    """Registered memory. ``data`` is a view of it for the CPU, None where the CPU cannot reach it."""

    mr: Any
    address: int
    nbytes: int
    data: NDArray[np.uint8] | None
    how: str
    buffer: hostmem.Buffer | None = None
    device: Any = None  # cupy's array where it is a GPU's
    facts: dict[str, Any] = field(default_factory=dict)

    def put(self, at: int, values: NDArray[np.uint8]) -> None:
        """Write ``values`` to the bytes from ``at`` on."""
        if self.data is not None:
            self.data[at : at + values.size] = values
        else:
            self.device[at : at + values.size].set(values)

    def get(self, at: int, nbytes: int) -> NDArray[np.uint8]:
        """Return a copy of the bytes from ``at`` on."""
        if self.data is not None:
            return self.data[at : at + nbytes].copy()
        copy: NDArray[np.uint8] = self.device[at : at + nbytes].get()
        return copy


@contextlib.contextmanager
def registered(verbs: Verbs, pd: Any, nbytes: int, access: int, kind: str, node: int, gpu: int) -> Iterator[Memory]:
    """Yield ``nbytes`` of memory that the device may read and write; ``node`` -1 leaves the NUMA node open."""
    make = _host(verbs, pd, nbytes, access, node) if kind == "host" else _gpu(verbs, pd, nbytes, access, gpu)
    with make as memory:
        yield memory


@contextlib.contextmanager
def _host(verbs: Verbs, pd: Any, nbytes: int, access: int, node: int) -> Iterator[Memory]:
    policy = Policy((node,)) if node >= 0 else None
    with hostmem.buffer(nbytes, policy=policy) as buffer:
        buffer.data.fill(0)
        with verbs.doing(f"registering {format_size(nbytes)} of memory (ulimit -l sets how much may be locked)"):
            mr = verbs.mr.MR(pd, nbytes, access, address=buffer.address)
        try:
            yield Memory(mr, buffer.address, nbytes, buffer.data, "host memory", buffer)
        finally:
            mr.close()


@contextlib.contextmanager
def _gpu(verbs: Verbs, pd: Any, nbytes: int, access: int, gpu: int) -> Iterator[Memory]:
    try:
        import cupy
    except ImportError as error:
        raise Unavailable(
            f"memory=gpu needs cupy ({error}): pip install 'iobench[cuda12]' or 'iobench[cuda13]'"
        ) from None
    with cupy.cuda.Device(gpu):
        whole = cupy.zeros(nbytes + _GPU_ALIGN + _PAGE, cupy.uint8)  # room for the last page whole
        skip = -int(whole.data.ptr) % _GPU_ALIGN
        array = whole[skip : skip + nbytes]
        cupy.cuda.Device(gpu).synchronize()
        mr, how, address = _register_gpu(verbs, pd, int(array.data.ptr), nbytes, access)
        try:
            yield Memory(mr, address, nbytes, None, how, device=array)
        finally:
            mr.close()


def _register_gpu(verbs: Verbs, pd: Any, address: int, nbytes: int, access: int) -> tuple[Any, str, int]:
    """Register a GPU's memory by dma-buf, else by address; return how, and the address that work requests name.

    pyverbs registers a dma-buf at its offset: its addresses begin at 0. Unavailable with what both ways said.
    """
    refused = []
    try:
        with _dma_buf(address, -(-nbytes // _PAGE) * _PAGE) as handle, verbs.doing("registering a dma-buf"):
            return verbs.mr.DmaBufMR(pd, nbytes, access, dmabuf=handle, offset=0), "GPU memory by dma-buf", 0
    except (RdmaError, Unavailable, AttributeError, TypeError) as error:
        refused.append(f"dma-buf: {error}")
    if not any(Path("/", name).exists() for name in _PEER_MODULES):
        refused.append("nvidia-peermem is not loaded")
    else:
        try:
            with verbs.doing("registering a GPU's address"):
                return verbs.mr.MR(pd, nbytes, access, address=address), "GPU memory by nvidia-peermem", address
        except RdmaError as error:
            refused.append(f"nvidia-peermem: {error}")
    raise Unavailable(f"the device cannot reach GPU memory ({'; '.join(refused)}): modprobe nvidia-peermem")


@contextlib.contextmanager
def _dma_buf(address: int, length: int) -> Iterator[int]:
    """Yield a descriptor of the dma-buf of a GPU's address range (cuMemGetHandleForAddressRange, CUDA 11.7).

    Needed while it is registered only: the kernel keeps what it stands for.
    """
    try:
        call = ctypes.CDLL("libcuda.so.1").cuMemGetHandleForAddressRange
    except (OSError, AttributeError) as error:
        raise Unavailable(f"this driver offers no dma-buf ({error})") from error
    handle = ctypes.c_int(-1)
    code = call(
        ctypes.byref(handle), ctypes.c_uint64(address), ctypes.c_size_t(length), _DMA_BUF_HANDLE, ctypes.c_ulonglong(0)
    )
    if code != 0:
        raise Unavailable(f"cuMemGetHandleForAddressRange answered {code}")
    try:
        yield handle.value
    finally:
        os.close(handle.value)
