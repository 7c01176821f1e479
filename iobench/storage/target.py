"""Where weights go: the host's memory, nowhere (bytes are only summed), or a GPU (storage/ongpu.py).

A target gives lanes. Each lane belongs to one thread and owns a few slots of host memory; the thread reads into a
slot, gives its bytes to the lane, and waits for a slot before it fills it again. On the host a give is finished when
it returns; on a GPU it is a copy on the lane's own stream. Nothing else of a load knows which one it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from iobench import hostmem
from iobench.storage import verify
from iobench.storage.plan import Area

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Lane(Protocol):
    """One thread's slots and its way to the target."""

    @property
    def slots(self) -> Sequence[NDArray[np.uint8]]: ...

    def wait(self, slot: int) -> None:
        """Return when what was given from this slot has left it."""

    def give(self, slot: int, head: int, area: Area) -> None:
        """Begin to move an area that was read to byte ``head`` of the slot to its place."""

    def put(self, source: NDArray[np.uint8], start: int) -> None:
        """Move bytes that lie elsewhere (a mapped file) to ``start``; they may go when it returns."""

    def drain(self) -> None:
        """Return when all that was given has arrived."""


class Target(Protocol):
    """Memory for a plan, its lanes, and the sums of what lies in it."""

    @property
    def name(self) -> str: ...
    @property
    def nbytes(self) -> int: ...

    def lanes(self, count: int, depth: int, nbytes: int) -> contextlib.AbstractContextManager[Sequence[Lane]]:
        """Yield ``count`` lanes with ``depth`` slots of ``nbytes`` each."""

    def poison(self) -> None:
        """Overwrite all, so that bytes left from the load before can't pass for new ones."""

    def sums(self, start: int, nbytes: int) -> NDArray[np.uint64]:
        """Return the sums (storage/verify.py) of the bytes from ``start`` on."""


class HostLane:
    """Slots beside the destination; a give is a copy by this thread."""

    def __init__(self, slots: Sequence[NDArray[np.uint8]], data: NDArray[np.uint8]) -> None:
        self.slots, self._data = slots, data

    def wait(self, slot: int) -> None:
        del slot

    def give(self, slot: int, head: int, area: Area) -> None:
        self._data[area.start : area.start + area.nbytes].reshape(area.rows, area.width)[:] = rows(
            self.slots[slot], head, area
        )

    def put(self, source: NDArray[np.uint8], start: int) -> None:
        self._data[start : start + source.size] = source

    def drain(self) -> None:
        pass


class Host:
    """Private memory in huge pages, every page touched."""

    name = "host"

    def __init__(self, memory: hostmem.Buffer) -> None:
        self.memory = memory
        self.nbytes = memory.data.size

    @contextlib.contextmanager
    def lanes(self, count: int, depth: int, nbytes: int) -> Iterator[Sequence[Lane]]:
        with slots(count, depth, nbytes) as found:
            yield [HostLane(mine, self.memory.data) for mine in found]

    def poison(self) -> None:
        verify.poison(self.memory.data)

    def sums(self, start: int, nbytes: int) -> NDArray[np.uint64]:
        return verify.sums(self.memory.data[start : start + nbytes])


@contextlib.contextmanager
def host(nbytes: int) -> Iterator[Host]:
    """Yield ``nbytes`` of host memory as a target."""
    with hostmem.buffer(nbytes, hostmem.HUGE) as memory:
        verify.poison(memory.data)  # touches every page, so that no load pays for it
        yield Host(memory)


class NowhereLane:
    """Drops what it is given, or sums it first."""

    def __init__(self, slots: Sequence[NDArray[np.uint8]], into: NDArray[np.uint64] | None) -> None:
        self.slots, self._into = slots, into

    def wait(self, slot: int) -> None:
        del slot

    def give(self, slot: int, head: int, area: Area) -> None:
        if self._into is not None:
            self.put(rows(self.slots[slot], head, area).reshape(-1), area.start)

    def put(self, source: NDArray[np.uint8], start: int) -> None:
        if self._into is not None:
            if start % verify.UNIT:
                raise ValueError(f"byte {start} begins no unit of the sums")
            found, first = verify.sums(source), start // verify.UNIT
            self._into[first : first + len(found)] = found

    def drain(self) -> None:
        pass


class Nowhere:
    """Keeps no byte: what reading alone takes, and with ``summing`` the proof of it in 1/64 of the memory.

    Sums are per unit of the destination, so only loads whose parts begin at a unit can be summed (whole files).
    """

    name = "nowhere"

    def __init__(self, nbytes: int, summing: bool = False) -> None:
        import numpy as np

        self.nbytes = nbytes
        self._sums = np.zeros(-(-nbytes // verify.UNIT), np.uint64) if summing else None

    @contextlib.contextmanager
    def lanes(self, count: int, depth: int, nbytes: int) -> Iterator[Sequence[Lane]]:
        with slots(count, depth, nbytes) as found:
            yield [NowhereLane(mine, self._sums) for mine in found]

    def poison(self) -> None:
        if self._sums is not None:
            self._sums[:] = 0

    def sums(self, start: int, nbytes: int) -> NDArray[np.uint64]:
        if self._sums is None:
            raise ValueError("nothing was summed")
        return self._sums[start // verify.UNIT : -(-(start + nbytes) // verify.UNIT)]


def rows(slot: NDArray[np.uint8], head: int, area: Area) -> NDArray[np.uint8]:
    """Return the wanted bytes of a slot as ``[rows, width]``, a view."""
    import numpy as np

    first = slot[head : head + area.span]
    strides = (area.pitch or area.width, 1)
    return np.lib.stride_tricks.as_strided(first, (area.rows, area.width), strides, writeable=False)


@contextlib.contextmanager
def slots(count: int, depth: int, nbytes: int) -> Iterator[list[list[NDArray[np.uint8]]]]:
    """Yield ``depth`` slots of ``nbytes`` for each of ``count`` lanes, in one touched area of huge pages."""
    with hostmem.buffer(count * depth * nbytes, hostmem.HUGE) as memory:
        memory.data.fill(0)
        yield carve(memory.data, count, depth, nbytes)


def carve(data: NDArray[np.uint8], count: int, depth: int, nbytes: int) -> list[list[NDArray[np.uint8]]]:
    """Return views of one area: [lane][slot]."""
    starts = range(0, count * depth * nbytes, nbytes)
    views = [data[start : start + nbytes] for start in starts]
    return [views[lane * depth : (lane + 1) * depth] for lane in range(count)]
