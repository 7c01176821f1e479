"""What the checks look at: the machine's files and graph, the environment, limits of this process."""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping
from dataclasses import dataclass, field

from iobench.topology.graph import Topology
from iobench.topology.sysfs import Tree


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, with the next step.

    ``stops``: a run would hang or fail, not only be slow. ``concerns`` names what it matters to (transports of NCCL),
    everything where empty.
    """

    subject: str
    sentence: str
    stops: bool = False
    concerns: tuple[str, ...] = ()


@dataclass
class Host:
    """``shm_free`` is what /dev/shm has left and ``memlock`` the bytes this process may lock, None where unknown."""

    tree: Tree
    topology: Topology
    environment: Mapping[str, str] = field(default_factory=dict)
    shm_free: int | None = None
    memlock: int | None = None

    @classmethod
    def here(cls, topology: Topology) -> Host:
        """Return this machine."""
        soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        return cls(Tree(), topology, dict(os.environ), free_nbytes("/dev/shm"), None if soft < 0 else soft)

    @classmethod
    def at(cls, root: str, topology: Topology) -> Host:
        """Return a captured machine: its files and graph, nothing of this process."""
        return cls(Tree(root), topology)


def free_nbytes(folder: str) -> int | None:
    """Return the bytes that this process can still write to a file system, None where there is none."""
    try:
        state = os.statvfs(folder)
    except OSError:
        return None
    return state.f_bavail * state.f_frsize
