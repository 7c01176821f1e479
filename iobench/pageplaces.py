"""The NUMA nodes on which the pages of this process's memory lie, as the kernel tells."""

from __future__ import annotations

import ctypes
import os
import platform
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iobench import syscall

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_MOVE_PAGES = {"x86_64": 279, "aarch64": 239, "riscv64": 239, "ppc64le": 301, "s390x": 310}
_MOST_ASKED = 1 << 16  # addresses per call of move_pages
_SAMPLED = 4096


def nodes(data: NDArray[Any], root: Path = Path("/")) -> Counter[int] | None:
    """Return NUMA node -> pages of a touched array, by move_pages or numa_maps; None where neither tells.

    At most 4,096 pages, evenly spaced, are asked for.
    """
    found = states(data, _SAMPLED)
    told = Counter(int(node) for node in found if node >= 0) if found is not None else None
    return told or numa_maps(data, root)


def states(data: NDArray[Any], most: int = 0) -> NDArray[np.int32] | None:
    """Return what move_pages says of each page of an array: its node, or minus an error; no move is asked for.

    With ``most`` at most so many pages, evenly spaced. None where the system call is not allowed or not known here.
    """
    import numpy as np

    number = _MOVE_PAGES.get(platform.machine())
    if number is None:
        return None
    pages_at = addresses(data)
    step = -(-len(pages_at) // most) if most else 1
    asked = np.arange(pages_at.start, pages_at.stop, pages_at.step * max(step, 1), dtype=np.uint64)
    status = np.full(asked.size, -1, np.int32)
    for start in range(0, asked.size, _MOST_ASKED):
        part, out = asked[start : start + _MOST_ASKED], status[start : start + _MOST_ASKED]
        pages, answers = ctypes.c_void_p(part.ctypes.data), ctypes.c_void_p(out.ctypes.data)
        try:
            syscall.call(number, 0, ctypes.c_ulong(part.size), pages, None, answers, 0)
        except OSError:
            return None
    return status


def addresses(data: NDArray[Any]) -> range:
    """Return the addresses of the pages that an array lies on."""
    page = os.sysconf("SC_PAGE_SIZE")
    return range(data.ctypes.data // page * page, data.ctypes.data + data.nbytes, page)


def numa_maps(data: NDArray[Any], root: Path = Path("/")) -> Counter[int] | None:
    """Return node -> pages of the mapping that holds an array, by /proc/self/numa_maps; None where it tells nothing."""
    try:
        text = (root / "proc/self/numa_maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return mapping(text, data.ctypes.data)


def mapping(text: str, address: int) -> Counter[int] | None:
    """Return node -> pages of the mapping in ``text`` (/proc/self/numa_maps) that holds ``address``."""
    before: str | None = None
    for line in text.splitlines():
        start, _, rest = line.partition(" ")
        if int(start, 16) > address:
            break
        before = rest
    found = Counter({int(node): int(count) for node, count in re.findall(r"\bN(\d+)=(\d+)", before or "")})
    return found or None
