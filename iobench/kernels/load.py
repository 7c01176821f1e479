"""Load on the memory beside a pointer chase: reads and writes in a mix, throttled by a delay.

A slice is cut into chunks of 512 bytes that are visited in order, round after round. A mix says which chunks
are modified in place (read, then stored: one read and one write of each line on the bus) and which are only
read, or that all are written past the caches. Between two chunks stands a chain of ``delay`` dependent
multiplications. Values are integers, so every sum and every word can be checked exactly.
"""

from __future__ import annotations

import numpy as np

from iobench.kernels import ops
from iobench.kernels.jit import kernel

CHUNK = ops.CHUNK
WORDS = CHUNK // 8
BURST = 8  # chunks that are read at once without a delay: what stands between two chunks cost 2 to 8 % of the bandwidth
WRITES = 0  # ``every`` of the mix that only writes
READS = -1  # ... of the mix that only reads
MIXES = {"read": READS, "3:1": 3, "2:1": 2, "1:1": 1, "write": WRITES}  # reads to writes on the bus
NEXT, ROUND, DONE, SUM, SINK = range(5)  # the words of a thread's state
STATE_WORDS = 64
_PERIOD = 1021  # a prime, so that no shift by a power of two looks right
_FACTOR, _TERM = 6364136223846793005, 1442695040888963407


@kernel()
def wait(steps, value):  # type: ignore[no-untyped-def]
    """Multiply ``steps`` times, each product waiting for the one before."""
    for _ in range(steps):
        value = value * np.uint64(_FACTOR) + np.uint64(_TERM)
    return value


@kernel()
def drive(words, every, delay, stop, progress, state):  # type: ignore[no-untyped-def]
    """Visit chunks of ``words`` (uint64) until the int64 at the address ``stop`` is no longer 0.

    ``every`` is the mix (a value of MIXES); the int64 at ``progress`` counts the chunks visited, for others
    to read meanwhile. ``state`` (uint64) says where the last call ended and is brought up to date.
    """
    chunks, base = np.uint64(words.size // WORDS), ops.address(words)
    at, turn, done = state[NEXT], state[ROUND], np.int64(state[DONE])
    total, sink = state[SUM], state[SINK]
    phase = np.int64(at % np.uint64(every)) if every > 0 else 1
    steps = ops.opaque(np.uint64(CHUNK // ops.STEP))  # unknown to the compiler, which would unroll the loop
    while ops.load_atomic(stop) == 0:
        place = base + at * np.uint64(CHUNK)
        count = np.uint64(1)
        if every == READS and delay == 0:
            count = min(np.uint64(BURST), chunks - at)
            total += ops.sum_long(place, count * np.uint64(CHUNK // ops.STEP))
        elif every == WRITES:
            ops.write_nt(place, float(turn + np.uint64(1)), np.uint64(CHUNK))
        elif phase == 0:
            total += ops.grow_words(place, steps)
        else:
            total += ops.sum_words(place, steps)
        at += count
        done += np.int64(count)
        if every > 0:
            phase = phase + 1 if phase + 1 < every else 0
        if at == chunks:
            at = np.uint64(0)
            turn += np.uint64(1)
            phase = 0 if every > 0 else 1
        ops.store_atomic(progress, done)
        sink = wait(delay, sink)
    ops.store_fence()
    state[NEXT], state[ROUND], state[DONE], state[SUM], state[SINK] = at, turn, np.uint64(done), total, sink


@kernel()
def fill(words, origin):  # type: ignore[no-untyped-def]
    """Fill the slice whose first chunk has the number ``origin`` among all threads' chunks."""
    for chunk in range(words.size // WORDS):
        value = np.uint64(1 + (origin + chunk) % _PERIOD)
        for i in range(WORDS):
            words[chunk * WORDS + i] = value


@kernel()
def verify(words, every, origin, done):  # type: ignore[no-untyped-def]
    """Return the first wrong word after ``done`` visits (-1: none), and the sum that they must have read.

    For the mix that only writes, ``words`` is looked at as the float64 bits of the last round that came by.
    """
    chunks = words.size // WORDS
    total = np.uint64(0)
    for chunk in range(chunks):
        visits = done // chunks + (1 if chunk < done % chunks else 0)
        value = 1 + (origin + chunk) % _PERIOD
        grows = every > 0 and chunk % every == 0
        if every != WRITES:
            before = value * visits + (visits * (visits - 1) // 2 if grows else 0)
            total += np.uint64(before * WORDS)
        for i in range(WORDS):
            word = words[chunk * WORDS + i]
            if every == WRITES and visits > 0:
                right = word == ops.bits(float(visits))
            else:
                right = word == np.uint64(value + (visits if grows else 0))
            if not right:
                return chunk * WORDS + i, total
    return -1, total
