"""Facts about memory: totals, page size policy, huge page pools, swap, NUMA balancing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from iobench.machine import read
from iobench.machine.cpu import allowed
from iobench.units import KIB

_THP = "sys/kernel/mm/transparent_hugepage"
_VM = "proc/sys/vm"


def facts(root: Path) -> dict[str, Any]:
    """Return what is known of the memory; sizes in bytes."""
    info = read.counters(root / "proc/meminfo")
    return read.known(
        total_nbytes=_kib(info, "MemTotal"),
        available_nbytes=_kib(info, "MemAvailable"),
        swap_total_nbytes=_kib(info, "SwapTotal"),
        swap_free_nbytes=_kib(info, "SwapFree"),
        nodes_allowed=allowed(root, "Mems_allowed_list"),
        thp=read.chosen(root / _THP / "enabled"),
        thp_defrag=read.chosen(root / _THP / "defrag"),
        thp_shmem=read.chosen(root / _THP / "shmem_enabled"),
        huge_pages=_pools(root),
        numa_balancing=read.number(root / "proc/sys/kernel/numa_balancing"),
        overcommit=read.number(root / _VM / "overcommit_memory"),
        swappiness=read.number(root / _VM / "swappiness"),
        zone_reclaim=read.number(root / _VM / "zone_reclaim_mode"),
    )


def available(root: Path) -> int | None:
    """Return the bytes that programs can still have without swapping."""
    return _kib(read.counters(root / "proc/meminfo"), "MemAvailable")


def _kib(info: dict[str, int], name: str) -> int | None:
    return info[name] * KIB if name in info else None


def _pools(root: Path) -> list[dict[str, Any]]:
    pools = []
    for folder in (root / "sys/kernel/mm/hugepages").glob("hugepages-*"):
        match = re.fullmatch(r"hugepages-([0-9]+)kB", folder.name)
        total, free = read.number(folder / "nr_hugepages"), read.number(folder / "free_hugepages")
        if match and total is not None:
            pools.append(read.known(page_nbytes=int(match[1]) * KIB, total=total, free=free))
    return sorted(pools, key=lambda pool: str(pool["page_nbytes"]).zfill(20))
