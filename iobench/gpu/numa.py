"""Places host memory on a NUMA node: by running on its CPUs, by the memory policy where it has none."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
from collections.abc import Iterator

from iobench.errors import Unavailable
from iobench.topology.sysfs import Tree

_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237, "riscv64": 237, "ppc64le": 261, "s390x": 270}
_DEFAULT, _BIND = 0, 2
_MOST_NODES = 1024


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
        _policy(_BIND, node)
        try:
            yield
        finally:
            _policy(_DEFAULT, None)


def _policy(mode: int, node: int | None) -> None:
    number = _SET_MEMPOLICY.get(platform.machine())
    mask = (ctypes.c_ulong * (_MOST_NODES // 64))()
    if node is not None:
        mask[node // 64] = 1 << (node % 64)
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    bits = ctypes.c_ulong(_MOST_NODES if node is not None else 0)
    if number is None or call(ctypes.c_long(number), mode, mask if node is not None else None, bits) != 0:
        raise Unavailable(f"memory of NUMA node {node} cannot be asked for: set_mempolicy is not allowed here")
