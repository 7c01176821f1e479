"""Stream kernels: copy, scale, add, triad, read and write, with plain and non-temporal stores.

Arrays are float64, one slice per thread, a whole number of 64-byte lines each and aligned to one. Values
are small integers, so that every result is exact and one sum has one value in any order of additions.
"""

from __future__ import annotations

from iobench.kernels import ops
from iobench.kernels.jit import kernel

COPY, SCALE, ADD, TRIAD, READ, WRITE = range(6)
CODES = {"copy": COPY, "scale": SCALE, "add": ADD, "triad": TRIAD, "read": READ, "write": WRITE}
ARRAYS = {"copy": 2, "scale": 2, "add": 3, "triad": 3, "read": 1, "write": 1}
SCALAR = 3.0
POISON = -1.0  # no kernel's result: a place still holding it was skipped
_PERIOD = 1021  # a prime, so that no shift by a power of two looks right


@kernel()
def copy_plain(target, a, passes):  # type: ignore[no-untyped-def]
    to, first, end = ops.address(target), ops.address(a), ops.line_bytes(target)
    for _ in range(passes):
        ops.copy_plain(to, first, 0.0, end)
        ops.compiler_fence()


@kernel()
def scale_plain(target, a, scalar, passes):  # type: ignore[no-untyped-def]
    to, first, end = ops.address(target), ops.address(a), ops.line_bytes(target)
    for _ in range(passes):
        ops.scale_plain(to, first, scalar, end)
        ops.compiler_fence()


@kernel()
def add_plain(target, a, b, passes):  # type: ignore[no-untyped-def]
    to, first, second, end = ops.address(target), ops.address(a), ops.address(b), ops.line_bytes(target)
    for _ in range(passes):
        ops.add_plain(to, first, second, 0.0, end)
        ops.compiler_fence()


@kernel()
def triad_plain(target, a, b, scalar, passes):  # type: ignore[no-untyped-def]
    to, first, second, end = ops.address(target), ops.address(a), ops.address(b), ops.line_bytes(target)
    for _ in range(passes):
        ops.triad_plain(to, first, second, scalar, end)
        ops.compiler_fence()


@kernel()
def write_plain(target, scalar, passes):  # type: ignore[no-untyped-def]
    to, end = ops.address(target), ops.line_bytes(target)
    for _ in range(passes):
        ops.write_plain(to, scalar, end)
        ops.compiler_fence()


@kernel()
def copy_nt(target, a, passes):  # type: ignore[no-untyped-def]
    to, first, end = ops.address(target), ops.address(a), ops.line_bytes(target)
    for _ in range(passes):
        ops.copy_nt(to, first, 0.0, end)
        ops.compiler_fence()


@kernel()
def scale_nt(target, a, scalar, passes):  # type: ignore[no-untyped-def]
    to, first, end = ops.address(target), ops.address(a), ops.line_bytes(target)
    for _ in range(passes):
        ops.scale_nt(to, first, scalar, end)
        ops.compiler_fence()


@kernel()
def add_nt(target, a, b, passes):  # type: ignore[no-untyped-def]
    to, first, second, end = ops.address(target), ops.address(a), ops.address(b), ops.line_bytes(target)
    for _ in range(passes):
        ops.add_nt(to, first, second, 0.0, end)
        ops.compiler_fence()


@kernel()
def triad_nt(target, a, b, scalar, passes):  # type: ignore[no-untyped-def]
    to, first, second, end = ops.address(target), ops.address(a), ops.address(b), ops.line_bytes(target)
    for _ in range(passes):
        ops.triad_nt(to, first, second, scalar, end)
        ops.compiler_fence()


@kernel()
def write_nt(target, scalar, passes):  # type: ignore[no-untyped-def]
    to, end = ops.address(target), ops.line_bytes(target)
    for _ in range(passes):
        ops.write_nt(to, scalar, end)
        ops.compiler_fence()


