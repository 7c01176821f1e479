"""The gather of KV blocks: whole blocks copied out of a pool in the order that a block table says."""

from __future__ import annotations

import numpy as np

from iobench.kernels import ops
from iobench.kernels.jit import kernel

_MIX = 0x9E3779B97F4A7C15  # odd: different words of the pool hold different values


@kernel()
def copy_blocks(target, pool, table, block, passes):  # type: ignore[no-untyped-def]
    """Copy block ``table[i]`` of the pool to place i of the target, ``passes`` times; ``block`` is in bytes."""
    to, base = ops.address(target), ops.address(pool)
    # How many there are is hidden from the compiler, which would unroll this loop: the copy's load would be another
    # instruction from block to block, and prefetchers that go by the instruction would learn each anew.
    one = ops.opaque(np.uint64(1))
    for _ in range(passes):
        place, i = to, np.uint64(0)
        while i != np.uint64(table.size):
            ops.copy_plain(place, base + table[i] * block, 0.0, block)
            place += block
            i += one
        ops.compiler_fence()


@kernel()
def drive(target, pool, table, block, passes, barrier, threads, starts, ends):  # type: ignore[no-untyped-def]
    """Take ``starts.size`` samples of ``passes`` gathers in one of ``threads`` threads, as stream.drive does."""
    for sample in range(starts.size):
        ops.meet(barrier, (sample + 1) * threads)
        starts[sample] = ops.now()
        copy_blocks(target, pool, table, np.uint64(block), passes)
        ends[sample] = ops.now()


@kernel()
def fill(words, first):  # type: ignore[no-untyped-def]
    """Give each word (uint64) of a pool's slice a value of its own; ``first`` is the slice's first index."""
    for i in range(words.size):
        words[i] = np.uint64(first + i) * np.uint64(_MIX)


@kernel()
def first_wrong(words, table, block_words):  # type: ignore[no-untyped-def]
    """Return the first word of a gathered target that is not its block's word, -1 where all are right."""
    for i in range(table.size):
        source = np.uint64(table[i]) * np.uint64(block_words)
        for k in range(block_words):
            if words[i * block_words + k] != (source + np.uint64(k)) * np.uint64(_MIX):
                return i * block_words + k
    return -1
