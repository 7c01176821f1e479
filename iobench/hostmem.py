"""Buffers of host memory whose page size is asked for, and what the kernel really gave."""

from __future__ import annotations

import contextlib
import mmap
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iobench import mempolicy
from iobench.errors import Unavailable
from iobench.units import KIB, MIB, format_size

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from iobench.mempolicy import Policy

BASE, HUGE = "base", "huge"
MOST_OF_MEMORY = 0.5  # a buffer takes at most this part of what is available
_ENOUGH_HUGE = 0.95  # the part of a buffer that must lie on huge pages to call it so
_MAP_HUGETLB = 0x40000
_THP = "sys/kernel/mm/transparent_hugepage"
_RECLAIMABLE = "inactive_file|active_file|slab_reclaimable"  # of a control group, as MemAvailable has it of a machine


@dataclass(frozen=True)
class Buffer:
    """Anonymous private memory: ``data`` (uint8) starts on a huge page's boundary and is not yet touched."""

    data: NDArray[np.uint8]
    pages: str
    reserved: bool  # from the pool of reserved huge pages (MAP_HUGETLB)

    @property
    def address(self) -> int:
        return int(self.data.ctypes.data)


@dataclass(frozen=True)
class Pages:
    """What the kernel says a touched buffer lies on; None where it does not say."""

    page_nbytes: int
    huge_fraction: float | None

    def kind(self) -> str | None:
        """Return "base", "huge", "mixed", or None where unknown."""
        if self.huge_fraction is None:
            return None
        if self.huge_fraction >= _ENOUGH_HUGE:
            return HUGE
        return BASE if self.huge_fraction == 0.0 else "mixed"

    def evidence(self) -> dict[str, Any]:
        return {"page_nbytes": self.page_nbytes, "huge_fraction": self.huge_fraction}


