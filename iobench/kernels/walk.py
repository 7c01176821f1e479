"""A walk over the blocks of a KV cache: block after block in the order of a random table, every word summed.

Software prefetch asks for the lines of the chunk that comes ``ahead`` chunks later in the walk, in the next block
where this one ends. Words follow a formula and the sums of the blocks are folded by their place in the table, so
that a skipped line, a wrong block and a wrong order all show.
"""

from __future__ import annotations

import numpy as np

from iobench.kernels import ops
from iobench.kernels.jit import kernel

CHUNK = ops.CHUNK
_LINES = CHUNK // ops.LINE
_GOLDEN = 0x9E3779B97F4A7C15  # odd, so that no two words of the pattern are equal
_FOLD = 31


@kernel()
def gather(base, table, chunks, ahead):  # type: ignore[no-untyped-def]
    """Return the folded sums of the blocks of ``chunks`` chunks that ``table`` (uint64) names, from ``base`` on."""
    total = np.uint64(0)
    block = chunks * np.uint64(CHUNK)
    end = ahead * np.uint64(CHUNK)
    steps = ops.opaque(np.uint64(CHUNK // ops.STEP))
    for k in range(table.size):
        place = base + table[k] * block
        # a chunk that lies ``ahead`` of one in this block lies in this block or at the same distance in the next
        following = base + table[k + 1 if k + 1 < table.size else 0] * block - block
        sums, at = np.uint64(0), np.uint64(0)
        while at != block:
            if ahead != np.uint64(0):
                far = at + end
                there = (place if far < block else following) + far
                for line in range(_LINES):
                    ops.prefetch(there + np.uint64(line * ops.LINE))
            sums += ops.sum_words(place + at, steps)
            at += np.uint64(CHUNK)
        total = total * np.uint64(_FOLD) + sums
    return total


@kernel()
def drive(base, table, chunks, ahead, passes, barrier, threads, starts, ends, sums):  # type: ignore[no-untyped-def]
    """Take ``starts.size`` samples of ``passes`` walks in one of ``threads`` threads, as stream.drive does.

    ``sums`` (uint64) gets what the walks of a sample came to, added up.
    """
    for sample in range(starts.size):
        ops.meet(barrier, (sample + 1) * threads)
        total = np.uint64(0)
        starts[sample] = ops.now()
        for _ in range(passes):
            total += gather(base, table, chunks, ahead)
            ops.compiler_fence()
        ends[sample] = ops.now()
        sums[sample] = total


@kernel()
def fill(words):  # type: ignore[no-untyped-def]
    for i in range(words.size):
        words[i] = np.uint64(i) * np.uint64(_GOLDEN)


@kernel()
def expected(table, chunks):  # type: ignore[no-untyped-def]
    """Return what one walk must come to, by the formula and not from memory."""
    words = chunks * np.uint64(CHUNK // 8)
    total = np.uint64(0)
    for k in range(table.size):
        first = table[k] * words
        places = words * first + words * (words - np.uint64(1)) // np.uint64(2)
        total = total * np.uint64(_FOLD) + places * np.uint64(_GOLDEN)
    return total
