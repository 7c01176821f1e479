"""A pattern that no shifted, repeated or missing byte can match, and the check of every byte on GPU and host.

Word i (64 bits, little-endian) is number i + 1 of splitmix64 started with the seed (Steele, Lea, Flood: Fast
splittable pseudorandom number generators, OOPSLA 2014). The twin on the GPU is kernels/gpu/pattern.cu.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from iobench.errors import WrongData

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_THREADS = 256
_BLOCKS_PER_SM = 8
_CHUNK = 1 << 20  # bytes of host pattern at a time: what a CPU keeps in its cache
_NOWHERE = 2**64 - 1
_MASK = 2**64 - 1


def fill(ptr: int, nbytes: int, seed: int) -> None:
    """Write the pattern with a kernel on the current device (local, mapped host or peer memory) and wait for it."""
    from iobench.gpu.runtime import synchronize

    synchronize()
    _launch("pattern_fill", ptr, nbytes, seed)
    synchronize()


def check(ptr: int, nbytes: int, seed: int, what: str = "the copy") -> None:
    """Compare EVERY byte on the current device; WrongData names ``what``, the count and the first wrong byte.

    Waits for all that the device has to do first.
    """
    import numpy as np

    from iobench.gpu.runtime import runtime, synchronize

    api = runtime()
    synchronize()
    found = np.array([0, _NOWHERE, 0], dtype=np.uint64)
    area = int(api.malloc(found.nbytes))
    try:
        api.memcpy(area, found.ctypes.data, found.nbytes, api.memcpyDefault)
        _launch("pattern_check", ptr, nbytes, seed, np.uint64(area))
        api.memcpy(found.ctypes.data, area, found.nbytes, api.memcpyDefault)
    finally:
        api.free(area)
    verdict(int(found[0]), int(found[1]), int(found[2]), nbytes, what)


def verdict(wrong: int, first: int, looked: int, nbytes: int, what: str) -> None:
    """Raise WrongData unless all ``nbytes`` were looked at and none was wrong."""
    if looked != nbytes:
        raise WrongData(f"{what}: the check looked at {looked} of {nbytes} bytes")
    if wrong:
        raise WrongData(f"{what}: {wrong} of {nbytes} bytes differ, the first at byte {first}")


def fill_host(data: NDArray[Any], seed: int) -> None:
    """Write the pattern into a contiguous host array of bytes."""
    flat = _bytes(data)
    for start, stop in _chunks(flat.nbytes):
        flat[start:stop] = _part(stop - start, seed, start)


def check_host(data: NDArray[Any], seed: int, what: str = "the copy") -> None:
    """Compare every byte on the host; raises as ``check``, which is 50 times faster where a GPU reaches the memory."""
    import numpy as np

    flat = _bytes(data)
    wrong, first, looked = 0, _NOWHERE, 0
    for start, stop in _chunks(flat.nbytes):
        right = _part(stop - start, seed, start)
        looked += len(right)
        if not np.array_equal(flat[start:stop], right):
            places = np.flatnonzero(flat[start:stop] != right)
            wrong += len(places)
            first = min(first, start + int(places[0]))
    verdict(wrong, first, looked, flat.nbytes, what)


def expected(nbytes: int, seed: int, start: int = 0) -> NDArray[np.uint8]:
    """Return bytes ``start`` to ``start + nbytes`` of the pattern."""
    import numpy as np

    made = np.empty(nbytes, np.uint8)
    for first, last in _chunks(nbytes):
        made[first:last] = _part(last - first, seed, start + first)
    return made


def _part(nbytes: int, seed: int, start: int) -> NDArray[np.uint8]:
    """Return a part of the pattern that is small enough for the cache; every step in place."""
    import numpy as np

    first = start // 8
    z = np.arange(first + 1, (start + nbytes + 7) // 8 + 1, dtype=np.uint64)
    z *= np.uint64(0x9E3779B97F4A7C15)
    z += np.uint64(seed & _MASK)
    shifted = z >> np.uint64(30)
    z ^= shifted
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= np.right_shift(z, np.uint64(27), out=shifted)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= np.right_shift(z, np.uint64(31), out=shifted)
    skip = start - 8 * first
    return z.astype("<u8", copy=False).view(np.uint8)[skip : skip + nbytes]


def _bytes(data: NDArray[Any]) -> NDArray[np.uint8]:
    import numpy as np

    if not data.flags.c_contiguous:
        raise ValueError("the pattern needs a contiguous array")
    return data.reshape(-1).view(np.uint8)


def _chunks(nbytes: int) -> Iterator[tuple[int, int]]:
    yield from ((start, min(start + _CHUNK, nbytes)) for start in range(0, nbytes, _CHUNK))


def _launch(name: str, ptr: int, nbytes: int, seed: int, *more: Any) -> None:
    """Launch on the default stream of the current device; a grid of any size covers every byte."""
    import numpy as np

    from iobench.gpu.runtime import require
    from iobench.kernels.gpu import function

    cupy = require()
    sms = cupy.cuda.Device().attributes["MultiProcessorCount"]
    blocks = max(1, min(sms * _BLOCKS_PER_SM, -(-nbytes // (8 * _THREADS))))
    arguments = (np.uint64(ptr), np.uint64(nbytes), np.uint64(seed & _MASK), *more)
    with cupy.cuda.Stream.null:
        function("pattern", name)((blocks,), (_THREADS,), arguments)