@kernel(reassociate=True)
def read(target, passes):  # type: ignore[no-untyped-def]
    total = 0.0
    for _ in range(passes):
        for i in range(target.size):
            total += target[i]
        ops.compiler_fence()
    return total


@kernel()
def run_plain(code, target, a, b, scalar, passes):  # type: ignore[no-untyped-def]
    if code == COPY:
        copy_plain(target, a, passes)
    elif code == SCALE:
        scale_plain(target, a, scalar, passes)
    elif code == ADD:
        add_plain(target, a, b, passes)
    elif code == TRIAD:
        triad_plain(target, a, b, scalar, passes)
    elif code == WRITE:
        write_plain(target, scalar, passes)
    elif code == READ:
        return read(target, passes)
    return 0.0


@kernel()
def run_nt(code, target, a, b, scalar, passes):  # type: ignore[no-untyped-def]
    if code == COPY:
        copy_nt(target, a, passes)
    elif code == SCALE:
        scale_nt(target, a, scalar, passes)
    elif code == ADD:
        add_nt(target, a, b, passes)
    elif code == TRIAD:
        triad_nt(target, a, b, scalar, passes)
    elif code == WRITE:
        write_nt(target, scalar, passes)
    return 0.0


@kernel()
def drive(code, nt, target, a, b, scalar, passes, barrier, threads, starts, ends, sums):  # type: ignore[no-untyped-def]
    """Take ``starts.size`` samples of ``passes`` passes in one of ``threads`` threads.

    Before each sample the threads meet at ``barrier`` (uint64 address of an int64, 0 at the start), so
    that nothing but the passes lies between the clock reads: ``starts`` and ``ends`` in nanoseconds.
    ``sums`` gets what ``read`` added up. Non-temporal stores have left the core when the clock stops.
    """
    for sample in range(starts.size):
        ops.meet(barrier, (sample + 1) * threads)
        total = 0.0
        starts[sample] = ops.now()
        if nt:
            run_nt(code, target, a, b, scalar, passes)
            ops.store_fence()
        else:
            total = run_plain(code, target, a, b, scalar, passes)
        ends[sample] = ops.now()
        sums[sample] = total


@kernel()
def fill(target, a, b, first):  # type: ignore[no-untyped-def]
    """Poison ``target`` and fill ``a`` and ``b``; ``first`` is the index of the slice's first element.

    A kernel without sources reads ``target`` itself: give it as ``a`` too and it gets the pattern.
    """
    for i in range(target.size):
        target[i] = POISON
    for i in range(a.size):
        a[i] = 1.0 + (first + i) % _PERIOD
    for i in range(b.size):
        b[i] = 2.0 + (first + i) % _PERIOD


@kernel()
def expected(code, index, scalar):  # type: ignore[no-untyped-def]
    """Return what ``target[index]`` holds after the kernel ``code``."""
    a, b = 1.0 + index % _PERIOD, 2.0 + index % _PERIOD
    if code == SCALE:
        return scalar * a
    if code == ADD:
        return a + b
    if code == TRIAD:
        return a + scalar * b
    if code == WRITE:
        return scalar
    return a


@kernel()
def first_wrong(code, target, a, b, scalar, first):  # type: ignore[no-untyped-def]
    """Return the first index in the slice where any array is not what it must be, -1 where all is right."""
    for i in range(target.size):
        if target[i] != expected(code, first + i, scalar):
            return i
    for i in range(a.size):
        if a[i] != 1.0 + (first + i) % _PERIOD:
            return i
    for i in range(b.size):
        if b[i] != 2.0 + (first + i) % _PERIOD:
            return i
    return -1


def total(first: int, count: int) -> int:
    """Return the exact sum that ``read`` must find in the slice of ``count`` elements from ``first``."""
    return _sum_below(first + count) - _sum_below(first)


def _sum_below(index: int) -> int:
    periods, rest = divmod(index, _PERIOD)
    return index + periods * (_PERIOD * (_PERIOD - 1) // 2) + rest * (rest - 1) // 2