@contextlib.contextmanager
def buffer(nbytes: int, pages: str = BASE, root: Path = Path("/"), policy: Policy | None = None) -> Iterator[Buffer]:
    """Map ``nbytes`` for ``pages`` "base" or "huge"; nothing is touched, so the first to write places it.

    With ``policy`` its nodes do, whoever writes. Reserved huge pages are used where enough are free and no policy
    is asked for, transparent ones else. Raises Unavailable where the memory is not there.
    """
    _check_room(nbytes, root)
    huge = huge_page_nbytes(root)
    length = -(-max(nbytes, 1) // huge) * huge
    area, reserved = _map(length, pages, huge, root, pool=policy is None)
    data = _aligned(area, nbytes, huge)
    if policy is not None:
        # whole huge pages: the mapping goes on that far, and no page of it is shared with other memory
        mempolicy.apply(int(data.ctypes.data), length, policy, str(root))
    yield Buffer(data, pages, reserved)
    del data
    # Closing the map while an array still looks into it is refused; it goes when the last one does.
    with contextlib.suppress(BufferError):
        area.close()


def _map(length: int, pages: str, huge: int, root: Path, pool: bool = True) -> tuple[mmap.mmap, bool]:
    """Map memory, with ``pool`` from the reserved huge pages first: those of one node may be too few for a policy."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    if pool and pages == HUGE and free_reserved_nbytes(root) >= length:
        # The pool may be empty by now, or not ours to use: transparent huge pages are next.
        with contextlib.suppress(OSError):
            return mmap.mmap(-1, length, flags=flags | _MAP_HUGETLB), True
    try:
        area = mmap.mmap(-1, length + huge, flags=flags)
    except OSError as error:
        raise Unavailable(f"no {format_size(length)} of memory to be had: {error.strerror}") from error
    # A kernel without transparent huge pages refuses both: then base pages are all there is.
    with contextlib.suppress(OSError):
        area.madvise(mmap.MADV_HUGEPAGE if pages == HUGE else mmap.MADV_NOHUGEPAGE)
    return area, False


def _aligned(area: mmap.mmap, nbytes: int, huge: int) -> NDArray[np.uint8]:
    import numpy as np

    whole = np.frombuffer(area, np.uint8)
    skip = -int(whole.ctypes.data) % huge
    return whole[skip : skip + nbytes]


def _check_room(nbytes: int, root: Path) -> None:
    room = available_nbytes(root)
    if room is not None and nbytes > room * MOST_OF_MEMORY:
        raise Unavailable(
            f"{format_size(nbytes)} is more than half of the {format_size(room)} of memory available: "
            "ask for less with -a nbytes"
        )


def huge_page_nbytes(root: Path = Path("/")) -> int:
    """Return the size of a transparent huge page; 2 MiB where the kernel does not say."""
    text = _read(root / _THP / "hpage_pmd_size")
    return int(text) if text and text.strip().isdigit() else 2 * MIB


def free_reserved_nbytes(root: Path = Path("/")) -> int:
    """Return the bytes of reserved huge pages of the default size that are free and not promised."""
    info = meminfo(root)
    free = info.get("HugePages_Free", 0) - info.get("HugePages_Rsvd", 0)
    return max(free, 0) * info.get("Hugepagesize", 0)


def available_nbytes(root: Path = Path("/")) -> int | None:
    """Return the bytes this process may still take: the machine's or its control groups', None if unknown."""
    rooms = [meminfo(root).get("MemAvailable"), *_cgroup_rooms(root)]
    known = [room for room in rooms if room is not None]
    return max(min(known), 0) if known else None


def meminfo(root: Path = Path("/")) -> dict[str, int]:
    """Return /proc/meminfo: bytes where it says kB, plain counts else."""
    found = re.findall(r"^(\w+)(?:\(\w+\))?:\s+(\d+)( kB)?$", _read(root / "proc/meminfo") or "", re.MULTILINE)
    return {name: int(value) * (KIB if unit else 1) for name, value, unit in found}


def _cgroup_rooms(root: Path) -> Iterator[int | None]:
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        number, controllers, group = line.split(":", 2)
        if number == "0" and not controllers:
            yield from _rooms(root / "sys/fs/cgroup", group, "memory.max", "memory.current", _RECLAIMABLE)
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
            yield from _rooms(root / "sys/fs/cgroup/memory", group, *names, f"total_(?:{_RECLAIMABLE})")


def _rooms(top: Path, group: str, limit: str, usage: str, reclaimable: str) -> Iterator[int | None]:
    """Yield the room below each limit from the process's group up to the top; what the kernel can drop is room."""
    folder = top / group.lstrip("/")
    # Inside a container the group's path may not exist: the mounted top is the group itself.
    for place in (folder, *folder.parents) if folder.is_dir() else (top,):
        most, used = _read(place / limit), _read(place / usage)
        if most and used and most.strip().isdigit():
            cached = re.findall(rf"^(?:{reclaimable}) (\d+)$", _read(place / "memory.stat") or "", re.MULTILINE)
            yield int(most) - int(used) + sum(map(int, cached))
        if place == top:
            return


def inspect(area: Buffer, root: Path = Path("/")) -> Pages:
    """Return the pages of a touched buffer, read back from /proc/self/smaps."""
    entry = smaps_entry(_read(root / "proc/self/smaps") or "", area.address)
    base = os.sysconf("SC_PAGE_SIZE")
    if area.reserved:
        size = entry.get("KernelPageSize", 0)
        return Pages(size or base, 1.0 if size > base else None)
    if "AnonHugePages" not in entry or not entry.get("Rss"):
        return Pages(base, None)
    fraction = entry["AnonHugePages"] / entry["Rss"]
    return Pages(huge_page_nbytes(root) if fraction >= _ENOUGH_HUGE else base, fraction)


def require(area: Buffer, pages: Pages, root: Path = Path("/")) -> None:
    """Raise Unavailable where a touched buffer does not lie on the pages that were asked for."""
    kind = pages.kind()
    if kind in (None, area.pages):
        return
    if area.pages == BASE:
        raise Unavailable("the kernel gave huge pages although base pages were asked for: transparent_hugepage/enabled")
    setting = re.search(r"\[(\w+)\]", _read(root / _THP / "enabled") or "")
    raise Unavailable(
        f"only {pages.huge_fraction or 0:.0%} of the buffer got huge pages "
        f"(transparent_hugepage/enabled is {setting[1] if setting else 'missing'}, "
        f"{format_size(free_reserved_nbytes(root))} reserved): enable madvise or reserve huge pages"
    )


def smaps_entry(text: str, address: int) -> dict[str, int]:
    """Return the counters (bytes) of the mapping in ``text`` (/proc/self/smaps) that holds ``address``."""
    inside = False
    entry: dict[str, int] = {}
    for line in text.splitlines():
        span = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
        if span:
            if inside:
                break
            inside = int(span[1], 16) <= address < int(span[2], 16)
        elif inside and (counter := re.match(r"(\w+):\s+(\d+) kB", line)):
            entry[counter[1]] = int(counter[2]) * KIB
    return entry


def _read(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
