"""Stream kernels: copy, scale, add, triad, read and write, with plain and non-temporal stores.

Arrays are float64, one slice per thread, a whole number of 64-byte lines each and aligned to one. Values
are small integers, so that every result is exact and one sum has one value in any order of additions.
"""

from __future__ import annotations

import numpy as np

from iobench.kernels import ops
from iobench.kernels.jit import kernel

COPY, SCALE, ADD, TRIAD, READ, WRITE = range(6)
CODES = {"copy": COPY, "scale": SCALE, "add": ADD, "triad": TRIAD, "read": READ, "write": WRITE}
ARRAYS = {"copy": 2, "scale": 2, "add": 3, "triad": 3, "read": 1, "write": 1}
STORING = tuple(name for name in CODES if name != "read")
SCALAR = 3.0
POISON = -1.0  # no kernel's result: a place still holding it was skipped
_PERIOD = 1021  # a prime, so that no shift by a power of two looks right


@kernel()
def copy(target, a):  # type: ignore[no-untyped-def]
    for i in range(target.size):
        target[i] = a[i]


@kernel()
def scale(target, a, scalar):  # type: ignore[no-untyped-def]
    for i in range(target.size):
        target[i] = scalar * a[i]


@kernel()
def add(target, a, b):  # type: ignore[no-untyped-def]
    for i in range(target.size):
        target[i] = a[i] + b[i]


@kernel()
def triad(target, a, b, scalar):  # type: ignore[no-untyped-def]
    for i in range(target.size):
        target[i] = a[i] + scalar * b[i]


@kernel(reassociate=True)
def read(target):  # type: ignore[no-untyped-def]
    total = 0.0
    for i in range(target.size):
        total += target[i]
    return total


@kernel()
def write(target, scalar):  # type: ignore[no-untyped-def]
    for i in range(target.size):
        target[i] = scalar


@kernel()
def copy_nt(target, a):  # type: ignore[no-untyped-def]
    to, first = ops.address(target), ops.address(a)
    for offset in range(np.uint64(0), ops.line_bytes(target), np.uint64(ops.LINE)):
        ops.copy_line(to + offset, first + offset, 0.0)


@kernel()
def scale_nt(target, a, scalar):  # type: ignore[no-untyped-def]
    to, first = ops.address(target), ops.address(a)
    for offset in range(np.uint64(0), ops.line_bytes(target), np.uint64(ops.LINE)):
        ops.scale_line(to + offset, first + offset, scalar)


@kernel()
def add_nt(target, a, b):  # type: ignore[no-untyped-def]
    to, first, second = ops.address(target), ops.address(a), ops.address(b)
    for offset in range(np.uint64(0), ops.line_bytes(target), np.uint64(ops.LINE)):
        ops.add_line(to + offset, first + offset, second + offset, 0.0)


@kernel()
def triad_nt(target, a, b, scalar):  # type: ignore[no-untyped-def]
    to, first, second = ops.address(target), ops.address(a), ops.address(b)
    for offset in range(np.uint64(0), ops.line_bytes(target), np.uint64(ops.LINE)):
        ops.triad_line(to + offset, first + offset, second + offset, scalar)


@kernel()
def write_nt(target, scalar):  # type: ignore[no-untyped-def]
    to = ops.address(target)
    for offset in range(np.uint64(0), ops.line_bytes(target), np.uint64(ops.LINE)):
        ops.write_line(to + offset, scalar)


@kernel()
def run_plain(code, target, a, b, scalar):  # type: ignore[no-untyped-def]
    if code == COPY:
        copy(target, a)
    elif code == SCALE:
        scale(target, a, scalar)
    elif code == ADD:
        add(target, a, b)
    elif code == TRIAD:
        triad(target, a, b, scalar)
    elif code == READ:
        return read(target)
    elif code == WRITE:
        write(target, scalar)
    return 0.0


@kernel()
def run_nt(code, target, a, b, scalar):  # type: ignore[no-untyped-def]
    if code == COPY:
        copy_nt(target, a)
    elif code == SCALE:
        scale_nt(target, a, scalar)
    elif code == ADD:
        add_nt(target, a, b)
    elif code == TRIAD:
        triad_nt(target, a, b, scalar)
    elif code == WRITE:
        write_nt(target, scalar)
    return 0.0


@kernel()
def drive(code, nt, target, a, b, scalar, reps, barrier, threads, starts, ends, sums):  # type: ignore[no-untyped-def]
    """Take ``starts.size`` samples of ``reps`` passes in one of ``threads`` threads.

    Before each sample the threads meet at ``barrier`` (uint64 address of an int64, 0 at the start), so
    that nothing but the passes lies between the clock reads: ``starts`` and ``ends`` in nanoseconds.
    ``sums`` gets what ``read`` added up. Non-temporal stores have left the core when the clock stops.
    """
    for sample in range(starts.size):
        ops.meet(barrier, (sample + 1) * threads)
        total = 0.0
        starts[sample] = ops.now()
        for _ in range(reps):
            if nt:
                total += run_nt(code, target, a, b, scalar)
            else:
                total += run_plain(code, target, a, b, scalar)
            ops.compiler_fence()
        if nt:
            ops.store_fence()
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
