"""Latency of one load: a chase of pointers by one thread through memory that a GPU reaches."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from iobench.errors import WrongData
from iobench.units import NS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from iobench.gpu.device import Device
    from iobench.timing.sampler import Sampler, Timed

LINE = 128  # bytes: the cache line of every NVIDIA GPU since Fermi; one node each
RANDOM, STRIDE = "random", "stride"
_MOST_NODES = 1 << 14
_WARM, _LOADS = 32, 256
FOUND_NBYTES = 24  # of one SM: where it stopped, cycles, nanoseconds
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
    """A cycle of pointers from ``ptr`` on that ``device`` follows, one launch per SM; ``found`` is its device memory.

    Each launch goes on where the last one stopped, follows ``warm`` pointers off the clock and then ``loads`` on it.
    """

    ptr: int
    order: NDArray[np.uint64]
    device: Device
    found_ptr: int
    stream: Any
    at: int = 0
    cycles: list[float] = field(default_factory=list)
    by_sm: list[NDArray[Any]] = field(default_factory=list)

    @property
    def warm(self) -> int:
        return min(_WARM, len(self.order) // 4)

    @property
    def loads(self) -> int:
        """No node twice in one launch: its line might lie in the SM's own cache then."""
        return min(_LOADS, len(self.order) - self.warm)

    def link(self, order_ptr: int) -> None:
        """Write the pointers, with the order that lies on the device at ``order_ptr``."""
        import numpy as np

        from iobench.kernels.gpu import function

        arguments = (np.uint64(self.ptr), np.uint64(order_ptr), np.uint64(len(self.order)))
        with self.stream:
            function("transfer", "transfer_link")((32,), (256,), arguments)
        self.stream.synchronize()

    def sample(self) -> float:
        """Return the seconds of ``loads`` loads, the mean over all SMs; WrongData where a chase stopped elsewhere."""
        import numpy as np

        from iobench import gpu

        found = np.zeros((self.device.sm_count, 3), np.uint64)
        ends = self._launch()
        gpu.memcpy(found.ctypes.data, self.found_ptr, found.nbytes, self.stream)
        self.stream.synchronize()
        wrong = int((found[:, 0] != np.array(ends, np.uint64)).sum())
        if wrong:
            raise WrongData(f"the pointer chase: {wrong} of {len(ends)} SMs stopped at a wrong node")
        self.cycles.append(float(found[:, 1].mean()))
        self.by_sm.append(found[:, 2] * NS)
        return float(found[:, 2].mean()) * NS

    def _launch(self) -> list[int]:
        """Launch on every SM in turn and return the addresses at which they must stop."""
        import numpy as np

        from iobench.kernels.gpu import function

        kernel = function("transfer", "transfer_chase")
        sms, nodes, ends = self.device.sm_count, len(self.order), []
        steps = np.uint32(self.warm), np.uint32(self.loads)
        with self.stream:
            for target in range(sms):
                start = self.ptr + int(self.order[self.at])
                self.at = (self.at + self.warm + self.loads) % nodes
                ends.append(self.ptr + int(self.order[self.at]))
                place = np.uint64(self.found_ptr + FOUND_NBYTES * target)
                kernel((sms,), (1,), (np.uint64(start), *steps, np.uint32(target), place))
        return ends


def measure(sampler: Sampler, ptr: int, nbytes: int, pattern: str, device: Device) -> tuple[Timed, dict[str, Any]]:
    """Chase through ``nbytes`` at ``ptr``, which ``device`` can reach; return seconds per load, and the evidence.

    Raises WrongData where a launch stopped at a wrong node.
    """
    import numpy as np

    from iobench import gpu

    seed = sampler.launch * _PRIME + nbytes
    order = offsets(nbytes, pattern, seed)
    with contextlib.ExitStack() as stack:
        stack.enter_context(gpu.using(device))
        nodes = stack.enter_context(gpu.buffer(order.nbytes, device))
        ends = stack.enter_context(gpu.buffer(FOUND_NBYTES * device.sm_count, device))
        chase = Chase(ptr, order, device, ends.ptr, stack.enter_context(gpu.stream(device)))
        gpu.memcpy(nodes.ptr, order.ctypes.data, order.nbytes, chase.stream)
        chase.link(nodes.ptr)
        timed = sampler.collect(lambda count: [[chase.sample() for _ in range(count)]], ops=chase.loads)
    seconds = float(np.median(timed.seconds)) / chase.loads
    sms = np.median(chase.by_sm, axis=0) / chase.loads
    return timed, {
        "pattern": pattern,
        "nodes_in_cycle": len(order),
        "line_nbytes": LINE,
        "loads_per_sm_and_sample": chase.loads,
        "seed": seed,
        "cycles_per_load": float(np.median(chase.cycles)) / chase.loads,
        "sm_hz": round(float(np.median(chase.cycles)) / chase.loads / seconds),
        "seconds_by_sm": {"min": float(sms.min()), "median": float(np.median(sms)), "max": float(sms.max())},
    }
