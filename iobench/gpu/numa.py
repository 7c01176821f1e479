"""Places host memory on a NUMA node: by running on its CPUs, by the memory policy where it has none."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from iobench import mempolicy
from iobench.errors import Unavailable
from iobench.topology.sysfs import Tree


@contextlib.contextmanager
def allocating_on(node: int | None, root: str = "/") -> Iterator[None]:
    """Let this thread allocate and touch memory on ``node`` inside the block; None: wherever it is.

    Raises Unavailable where there is no such node or the system does not allow it. Afterwards the thread runs where
    it ran before.
    """
    if node is None:
        yield
        return
    tree = Tree(root)
    if not tree.exists("sys/devices/system/node", f"node{node}") and node != 0:
        raise Unavailable(f"no NUMA node {node} on this machine")
    before = os.sched_getaffinity(0)
    cpus = set(tree.cpus("sys/devices/system/node", f"node{node}", "cpulist") or ()) & before
    if cpus:
        os.sched_setaffinity(0, cpus)
        try:
            yield
        finally:
            os.sched_setaffinity(0, before)
    elif node == 0 and not tree.exists("sys/devices/system/node", "node0"):
        yield  # a kernel without NUMA has one memory
    else:
        _bind((node,))
        try:
            yield
        finally:
            _bind(())


def _bind(nodes: tuple[int, ...]) -> None:
    code = mempolicy.bind_thread(nodes)
    if code:
        raise Unavailable(
            f"memory of NUMA node {', '.join(map(str, nodes))} cannot be asked for: set_mempolicy: {os.strerror(code)}"
        )
