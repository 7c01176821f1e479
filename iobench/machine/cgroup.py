"""Limits of the control groups (v1, v2 and both together) and how often the CPU quota throttled us.

A limit of any ancestor binds too, so the whole path from the process's group to the root is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from iobench.machine import read

# v1 says "no limit" with the largest whole page count (2**63 - 4096), some kernels with 2**64 - 1.
_UNLIMITED_NBYTES = 1 << 60


def facts(root: Path) -> dict[str, Any]:
    """Return version, CPU quota (in CPUs) and memory limit (bytes); no key where there is no limit."""
    return read.known(version=_version(root), cpu_quota_cpus=cpu_quota(root), memory_limit_nbytes=memory_limit(root))


def cpu_quota(root: Path) -> float | None:
    """Return the tightest CPU quota on the path in CPUs (1.5 = one and a half), None where unlimited."""
    quotas = [quota for folder in folders(root, "cpu") if (quota := _quota(folder)) is not None]
    return min(quotas, default=None)


def memory_limit(root: Path) -> int | None:
    """Return the tightest memory limit on the path in bytes, None where unlimited."""
    names = ("memory.max", "memory.limit_in_bytes")
    limits = [read.number(folder / name) for folder in folders(root, "memory") for name in names]
    return min((limit for limit in limits if limit is not None and 0 < limit < _UNLIMITED_NBYTES), default=None)


def throttled(root: Path) -> dict[str, float]:
    """Return how often ("count") and how long ("seconds") quotas on the path stopped us so far."""
    count, seconds = 0, 0.0
    seen = False
    for folder in folders(root, "cpu"):
        stat = read.counters(folder / "cpu.stat")
        if "nr_throttled" in stat:
            seen = True
            count += stat["nr_throttled"]
            seconds += stat.get("throttled_usec", 0) * 1e-6 + stat.get("throttled_time", 0) * 1e-9
    return {"count": count, "seconds": seconds} if seen else {}


def folders(root: Path, controller: str) -> list[Path]:
    """Return the group folders, innermost first, that may hold limits of ``controller``."""
    found: list[Path] = []
    for line in read.lines(root / "proc/self/cgroup"):
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if number == "0" and not names:
            mounts = ["sys/fs/cgroup", "sys/fs/cgroup/unified"]
        elif controller in names.split(","):
            mounts = [f"sys/fs/cgroup/{names}", f"sys/fs/cgroup/{controller}"]
        else:
            continue
        found += [folder for mount in mounts for folder in _up(root / mount, path)]
    return list(dict.fromkeys(found))


def _up(mount: Path, path: str) -> Iterator[Path]:
    """Yield the existing folders from the group up to the mount point.

    In a container the path is often the host's, unknown below the mount: then the mount itself is our group.
    """
    parts = PurePosixPath(path.strip()).parts[1:]
    if ".." in parts:
        parts = ()
    for depth in range(len(parts), -1, -1):
        folder = mount.joinpath(*parts[:depth])
        if folder.is_dir():
            yield folder


def _quota(folder: Path) -> float | None:
    quota, _, period = (read.text(folder / "cpu.max") or "").partition(" ")
    if not quota:
        quota = read.text(folder / "cpu.cfs_quota_us") or ""
        period = read.text(folder / "cpu.cfs_period_us") or ""
    amount, length = read.integer(quota), read.integer(period or "100000")
    if amount is None or amount <= 0 or not length:
        return None
    return amount / length


def _version(root: Path) -> str | None:
    kinds = [line.startswith("0::") for line in read.lines(root / "proc/self/cgroup")]
    if not kinds:
        return None
    return ("v2" if all(kinds) else "v1+v2") if any(kinds) else "v1"
