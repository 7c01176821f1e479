"""Memory policies: on which NUMA nodes a mapping's pages may lie, what forbids it, and where they came to lie."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from iobench import pageplaces, syscall
from iobench.errors import Unavailable
from iobench.topology.cpu import status_list
from iobench.topology.sysfs import Tree
from iobench.units import KIB, format_size

if TYPE_CHECKING:
    from numpy.typing import NDArray

BIND, INTERLEAVE, WEIGHTED = "bind", "interleave", "weighted"
WEIGHTS = "sys/kernel/mm/mempolicy/weighted_interleave"
_DEFAULT, _MODES = 0, {BIND: 2, INTERLEAVE: 3, WEIGHTED: 6}  # linux/mempolicy.h
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237, "riscv64": 237, "ppc64le": 261, "s390x": 270}
_MBIND = {"x86_64": 237, "aarch64": 235, "riscv64": 235, "ppc64le": 259, "s390x": 268}
_MOST_NODES = 1024
_NODE = "sys/devices/system/node"
_SLACK = 0.1  # of all pages, by which an interleaved node's part may be off
_MOST_OF_NODE = 0.5  # a node that runs out under a strict policy ends a process, and not always this one

MBind = Callable[[int, int, int, Sequence[int]], int]


@dataclass(frozen=True)
class Policy:
    """Which ``nodes`` a mapping's pages may lie on: all on them (bind), in turn, or in turn by the system's weights."""

    nodes: tuple[int, ...]
    mode: str = BIND

    def __str__(self) -> str:
        return f"{self.mode} {','.join(map(str, self.nodes))}"


@dataclass(frozen=True)
class Placed:
    """NUMA node -> pages of a touched mapping; ``unknown`` pages are those of which the kernel tells nothing.

    ``method`` is "move_pages" (page by page), "numa_maps" (the mapping as a whole) or "" where neither tells.
    """

    pages: Counter[int] = field(default_factory=Counter)
    unknown: int = 0
    method: str = ""

    @property
    def known(self) -> bool:
        return bool(self.pages) and not self.unknown

    def on(self, nodes: Sequence[int]) -> bool:
        """Tell whether every page is known to lie on one of ``nodes``."""
        return self.known and set(self.pages) <= set(nodes)

    def text(self) -> str:
        """Return "node 0: 512 pages, node 1: 3 pages"."""
        return ", ".join(f"node {node}: {count} pages" for node, count in sorted(self.pages.items())) or "unknown"


def allowed(root: str = "/") -> tuple[int, ...] | None:
    """Return the memory nodes that this process may use (cgroup's cpuset); None where the kernel does not say."""
    return status_list(Tree(root), "Mems_allowed_list")


def forbidden(nodes: Sequence[int], root: str = "/") -> str:
    """Return why this process may not use memory of ``nodes`` before it tries, "" where nothing is known against it."""
    may, tree = allowed(root), Tree(root)
    if not tree.exists(_NODE):
        return "the kernel shows no NUMA nodes: memory can't be bound to one"
    gone = [node for node in nodes if not tree.exists(_NODE, f"node{node}")]
    if gone:
        return f"no NUMA node {_ranges(gone)} on this machine"
    missing = [node for node in nodes if may is not None and node not in may]
    if missing:
        return (
            f"memory of NUMA node {_ranges(missing)} is not this process's to use: its Mems_allowed_list is "
            f"{_ranges(may or ())} (its control group's cpuset); run it where {_ranges(nodes)} is allowed"
        )
    return ""


def apply(address: int, nbytes: int, policy: Policy, root: str = "/", mbind: MBind | None = None) -> None:
    """Set the policy of untouched, page-aligned memory with mbind.

    Raises Unavailable with the reason: not allowed by the cgroup, no room on the node, refused by a seccomp
    filter (EPERM), not known to this kernel (EINVAL).
    """
    reason = forbidden(policy.nodes, root) or _no_room(policy, nbytes, root)
    if reason:
        raise Unavailable(reason)
    code = (mbind or _mbind)(address, nbytes, _MODES[policy.mode], policy.nodes)
    if code:
        raise Unavailable(_refusal(code, policy))


def free_nbytes(node: int, root: str = "/") -> int | None:
    """Return the bytes of a node that are free or hold file pages that can go; None where unknown."""
    text = Tree(root).text(_NODE, f"node{node}", "meminfo") or ""
    found = dict(re.findall(rf"^Node {node} (MemFree|Inactive\(file\)):\s+([0-9]+) kB", text, re.MULTILINE))
    return sum(int(value) for value in found.values()) * KIB if "MemFree" in found else None


def weights(nodes: Sequence[int], root: str = "/") -> dict[int, int]:
    """Return the system's weight of each node for weighted interleaving; none where this kernel has no such thing."""
    tree = Tree(root)
    found = {node: tree.number(WEIGHTS, f"node{node}") for node in nodes}
    return {node: weight for node, weight in found.items() if weight}


def astray(policy: Policy, found: Placed, weight: Mapping[int, int] | None = None) -> str:
    """Return how the pages' places differ from the policy, "" where they fit or nothing tells.

    Interleaved pages go by ``weight`` (equal parts where None); a part may be a tenth of all off, as huge pages are
    handed out whole.
    """
    if not found.known:
        return ""
    parts = {node: (weight or {}).get(node, 1) for node in policy.nodes}
    total = found.pages.total()
    wanted = {node: part / sum(parts.values()) for node, part in parts.items()}
    off = policy.mode != BIND and any(abs(found.pages[n] / total - part) > _SLACK for n, part in wanted.items())
    if off or not found.on(policy.nodes):
        return f"memory was asked for by the policy {policy} and came to lie elsewhere ({found.text()}): no result"
    return ""


def placed(data: NDArray[Any]) -> Placed:
    """Ask where every page of a touched array lies."""
    states = pageplaces.states(data)
    if states is not None:
        known = Counter(int(node) for node in states if node >= 0)
        return Placed(known, states.size - known.total(), "move_pages")
    told = pageplaces.numa_maps(data)
    return Placed(told, 0, "numa_maps") if told else Placed(unknown=len(pageplaces.addresses(data)))


def _mbind(address: int, nbytes: int, mode: int, nodes: Sequence[int]) -> int:
    """Call mbind; return 0 or the errno."""
    number = _MBIND.get(platform.machine())
    if number is None:
        return errno.ENOSYS
    place, length, bits = ctypes.c_void_p(address), ctypes.c_ulong(nbytes), ctypes.c_ulong(_MOST_NODES + 1)
    return _code(number, place, length, ctypes.c_long(mode), _mask(nodes), bits, ctypes.c_ulong(0))


def bind_thread(nodes: Sequence[int]) -> int:
    """Let what this thread touches from now on lie on ``nodes`` only, anywhere where there are none.

    Calls set_mempolicy; returns 0 or the errno.
    """
    number = _SET_MEMPOLICY.get(platform.machine())
    if number is None:
        return errno.ENOSYS
    if not nodes:
        return _code(number, ctypes.c_long(_DEFAULT), None, ctypes.c_ulong(0))
    return _code(number, ctypes.c_long(_MODES[BIND]), _mask(nodes), ctypes.c_ulong(_MOST_NODES + 1))


def _code(number: int, *arguments: Any) -> int:
    """Make a system call; return 0 or the errno."""
    try:
        syscall.call(number, *arguments)
    except OSError as error:
        return error.errno or errno.EINVAL
    return 0


def _mask(nodes: Sequence[int]) -> ctypes.Array[ctypes.c_ulong]:
    """Return the kernel's bit mask of nodes."""
    mask = (ctypes.c_ulong * (_MOST_NODES // 64))()
    for node in nodes:
        mask[node // 64] |= 1 << node % 64
    return mask


def _refusal(code: int, policy: Policy) -> str:
    if code == errno.EPERM:
        return (
            "mbind is not permitted (EPERM): a seccomp filter forbids it, as containers' default ones do; "
            "allow it (docker run --cap-add SYS_NICE) to place memory"
        )
    if code == errno.EINVAL and policy.mode == WEIGHTED:
        return "weighted interleaving is not known to this kernel (EINVAL from mbind): it needs Linux 6.9 or newer"
    if code == errno.EINVAL:
        return (
            f"the kernel refuses memory of node {_ranges(policy.nodes)} (EINVAL): none there that this process may use"
        )
    if code == errno.ENOSYS:
        return "this kernel has no mbind (ENOSYS): memory can't be bound to a node"
    return f"mbind to node {_ranges(policy.nodes)} failed: {os.strerror(code)}"


def _no_room(policy: Policy, nbytes: int, root: str) -> str:
    """Return why a node has no room for its part; a bound node is asked for all of it, the others for equal parts."""
    share = nbytes if policy.mode == BIND else -(-nbytes // len(policy.nodes))
    for node in policy.nodes:
        room = free_nbytes(node, root)
        if room is not None and share > room * _MOST_OF_NODE:
            return (
                f"{format_size(share)} is more than half of the {format_size(room)} free on NUMA node {node}: "
                "ask for less with -a nbytes"
            )
    return ""


def _ranges(nodes: Sequence[int]) -> str:
    """Return "0-3,8" for node ids."""
    spans: list[list[int]] = []
    for node in sorted(nodes):
        if spans and node == spans[-1][1] + 1:
            spans[-1][1] = node
        else:
            spans.append([node, node])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in spans) or "empty"
