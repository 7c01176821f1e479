"""A GPU's memory as a target: pinned slots on huge pages, a stream per lane, sums by a kernel."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from iobench import gpu, hostmem
from iobench.errors import Unavailable
from iobench.gpu.device import machine
from iobench.gpu.memory import freed
from iobench.gpu.runtime import require, room_for, runtime
from iobench.mempolicy import Policy
from iobench.storage.plan import Area
from iobench.storage.target import Lane, carve
from iobench.storage.verify import POISON, UNIT

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from iobench.gpu import Buffer, Device

_PORTABLE = 1  # cudaHostRegisterPortable
_HOST_TO_DEVICE = 1
_BLOCKS_PER_SM, _THREADS = 8, 256


class GpuLane:
    """One thread's pinned slots, its stream, and an event per slot that tells when a copy out of it is done."""

    def __init__(self, slots: Sequence[NDArray[np.uint8]], area: Buffer, device: Device, stream: Any) -> None:
        cupy = require(device.index + 1)
        self.slots, self._area, self._device, self._stream = slots, area, device, stream
        self._addresses = [int(slot.ctypes.data) for slot in slots]
        with gpu.using(device):
            self._events = [cupy.cuda.Event(block=True, disable_timing=True) for _ in slots]
        self._api, self._thread = runtime(), 0

    def wait(self, slot: int) -> None:
        self._here()
        self._events[slot].synchronize()

    def give(self, slot: int, head: int, area: Area) -> None:
        self._here()
        to, source = self._area.ptr + area.start, self._addresses[slot] + head
        if area.rows == 1:
            gpu.memcpy(to, source, area.width, self._stream)
        else:
            self._api.memcpy2DAsync(
                to, area.width, source, area.pitch, area.width, area.rows, _HOST_TO_DEVICE, self._stream.ptr
            )
        self._events[slot].record(self._stream)

    def put(self, source: NDArray[np.uint8], start: int) -> None:
        self._here()
        gpu.memcpy(self._area.ptr + start, int(source.ctypes.data), source.size, self._stream)
        self._stream.synchronize()

    def drain(self) -> None:
        self._here()
        self._stream.synchronize()

    def _here(self) -> None:
        """Make the device current in a thread that sees this lane for the first time."""
        thread = threading.get_ident()
        if thread != self._thread:
            self._api.setDevice(self._device.index)
            self._thread = thread


class Gpu:
    """Memory of one GPU."""

    def __init__(self, area: Buffer, device: Device) -> None:
        self._area, self.device = area, device
        self.name = device.node or f"CUDA device {device.index}"
        self.nbytes = area.nbytes

    @contextlib.contextmanager
    def lanes(self, count: int, depth: int, nbytes: int) -> Iterator[Sequence[Lane]]:
        with contextlib.ExitStack() as stack:
            data = stack.enter_context(pinned(count * depth * nbytes, self.device))
            streams = [stack.enter_context(gpu.stream(self.device)) for _ in range(count)]
            found = zip(carve(data, count, depth, nbytes), streams, strict=True)
            yield [GpuLane(slots, self._area, self.device, stream) for slots, stream in found]

    def poison(self) -> None:
        with gpu.using(self.device):
            runtime().memset(self._area.ptr, POISON, self.nbytes)
            gpu.synchronize()

    def sums(self, start: int, nbytes: int) -> NDArray[np.uint64]:
        return sums(self._area.ptr + start, nbytes, self.device)


@contextlib.contextmanager
def memory(nbytes: int, device: Device) -> Iterator[Gpu]:
    """Yield ``nbytes`` of a GPU as a target; OutOfMemory where they are not to be had."""
    with gpu.buffer(nbytes, device) as area:
        sums(area.ptr, min(nbytes, UNIT), device)  # compiled now: NVRTC's memory is none of a load's
        yield Gpu(area, device)


@contextlib.contextmanager
def pinned(nbytes: int, device: Device) -> Iterator[NDArray[np.uint8]]:
    """Yield pinned memory on huge pages of the GPU's own NUMA node where that is known and may be asked for.

    cudaHostAlloc gives no choice of pages, and the rate of O_DIRECT follows how contiguous they are.
    """
    api = runtime()
    with _near(nbytes, device) as area, gpu.using(device):
        area.data.fill(0)
        with room_for(nbytes, "pinned host memory"):
            api.hostRegister(area.address, nbytes, _PORTABLE)
        with freed(lambda: api.hostUnregister(area.address)):
            yield area.data


@contextlib.contextmanager
def _near(nbytes: int, device: Device) -> Iterator[hostmem.Buffer]:
    """Yield memory of the GPU's node; of any where there is one node only, or the system refuses the wish."""
    several = len(machine().of("mem")) > 1
    policy = Policy((int(device.mem.partition(":")[2]),)) if device.mem and several else None
    with contextlib.ExitStack() as stack:
        try:
            area = stack.enter_context(hostmem.buffer(nbytes, hostmem.HUGE, policy=policy))
        except Unavailable:
            if policy is None:
                raise
            area = stack.enter_context(hostmem.buffer(nbytes, hostmem.HUGE))
        yield area


def sums(ptr: int, nbytes: int, device: Device) -> NDArray[np.uint64]:
    """Return the sum of each 512 bytes (storage/verify.py) of GPU memory, by a kernel that reads every byte."""
    import numpy as np

    from iobench.kernels.gpu import function

    out = np.zeros(-(-nbytes // UNIT), np.uint64)
    cupy = require(device.index + 1)
    with gpu.using(device), gpu.buffer(out.nbytes, device) as area, cupy.cuda.Stream.null:
        gpu.synchronize()
        blocks = max(1, min(device.sm_count * _BLOCKS_PER_SM, -(-len(out) * 32 // _THREADS)))
        arguments = (np.uint64(ptr), np.uint64(nbytes), np.uint64(area.ptr))
        function("sums", "sums_of_units")((blocks,), (_THREADS,), arguments)
        runtime().memcpy(out.ctypes.data, area.ptr, out.nbytes, runtime().memcpyDefault)
    return out
