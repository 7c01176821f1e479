"""Which way a cuFile or kvikio read took: nvidia-fs, P2PDMA, or POSIX behind it. Judged from counters. Pure.

"GDS" is said only of bytes that a counter saw go that way. cuFile's compatibility mode reads with pread and copies,
and so do kvikio below its threshold and wherever it finds no cuFile; none of them says so by itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from iobench.storage.device import Counted
from iobench.storage.proof import Verdict, few
from iobench.units import MIB

STATS = "proc/driver/nvidia-fs/stats"
GDS_NVFS, GDS_P2PDMA, COMPAT = "gds (nvidia-fs)", "gds (p2pdma)", "compat"
_ALL, _NONE = 0.98, 0.02
_LARGE = 64 * MIB
_NOWHERE = ("not from the device", "from the device in part")  # of files that were not in the page cache
_ENABLE = "echo 1 > /sys/module/nvidia_fs/parameters/rw_stats_enabled"


@dataclass(frozen=True)
class Nvfs:
    """What nvidia-fs has counted: bytes read to MiB, reads, errors. ``counting`` is False where it counts no I/O."""

    counting: bool
    read_bytes: int = 0
    reads: int = 0
    errors: int = 0
    shadow_bytes: int = 0

    def since(self, earlier: Nvfs) -> Nvfs:
        """Return what was counted between ``earlier`` and now."""
        return Nvfs(
            self.counting and earlier.counting,
            self.read_bytes - earlier.read_bytes,
            self.reads - earlier.reads,
            self.errors - earlier.errors,
            self.shadow_bytes,
        )


def nvfs(root: str | Path = "/") -> Nvfs | None:
    """Return nvidia-fs's counters, None where the module is not loaded or its file can't be read."""
    try:
        return parse_nvfs((Path(root) / STATS).read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None


def parse_nvfs(text: str) -> Nvfs:
    """Parse /proc/driver/nvidia-fs/stats; with "IO stats: Disabled" it has no counts of reads, which is not none."""
    reads = re.search(r"^Reads\s*: n=(\d+) ok=\d+ err=(\d+) readMi?B=(\d+)", text, re.MULTILINE)
    off = re.search(r"^IO stats: Disabled", text, re.MULTILINE)
    shadow = re.search(r"^Active Shadow-Buffer \(Mi?B\): (\d+)", text, re.MULTILINE)
    held = int(shadow[1]) * MIB if shadow else 0
    if off or not reads:
        return Nvfs(False, shadow_bytes=held)
    return Nvfs(True, int(reads[3]) * MIB, int(reads[1]), int(reads[2]), held)


@dataclass(frozen=True)
class GpuReads:
    """cuFile's own counts of reads over all GPUs (gds_stats -l 3); ``p2pdma`` is None where it counts none."""

    reads: int
    posix: int
    p2pdma: int | None = None

    def since(self, earlier: GpuReads) -> GpuReads:
        p2pdma = None if self.p2pdma is None or earlier.p2pdma is None else self.p2pdma - earlier.p2pdma
        return GpuReads(self.reads - earlier.reads, self.posix - earlier.posix, p2pdma)


def parse_gds_stats(text: str) -> GpuReads | None:
    """Parse the lines "GPU 0 Read: ... n=2 posix=0 ... Write: ..." of gds_stats; None where there is none."""
    lines = re.findall(r"^\s*GPU \d+ Read: (.*?)(?:\s+Write:|$)", text, re.MULTILINE)
    counts = [dict(re.findall(r"([\w()%]+)=([\d.]+)", line)) for line in lines]
    if not counts or not all("n" in count and "posix" in count for count in counts):
        return None
    p2pdma = [int(float(count["p2pdma"])) for count in counts if "p2pdma" in count]
    return GpuReads(
        sum(int(float(count["n"])) for count in counts),
        sum(int(float(count["posix"])) for count in counts),
        sum(p2pdma) if p2pdma else None,
    )


def judge(
    asked: int,
    moved: Counted,
    kernel: Nvfs | None,
    backends: Mapping[str, int] | None = None,
    cufile: GpuReads | None = None,
    resident: float | None = None,
) -> Verdict:
    """Return the path of ``asked`` bytes read by kvikio or cuFile.

    ``moved`` are the device's and the reading process's counters, ``kernel`` what nvidia-fs counted meanwhile (None:
    not loaded), ``backends`` the bytes by kvikio's backend, ``cufile`` cuFile's own counts of reads, ``resident`` the
    part of the files that the page cache held right before (None: unknown).
    """
    notes = []
    through = kernel.read_bytes if kernel and kernel.counting else 0
    calls, posix = moved.calls or 0, (backends or {}).get("posix", 0)
    if kernel is not None and not kernel.counting:
        notes.append(f"nvidia-fs is loaded and counts no reads, so it proves nothing: {_ENABLE} (as root)")
    slack = MIB if asked >= _LARGE else MIB // 4  # nvidia-fs counts whole MiB; a process also reads its own /proc
    if through + slack >= _ALL * asked and through > 0 and calls < _NONE * asked + slack:
        return Verdict(GDS_NVFS, True, notes)
    if through > _NONE * asked:
        share = through / asked
        notes.append(f"nvidia-fs carried {share:.1%} of the bytes, reads of the process the rest: not all is GDS")
        return Verdict(f"{COMPAT} in part", False, notes)
    if max(calls, posix) >= _ALL * asked:
        origin = _origin(asked, moved, resident)
        return Verdict(f"{COMPAT}, {origin}", moved.device is not None and origin not in _NOWHERE, notes)
    if (
        cufile is not None
        and cufile.reads > 0
        and cufile.posix == 0
        and cufile.p2pdma
        and ((moved.device or 0) >= _ALL * asked and calls < _NONE * asked)
    ):
        return Verdict(GDS_P2PDMA, True, notes)
    notes.append("no counter saw these bytes: neither nvidia-fs nor read calls nor cuFile's own statistics")
    return Verdict("cuFile, unproven", False, notes)


def _origin(asked: int, moved: Counted, resident: float | None) -> str:
    """Say where bytes that were read by POSIX calls came from: those of holes come from nowhere."""
    if moved.device is None:
        return "from an unknown device"
    least = moved.least or 0
    if least >= _ALL * asked:
        return "from the device"
    if resident is not None and resident < _NONE:
        return _NOWHERE[0] if few(least, asked, resident) else _NOWHERE[1]
    return "from the page cache" if few(least, asked, resident) else "from the device and the page cache"
