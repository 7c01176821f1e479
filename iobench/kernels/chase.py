"""The pointer chase: a random single cycle with one node in each 64-byte line.

A node's first word is the address of the next node, so a step is one load whose address depends on the
load before. The cycle is random, so no prefetcher can guess it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from iobench.kernels import ops
from iobench.kernels.jit import kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

LINE = ops.LINE
WALKERS = 8
_WORDS = LINE // 8


def random_order(nodes: int, seed: int) -> NDArray[np.uint32]:
    """Return the nodes in the order of a random single cycle."""
    return np.random.default_rng(seed).permutation(nodes).astype(np.uint32)


@kernel()
def link(words, order):  # type: ignore[no-untyped-def]
    """Write the cycle ``order`` into ``words`` (uint64, eight to a node)."""
    base = ops.address(words)
    for i in range(order.size):
        following = order[i + 1 if i + 1 < order.size else 0]
        words[order[i] * np.uint64(_WORDS)] = base + following * np.uint64(LINE)


@kernel()
def drive(start, loads, starts, ends, places):  # type: ignore[no-untyped-def]
    """Take ``starts.size`` samples of ``loads`` dependent loads, beginning at the address ``start``.

    ``starts`` and ``ends`` get nanoseconds; ``places`` (uint64) the address reached after each sample.
    """
    place = start
    for sample in range(starts.size):
        starts[sample] = ops.now()
        for _ in range(loads):
            place = ops.follow(place)
        ops.compiler_fence()
        places[sample] = place
        ends[sample] = ops.now()


@kernel()
def is_single_cycle(words, order):  # type: ignore[no-untyped-def]
    """Tell whether a walk from the first node visits every node exactly once before it returns.

    Eight walkers (one in a small cycle) start at equal parts of ``order``; each must end where the next
    began and only the last may reach the first node: together that is one walk of as many steps as there
    are nodes. The steps come from the memory, ``order`` gives the starting places and nothing else.
    """
    base, nodes = ops.address(words), order.size
    walkers = WALKERS if nodes >= WALKERS else 1
    starts = np.empty(walkers + 1, np.int64)
    for k in range(walkers + 1):
        starts[k] = k * nodes // walkers
    places = np.empty(walkers, np.uint64)
    for k in range(walkers):
        places[k] = order[starts[k]] * np.uint64(LINE)
    returns = 0
    for step in range(nodes // walkers + 1):
        for k in range(walkers):
            if step < starts[k + 1] - starts[k]:
                places[k] = ops.follow(base + places[k]) - base
                if places[k] >= nodes * LINE or places[k] % np.uint64(LINE) != 0:
                    return False  # an address outside the nodes must not be followed
                returns += places[k] == order[0] * np.uint64(LINE)
    for k in range(walkers):
        if places[k] != order[starts[k + 1] % nodes] * np.uint64(LINE):
            return False
    return returns == 1
