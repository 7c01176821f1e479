"""One reading of the kernel's counters (/proc/stat, vmstat, pressure, cgroup) and the change between two."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from iobench.machine import cgroup, read

N = TypeVar("N", int, float)
# The first eight columns of a cpu row of /proc/stat; guest time is contained in user time.
COLUMNS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
_VMSTAT = (
    "pgmajfault", "pswpin", "pswpout", "compact_stall", "thp_fault_alloc", "thp_fault_fallback",
    "numa_pages_migrated", "numa_hint_faults",
)  # fmt: skip


@dataclass
class Counters:
    """The counters at one moment; times of /proc/stat in ticks per CPU."""

    at: float
    cpus: dict[int, dict[str, int]] = field(default_factory=dict)
    context_switches: int | None = None
    vmstat: dict[str, int] = field(default_factory=dict)
    pressure_us: dict[str, int] = field(default_factory=dict)
    throttled: dict[str, float] = field(default_factory=dict)


def take(root: Path) -> Counters:
    """Read all counters now; what is missing stays empty."""
    at = time.perf_counter()
    cpus, switches = parse_stat(read.lines(root / "proc/stat"))
    vmstat = read.counters(root / "proc/vmstat")
    chosen = {name: vmstat[name] for name in _VMSTAT if name in vmstat}
    return Counters(at, cpus, switches, chosen, _pressure(root), cgroup.throttled(root))


def parse_stat(lines: list[str]) -> tuple[dict[int, dict[str, int]], int | None]:
    """Return ticks per CPU and column, and the context switches; odd rows are passed over."""
    cpus: dict[int, dict[str, int]] = {}
    switches = None
    for line in lines:
        name, *words = line.split() or [""]
        if name == "ctxt" and words:
            switches = read.integer(words[0])
        number = read.integer(name[3:]) if name.startswith("cpu") else None
        values = [read.integer(word) for word in words[: len(COLUMNS)]]
        # Old kernels have fewer columns; the first four have always been there.
        if number is not None and len(values) >= 4 and None not in values:
            cpus[number] = dict(zip(COLUMNS, (value or 0 for value in values), strict=False))
    return cpus, switches


def change(before: dict[str, N], after: dict[str, N]) -> dict[str, N]:
    """Return how much each counter that both readings have went up."""
    return {name: after[name] - before[name] for name in before if name in after}


@dataclass(frozen=True)
class Use:
    """How a set of CPUs spent the time between two readings, in CPU seconds; ``seconds`` on the clock.

    ``busy`` is everything that was neither idle nor stolen nor an interrupt. Idle time is exact on
    kernels without a tick when idle; user and system columns are sampled by the tick and miss up to
    0.15 CPUs of a program that wakes up often.
    """

    seconds: float
    count: int
    busy: float
    steal: float
    interrupts: float


def use(before: Counters, after: Counters, cpus: set[int], tick: float) -> Use | None:
    """Return how ``cpus`` spent the time; None where /proc/stat does not account for it (gVisor: zeros)."""
    seconds = after.at - before.at
    rows = [
        change(before.cpus[cpu], after.cpus[cpu]) for cpu in sorted(cpus) if cpu in before.cpus and cpu in after.cpus
    ]
    if not rows or seconds <= 0:
        return None
    total = {name: sum(row.get(name, 0) for row in rows) * tick for name in COLUMNS}
    whole = seconds * len(rows)
    # Half of the time, and two ticks per CPU lost to rounding: less means that the file is not kept up.
    if sum(total.values()) < whole / 2 - 2 * tick * len(rows):
        return None
    interrupts = total["irq"] + total["softirq"]
    busy = whole - total["idle"] - total["iowait"] - total["steal"] - interrupts
    return Use(seconds, len(rows), max(busy, 0.0), total["steal"], interrupts)


def _pressure(root: Path) -> dict[str, int]:
    """Microseconds in which some (or all) tasks waited for a resource: {"cpu_some": 8745674, ...}."""
    found: dict[str, int] = {}
    for resource in ("cpu", "memory", "io"):
        for line in read.lines(root / "proc/pressure" / resource):
            kind, _, rest = line.partition(" ")
            total = read.integer(rest.rpartition("total=")[2])
            if kind in ("some", "full") and total is not None:
                found[f"{resource}_{kind}"] = total
    return found
