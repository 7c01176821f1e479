"""Copies between a GPU and pinned memory that is bound to a NUMA node, alone or on several GPUs at once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from iobench import hostmem, mempolicy
from iobench.errors import Unavailable
from iobench.gpu import copying, memory
from iobench.gpu.copying import Copy, Memory
from iobench.gpu.device import Device, using
from iobench.gpu.memory import HostBuffer
from iobench.gpu.runtime import room_for, runtime, status
from iobench.mempolicy import Placed, Policy
from iobench.record import Leg

if TYPE_CHECKING:
    from iobench.gpu.watch import Watch
    from iobench.timing.sampler import Sampler, Timed

_PORTABLE_MAPPED = 1 | 2  # cudaHostRegisterPortable | cudaHostRegisterMapped
_NOT_SUPPORTED = 801  # cudaErrorNotSupported


@dataclass(frozen=True)
class Lane:
    """One GPU's copy, and where its host memory lies."""

    device: Device
    copy: Copy
    placed: Placed

    def legs(self, op: str, watch: Watch) -> list[Leg]:
        """Return the way of the bytes; none where an end is unknown to the topology."""
        if not self.placed.known or self.device.vram is None:
            return []
        host = f"mem:{max(self.placed.pages, key=self.placed.pages.__getitem__)}"
        ends = (host, self.device.vram) if op == "h2d" else (self.device.vram, host)
        return [Leg(*ends, moved=self.copy.layout.nbytes, bytes_per_s=watch.link_bytes_per_s(self.device))]


@contextlib.contextmanager
def registered(nbytes: int, node: int | None, device: Device) -> Iterator[tuple[HostBuffer, Placed]]:
    """Map memory, bind it to ``node`` (None: wherever the first touch puts it), touch and pin it.

    It is pinned with ``device`` current, so that no other GPU gets a context for it. The pages are looked at once they
    are pinned: pinning moves them out of memory that may be unplugged (CXL). Raises Unavailable where the node can't
    be had or CUDA pins no memory of others, and OutOfMemory where there is no room to pin it.
    """
    api = runtime()
    policy = None if node is None else Policy((node,))
    with hostmem.buffer(max(nbytes, 1), hostmem.BASE, policy=policy) as area:
        area.data[:] = 0
        with using(device), room_for(nbytes, "pinned host memory"), _supported():
            api.hostRegister(area.address, area.data.nbytes, _PORTABLE_MAPPED)
        with memory.freed(lambda: _unregister(api, area.address, device)):
            placed = mempolicy.placed(area.data)
            yield HostBuffer(area.address, nbytes, area.data, True, dict(placed.pages) or None), placed


@contextlib.contextmanager
def _supported() -> Iterator[None]:
    """Say so where CUDA pins only what it allocates itself (confidential computing)."""
    try:
        yield
    except runtime().CUDARuntimeError as error:
        if status(error) != _NOT_SUPPORTED:
            raise
        raise Unavailable("CUDA pins no memory but its own here (cudaHostRegister is not supported)") from error


def _unregister(api: Any, address: int, device: Device) -> None:
    with using(device):
        api.hostUnregister(address)


@contextlib.contextmanager
def lane(device: Device, op: str, nbytes: int, node: int | None) -> Iterator[Lane]:
    """Yield a copy "h2d" or "d2h" of ``nbytes`` with buffers and a stream of its own, its pattern written."""
    layout = copying.layout(nbytes, device.l2_nbytes)
    with (
        registered(layout.region_nbytes, node, device) as (host, placed),
        memory.buffer(layout.region_nbytes, device) as there,
        memory.stream(device) as stream,
    ):
        ends: tuple[Memory, Memory] = (host, there) if op == "h2d" else (there, host)
        copy = Copy(src=ends[0], dst=ends[1], layout=layout, device=device, engine="ce", stream=stream)
        copy.prepare()
        yield Lane(device, copy, placed)


def timed(sampler: Sampler, lanes: Sequence[Lane], small: bool) -> Timed:
    """Time copies by the host's calls where they are ``small``, else by events: of one GPU, or of several at once.

    A small copy by several GPUs at once lasts from the first call until the last one has arrived.
    """
    from iobench.timing import cuda, cuda_group

    first = lanes[0].copy
    if small:
        return cuda.host_call(sampler, together(lanes))
    if len(lanes) > 1:
        both: list[tuple[Any, Any]] = [(lane.copy.enqueue, lane.copy.stream) for lane in lanes]
        return cuda_group.events_together(sampler, both)
    return cuda.events(sampler, first.enqueue, first.stream)


def together(lanes: Sequence[Lane]) -> Callable[[], Any]:
    """Return what copies one message on every GPU and returns once all have arrived."""
    if len(lanes) == 1:
        return lanes[0].copy.call()
    starts, waits = [lane.copy.enqueue for lane in lanes], [lane.copy.stream.synchronize for lane in lanes]

    def call() -> None:
        for start in starts:
            start(0)
        for wait in waits:
            wait()

    return call
