"""A stream kernel over a buffer: cut into slices, filled, timed and checked by a team of threads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from iobench.errors import Unavailable, WrongData
from iobench.kernels import stream
from iobench.kernels.ops import LANES, LINE
from iobench.kernels.repeating import Repeated
from iobench.kernels.team import Team

Driver = Callable[..., None]
# Arrays that start at the same offset in a page make loads wait for unrelated stores ("4K aliasing").
_STAGGER = 17 * LINE


@dataclass(frozen=True)
class Part:
    """One thread's arrays, and the index that their first element has among all threads' elements."""

    target: NDArray[np.float64]
    a: NDArray[np.float64]
    b: NDArray[np.float64]
    first: int


@dataclass
class Streaming(Repeated):
    """One kernel with plain or non-temporal stores; ``data`` holds all its arrays."""

    kernel: str
    nt: bool
    parts: list[Part]
    team: Team
    repeats: int = 1
    _barrier: NDArray[np.int64] = field(default_factory=lambda: np.zeros(2 * LANES, np.int64))

    @classmethod
    def over(cls, data: NDArray[np.uint8], kernel: str, nt: bool, nbytes: int, team: Team) -> Streaming:
        """Cut ``data`` (at least ``room(nbytes, threads)`` bytes) into arrays of ``nbytes`` together.

        Raises ValueError for data that no line starts with: a non-temporal store there ends the process.
        """
        if data.ctypes.data % LINE:
            raise ValueError(f"data must be aligned to {LINE} bytes")
        return cls(kernel, nt, _parts(data, kernel, nbytes, len(team.cpus)), team)

    @property
    def moved(self) -> int:
        """Bytes that one pass reads and writes in all threads: each array once."""
        return sum(part.target.nbytes for part in self.parts) * stream.ARRAYS[self.kernel]

    @property
    def stored(self) -> int:
        """Bytes that one pass stores."""
        return 0 if self.kernel == "read" else sum(part.target.nbytes for part in self.parts)

    @property
    def bus_nbytes(self) -> int:
        """Bytes on the bus if each plainly stored line is fetched first (write-allocate)."""
        return self.moved + (0 if self.nt else self.stored)

    def fill(self) -> None:
        """Let every thread write its slices first, so that they lie on its node; targets get poison."""
        self.team.run(lambda thread: _fill(self.parts[thread]))

    def settle(self, driver: Driver | None = None) -> None:
        """Choose how often a sample repeats the pass; ``driver`` as for ``take``."""
        self.fill_sample(lambda count: self.take(count, driver))

    def take(self, count: int, driver: Driver | None = None) -> NDArray[np.float64]:
        """Return ``count`` samples in seconds: from the first thread's start to the last one's end.

        Raises WrongData where ``read`` found a wrong sum. ``driver`` replaces ``stream.drive``.
        """
        drive, threads = driver or stream.drive, len(self.parts)
        clock = np.zeros((2, threads, count), np.int64)
        sums = np.zeros((threads, count))
        self._barrier[:] = 0
        code, place = stream.CODES[self.kernel], np.uint64(self._barrier.ctypes.data)

        def job(thread: int) -> None:
            part = self.parts[thread]
            arrays = (part.target, part.a, part.b)
            out = (clock[0, thread], clock[1, thread], sums[thread])
            drive(code, int(self.nt), *arrays, stream.SCALAR, self.repeats, place, threads, *out)

        self.team.run(job)
        if self.kernel == "read":
            self._check_sums(sums)
        return np.asarray((clock[1].max(axis=0) - clock[0].min(axis=0)) * 1e-9)

    def check(self) -> None:
        """Compare every element of every array with what it must be; WrongData names the first wrong one."""
        code = stream.CODES[self.kernel]
        found = self.team.run(lambda thread: _first_wrong(code, self.parts[thread]))
        for thread, (part, wrong) in enumerate(zip(self.parts, found, strict=True)):
            if wrong >= 0:
                raise WrongData(
                    f"{self.kernel} in thread {thread} of {len(self.parts)}: element {part.first + wrong} is "
                    f"{part.target[wrong]!r}, not {stream.expected(code, part.first + wrong, stream.SCALAR)!r}"
                )

    def _check_sums(self, sums: NDArray[np.float64]) -> None:
        for thread, part in enumerate(self.parts):
            want = float(stream.total(part.first, part.target.size) * self.repeats)
            wrong = sums[thread][sums[thread] != want]
            if len(wrong):
                raise WrongData(f"read in thread {thread} of {len(self.parts)}: sum is {wrong[0]!r}, not {want!r}")


def room(nbytes: int, threads: int) -> int:
    """Return the bytes of buffer that any kernel's arrays of ``nbytes`` together need."""
    return _share(nbytes, threads) * threads


def _share(nbytes: int, threads: int) -> int:
    """Return one thread's bytes of the buffer, the same for every kernel, so that its pages stay its own."""
    return -(-nbytes // threads // LINE) * LINE + max(stream.ARRAYS.values()) * _STAGGER


def compile_all() -> None:
    """Compile or load every kernel now, so that no sample does."""
    data = np.zeros(room(3 * LINE, 1) + LINE, np.uint8)
    skip = -int(data.ctypes.data) % LINE
    (part,) = _parts(data[skip:], "add", 3 * LINE, 1)
    barrier = np.zeros(LANES, np.int64)
    _fill(part)
    ticks, sums = np.zeros(1, np.int64), np.zeros(1)
    place = np.uint64(barrier.ctypes.data)
    arrays = (part.target, part.a, part.b)
    stream.drive(stream.ADD, 0, *arrays, stream.SCALAR, 1, place, 1, ticks, ticks.copy(), sums)
    _first_wrong(stream.ADD, part)
    stream.expected(stream.ADD, 0, stream.SCALAR)


def _fill(part: Part) -> None:
    stream.fill(part.target, part.a, part.b, part.first)


def _first_wrong(code: int, part: Part) -> int:
    return int(stream.first_wrong(code, part.target, part.a, part.b, stream.SCALAR, part.first))


def _parts(data: NDArray[np.uint8], kernel: str, nbytes: int, threads: int) -> list[Part]:
    arrays = stream.ARRAYS[kernel]
    each = nbytes // (arrays * threads) // LINE * LANES  # elements in one thread's slice of one array
    if each == 0:
        raise Unavailable(f"{nbytes} bytes are less than a line for each of {threads} threads: ask for more")
    share, stride = _share(nbytes, threads), each * 8 + _STAGGER
    parts = []
    for thread in range(threads):
        own = data[thread * share : (thread + 1) * share]
        slices = [own[k * stride : k * stride + each * 8].view(np.float64) for k in range(arrays)]
        parts.append(_part(kernel, slices, thread * each))
    return parts


def _part(kernel: str, slices: list[NDArray[np.float64]], first: int) -> Part:
    empty = slices[0][:0]
    # read's only array is source and target in one: it is filled with the pattern, not with poison
    source = slices[0] if kernel == "read" else empty
    target, a, b = [*slices, source, empty][:3]
    return Part(target, a, b, first)
