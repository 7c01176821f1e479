"""The pointer chase on a GPU: a random single cycle over a working set, walked by one thread."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from iobench.errors import WrongData

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LINE = 128  # bytes: what a GPU's L1 and L2 cache keep tags for
SECTOR = 32  # bytes: what one load fetches of a line
MOST_NODES = 1 << 21  # on 128-byte lines: 256 MiB, several times any L2
SAMPLE_SECONDS = 2e-3
SINGLES = 4096
_BATCH = 16  # loads per turn of the loop in chase.cu
_PILOT_LOADS = 2048
_WARM_NODES = 1 << 13  # up to 1 MiB each launch walks the cycle first: L1 is empty when a kernel starts
_WALK_NODES = 1 << 19  # up to 64 MiB, which an L2 may hold, the cycle is walked once so that it does
_BIN = 20  # cycles


def order(nbytes: int, seed: int) -> NDArray[np.uint32]:
    """Return the lines of the nodes in the order of the cycle.

    Every line of ``nbytes`` is a node where that is at most MOST_NODES; else each of MOST_NODES equal cells
    holds one, on a random line of its own, so that the nodes cover the whole working set.
    """
    import numpy as np

    random = np.random.default_rng(seed)
    lines = max(nbytes // LINE, 2)
    nodes = min(lines, MOST_NODES)
    cell = lines // nodes
    chosen = np.arange(nodes, dtype=np.int64) * cell
    if cell > 1:
        chosen += random.integers(0, cell, nodes)
    random.shuffle(chosen)
    return chosen.astype(np.uint32)


def histogram(cycles: NDArray[np.uint16]) -> list[list[int]]:
    """Return [cycles, count] in bins of 20 cycles."""
    counted = Counter((cycles.astype(int) // _BIN * _BIN).tolist())
    return [[value, count] for value, count in sorted(counted.items())]


class Chase:
    """One cycle in device memory and what its walks read. Make it with its device and stream current."""

    def __init__(self, ptr: int, nbytes: int, load: str, seed: int) -> None:
        import cupy
        import numpy as np

        self._np, self._cupy, self.ptr, self.load = np, cupy, ptr, load
        self.order = order(nbytes, seed)
        self.place = 0  # of the node where the next walk starts
        self.loads = _PILOT_LOADS
        self.sms: set[int] = set()
        self.cycles: list[int] = []
        self.nanoseconds: list[int] = []
        self._out = cupy.zeros(8, dtype=cupy.uint64)
        lines = cupy.asarray(self.order)
        arguments = (np.uint64(ptr), lines, np.uint64(self.nodes), np.uint64(LINE))
        self._kernel("link_nodes")((1024,), (256,), arguments)

    @property
    def nodes(self) -> int:
        return len(self.order)

    @property
    def warm(self) -> int:
        """The loads before the clock in every launch."""
        return self.nodes if self.nodes <= _WARM_NODES else 0

    def settle(self) -> None:
        """Bring the working set into the caches and choose the loads of one sample."""
        if _WARM_NODES < self.nodes <= _WALK_NODES:
            self.walk(self.nodes // _BATCH * _BATCH)
        _, nanoseconds = self.walk(_PILOT_LOADS)
        per_load = max(nanoseconds * 1e-9 / _PILOT_LOADS, 1e-9)
        self.loads = max(int(SAMPLE_SECONDS / per_load) // _BATCH * _BATCH, _PILOT_LOADS)
        self.cycles, self.nanoseconds = [], []

    def take(self, count: int) -> list[float]:
        """Return the seconds of ``count`` walks of ``loads`` loads each."""
        return [self.walk(self.loads)[1] * 1e-9 for _ in range(count)]

    def walk(self, loads: int) -> tuple[int, int]:
        """Return SM cycles and nanoseconds of ``loads`` loads (whole batches); WrongData if it ends elsewhere."""
        np = self._np
        arguments = (np.uint64(self._address(self.place)), np.uint64(self.warm), np.uint64(loads), self._out)
        self._kernel(f"chase_{self.load}")((1,), (1,), arguments)
        cycles, nanoseconds = self._read(self.warm + loads)
        self.cycles.append(cycles)
        self.nanoseconds.append(nanoseconds)
        return cycles, nanoseconds

    def singles(self) -> list[list[int]]:
        """Return the histogram of SINGLES single loads in cycles; each holds a clock reading as well."""
        np, each = self._np, self._cupy.zeros(SINGLES, dtype=self._cupy.uint16)
        arguments = (
            np.uint64(self._address(self.place)), np.uint64(self.warm), np.uint32(SINGLES), self._out, each
        )  # fmt: skip
        self._kernel(f"single_{self.load}")((1,), (1,), arguments)
        self._read(self.warm + SINGLES)
        return histogram(each.get())

    def _read(self, loads: int) -> tuple[int, int]:
        """Fetch what the kernel wrote, prove where it stopped, and start there the next time."""
        end, cycles, nanoseconds, _, sm = (int(value) for value in self._out.get()[:5])
        self.place = (self.place + loads) % self.nodes
        if end != self._address(self.place):
            raise WrongData(f"the chase stopped at address {end:#x}, not at {self._address(self.place):#x}")
        self.sms.add(sm)
        return cycles, nanoseconds

    def _address(self, place: int) -> int:
        return self.ptr + int(self.order[place]) * LINE

    def _kernel(self, name: str) -> Any:
        from iobench.kernels import gpu as kernels

        return kernels.function("chase", name)
