"""KV blocks from far memory on to a GPU: pinned where they lie, copied block by block in the order of a table."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from iobench.cxl.memory import Memory, Proof
from iobench.errors import Unavailable, WrongData

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from iobench.gpu import Buffer, Device

_PORTABLE_MAPPED = 1 | 2  # cudaHostRegisterPortable | cudaHostRegisterMapped


@dataclass
class Loading:
    """Blocks of ``block`` bytes from the pool ``data`` to ``target`` in the order of ``table`` (uint64)."""

    data: NDArray[np.uint8]
    target: Buffer
    table: NDArray[np.uint64]
    block: int
    device: Device
    stream: Any

    @property
    def moved(self) -> int:
        """Bytes that one pass copies."""
        return int(self.table.size) * self.block

    def take(self, count: int) -> list[float]:
        """Return ``count`` samples in seconds, each from the host's first call to the last copy's completion."""
        from iobench import gpu

        base, target, block, stream = int(self.data.ctypes.data), self.target.ptr, self.block, self.stream
        pairs = [(target + place * block, base + int(number) * block) for place, number in enumerate(self.table)]
        memcpy, now, out = gpu.memcpy, time.perf_counter_ns, []
        with gpu.using(self.device):
            for _ in range(count):
                start = now()
                for dst, src in pairs:
                    memcpy(dst, src, block, stream)
                stream.synchronize()
                out.append((now() - start) * 1e-9)
        return out

    def check(self) -> None:
        """Copy everything back and compare every word; WrongData where one differs."""
        import numpy as np

        from iobench import gpu
        from iobench.kernels import gather

        found = np.zeros(self.moved, np.uint8)
        with gpu.using(self.device):
            gpu.memcpy(int(found.ctypes.data), self.target.ptr, self.moved, self.stream)
            self.stream.synchronize()
        wrong = int(gather.first_wrong(found.view(np.uint64), self.table, self.block // 8))
        if wrong >= 0:
            place = wrong * 8 // self.block
            raise WrongData(f"gather to {self.device.node}: block {int(self.table[place])} differs at word {wrong}")


@contextlib.contextmanager
def loading(memory: Memory, block: int, seed: int, device: Device) -> Iterator[tuple[Loading, Proof]]:
    """Fill and pin ``memory``; yield the gather to ``device`` and the proof of where the pinned pages lie.

    Pages are looked at after pinning: the kernel moves them out of memory that was brought online as movable, as
    daxctl does unless told otherwise. Raises Unavailable where that happened or CUDA refuses the memory.
    """
    import numpy as np

    from iobench import gpu
    from iobench.kernels import gather

    count = memory.data.nbytes // block
    gather.fill(memory.data[: count * block].view(np.uint64), 0)
    table = np.random.default_rng(seed).permutation(count).astype(np.uint64)
    with _pinned(memory), gpu.buffer(count * block, device) as target, gpu.stream(device) as stream:
        proof = memory.prove()
        if not proof.proven:
            raise Unavailable(
                f"pinning moved the pages away ({proof.path}): memory that is online as movable can't be pinned; "
                "daxctl reconfigure-device --mode=system-ram --no-movable makes it stay"
            )
        yield Loading(memory.data, target, table, block, device, stream), proof


@contextlib.contextmanager
def _pinned(memory: Memory) -> Iterator[None]:
    from iobench.gpu.memory import freed
    from iobench.gpu.runtime import runtime

    api, address = runtime(), int(memory.data.ctypes.data)
    try:
        api.hostRegister(address, memory.data.nbytes, _PORTABLE_MAPPED)
    except api.CUDARuntimeError as error:
        raise Unavailable(f"CUDA can't pin {memory.form.label}: {' '.join(str(error).split())[:200]}") from error
    with freed(lambda: api.hostUnregister(address)):
        yield
