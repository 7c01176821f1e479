"""Latency of one load: a chase of pointers by one thread through memory that a GPU reaches."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from iobench.errors import WrongData

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from iobench.gpu.device import Device
    from iobench.timing.sampler import Sampler, Timed

LINE = 128  # bytes: the cache line of every NVIDIA GPU since Fermi; one node each
RANDOM, STRIDE = "random", "stride"
_MOST_NODES = 1 << 14
_MOST_LOADS = 2048
_SM_STEP = 53  # from one launch's SM to the next one's, at least
_KEPT = 4096  # launches whose ends are kept
_PRIME = 1_000_003


def offsets(nbytes: int, pattern: str, seed: int) -> NDArray[np.uint64]:
    """Return where the nodes lie, in the order of the chase: one per line at most, each visited once.

    "random": lines drawn from all over ``nbytes``, at most 16,384 of them; "stride": line after line, as nvbandwidth's
    chase goes.
    """
    import numpy as np

    lines = nbytes // LINE
    if pattern == STRIDE:
        return np.arange(min(lines, _MOST_NODES), dtype=np.uint64) * np.uint64(LINE)
    generator = np.random.default_rng(seed)
    if lines <= 4 * _MOST_NODES:
        chosen = generator.permutation(lines)[:_MOST_NODES]
    else:
        drawn = np.unique(generator.integers(0, lines, 2 * _MOST_NODES))
        chosen = generator.permutation(drawn)[:_MOST_NODES]
    return chosen.astype(np.uint64) * np.uint64(LINE)


@dataclass
class Chase:
    """A cycle of pointers in ``ptr`` .. ``ptr + nbytes`` that ``device`` follows.

    Each turn is one launch of ``loads`` dependent loads on another SM and goes on where the last one stopped.
    """

    ptr: int
    order: NDArray[np.uint64]
    device: Device
    found_ptr: int  # device memory of ``found_nbytes``
    turns: int = 0
    _ends: dict[int, int] = field(default_factory=dict)

    @property
    def loads(self) -> int:
        return min(_MOST_LOADS, len(self.order))

    def link(self, order_ptr: int) -> None:
        """Write the pointers, with the order that lies on the device at ``order_ptr``."""
        import numpy as np

        from iobench import gpu
        from iobench.kernels.gpu import function

        with gpu.using(self.device):
            kernel = function("transfer", "transfer_link")
            kernel((32,), (256,), (np.uint64(self.ptr), np.uint64(order_ptr), np.uint64(len(self.order))))
            gpu.synchronize()

    @property
    def enqueue(self) -> Callable[[int], Any]:
        """Return what launches the next chase."""
        import numpy as np

        from iobench import gpu
        from iobench.kernels.gpu import function

        with gpu.using(self.device):
            kernel = function("transfer", "transfer_chase")
        loads, nodes, sms = self.loads, len(self.order), self.device.sm_count
        step = _coprime(sms)
        addresses = [self.ptr + int(offset) for offset in self.order]

        def enqueue(_: int) -> None:
            turn = self.turns
            self.turns += 1
            start, slot = turn * loads % nodes, turn % _KEPT
            self._ends[slot] = addresses[(start + loads) % nodes]
            target = turn * step % sms
            arguments = (np.uint64(addresses[start]), np.uint32(loads), np.uint32(target))
            kernel((sms,), (1,), (*arguments, np.uint64(self.found_ptr + 16 * slot)))

        return enqueue

    def verify(self, found: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Return the cycles of the launches still known; WrongData where a chase stopped at a wrong node.

        ``found`` is the device's memory at ``found_ptr``: [launch][where it stopped, cycles].
        """
        import numpy as np

        slots = np.fromiter(self._ends, int)
        right = np.fromiter(self._ends.values(), np.uint64)
        wrong = found[slots, 0] != right
        if wrong.any():
            raise WrongData(f"the pointer chase: {int(wrong.sum())} of {len(right)} launches stopped at a wrong node")
        cycles: NDArray[np.uint64] = found[slots, 1]
        return cycles


def measure(sampler: Sampler, ptr: int, nbytes: int, pattern: str, device: Device) -> tuple[Timed, dict[str, Any]]:
    """Chase through ``nbytes`` at ``ptr``, which ``device`` can reach; return seconds per load, and the evidence.

    Raises WrongData where a launch stopped at a wrong node.
    """
    import numpy as np

    from iobench import gpu
    from iobench.timing import cuda

    seed = sampler.launch * _PRIME + nbytes
    order = offsets(nbytes, pattern, seed)
    found = np.zeros((_KEPT, 2), np.uint64)
    with contextlib.ExitStack() as stack:
        stack.enter_context(gpu.using(device))
        nodes, ends = (stack.enter_context(gpu.buffer(array.nbytes, device)) for array in (order, found))
        stream = stack.enter_context(gpu.stream(device))
        chase = Chase(ptr, order, device, ends.ptr)
        gpu.memcpy(nodes.ptr, order.ctypes.data, order.nbytes, stream)
        stream.synchronize()
        chase.link(nodes.ptr)
        timed = cuda.events(sampler, chase.enqueue, stream, ops=1)
        gpu.memcpy(found.ctypes.data, ends.ptr, found.nbytes, stream)
        stream.synchronize()
    cycles = float(np.median(chase.verify(found))) / chase.loads
    timed.ops *= chase.loads
    seconds = float(np.median(timed.seconds)) / timed.ops
    return timed, {
        "pattern": pattern,
        "nodes_in_cycle": len(order),
        "line_nbytes": LINE,
        "loads_per_sample": chase.loads,
        "seed": seed,
        "cycles_per_load": cycles,
        "sm_hz": round(cycles / seconds),
    }


def _coprime(sms: int) -> int:
    """Return a step with which every SM has its turn before one has its second."""
    return next(step for step in range(_SM_STEP, _SM_STEP + sms + 1) if math.gcd(step, sms) == 1)
