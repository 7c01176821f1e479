"""Buffers: what is asked for, what the kernel says it gave, and how much there is to have."""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path

import numpy as np
import pytest
from iobench import hostmem
from iobench.errors import Unavailable
from iobench.units import GIB, KIB, MIB

SMAPS = """\
7f0000000000-7f0000400000 rw-p 00000000 00:00 0
Size:               4096 kB
KernelPageSize:        4 kB
Rss:                4096 kB
AnonHugePages:      2048 kB
VmFlags: rd wr mr mw me ac hg
7f0000400000-7f0000600000 rw-p 00000000 00:00 0                          [anon:x]
Size:               2048 kB
KernelPageSize:     2048 kB
Rss:                   0 kB
AnonHugePages:         0 kB
"""


def _tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def test_base_pages_are_given_and_read_back() -> None:
    with hostmem.buffer(5 * MIB, hostmem.BASE) as area:
        assert area.data.nbytes == 5 * MIB
        assert area.address % hostmem.huge_page_nbytes() == 0
        area.data[:] = 1
        pages = hostmem.inspect(area)
        if pages.kind() is None:
            pytest.skip("/proc/self/smaps does not tell of huge pages here")
        assert pages.kind() == "base"
        hostmem.require(area, pages)


def test_huge_pages_are_given_and_read_back_or_refused_with_the_reason() -> None:
    with hostmem.buffer(8 * MIB, hostmem.HUGE) as area:
        area.data[:] = 1
        pages = hostmem.inspect(area)
        if pages.kind() == "huge":
            hostmem.require(area, pages)
            assert pages.page_nbytes > os.sysconf("SC_PAGE_SIZE")
        elif pages.kind() is not None:
            with pytest.raises(Unavailable, match="transparent_hugepage"):
                hostmem.require(area, pages)


def test_pages_of_the_wrong_kind_are_refused(tmp_path: Path) -> None:
    root = _tree(tmp_path, {"sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]\n"})
    huge = hostmem.Buffer(np.zeros(1, np.uint8), "huge", False)
    base = hostmem.Buffer(np.zeros(1, np.uint8), "base", False)
    with pytest.raises(Unavailable, match=r"only 50% .*enabled is never"):
        hostmem.require(huge, hostmem.Pages(4096, 0.5), root)
    with pytest.raises(Unavailable, match="base pages were asked for"):
        hostmem.require(base, hostmem.Pages(4096, 0.01), root)
    hostmem.require(huge, hostmem.Pages(4096, None), root)  # unknown is unproven, not wrong


@pytest.mark.parametrize(
    ("fraction", "kind"), [(0.0, "base"), (1.0, "huge"), (0.96, "huge"), (0.5, "mixed"), (0.001, "mixed"), (None, None)]
)
def test_kinds(fraction: float | None, kind: str | None) -> None:
    assert hostmem.Pages(4096, fraction).kind() == kind


def test_smaps_entry_is_the_one_that_holds_the_address() -> None:
    entry = hostmem.smaps_entry(SMAPS, 0x7F0000000000 + 5000)
    assert (entry["Rss"], entry["AnonHugePages"], entry["KernelPageSize"]) == (4 * MIB, 2 * MIB, 4 * KIB)
    assert hostmem.smaps_entry(SMAPS, 0x7F0000400000)["KernelPageSize"] == 2 * MIB
    assert hostmem.smaps_entry(SMAPS, 0x7F0000600000) == {}
    assert hostmem.smaps_entry("", 1) == {}


def test_unknown_pages_stay_unknown(tmp_path: Path) -> None:
    area = hostmem.Buffer(np.zeros(4096, np.uint8), "huge", False)
    assert hostmem.inspect(area, tmp_path).huge_fraction is None


def test_meminfo_counts_and_sizes(tmp_path: Path) -> None:
    lines = (
        "MemAvailable: 1000 kB",
        "HugePages_Free: 6",
        "HugePages_Rsvd: 2",
        "Hugepagesize: 2048 kB",
        "Active(anon): 8 kB",
    )
    text = "".join(f"{line}\n" for line in lines)
    root = _tree(tmp_path, {"proc/meminfo": text})
    assert hostmem.meminfo(root)["Active"] == 8 * KIB
    assert hostmem.available_nbytes(root) == 1000 * KIB
    assert hostmem.free_reserved_nbytes(root) == 4 * 2 * MIB


def test_nothing_known_about_memory(tmp_path: Path) -> None:
    assert hostmem.available_nbytes(tmp_path) is None
    assert hostmem.free_reserved_nbytes(tmp_path) == 0


def test_control_group_v2_limits_of_a_parent(tmp_path: Path) -> None:
    root = _tree(
        tmp_path,
        {
            "proc/meminfo": f"MemAvailable: {8 * MIB} kB\n",
            "proc/self/cgroup": "0::/a/b\n",
            "sys/fs/cgroup/a/b/memory.max": "max\n",
            "sys/fs/cgroup/a/b/memory.current": "10\n",
            "sys/fs/cgroup/a/memory.max": f"{2 * GIB}\n",
            "sys/fs/cgroup/a/memory.current": f"{GIB}\n",
            "sys/fs/cgroup/a/memory.stat": f"anon 5\ninactive_file {256 * MIB}\nactive_file {128 * MIB}\n"
            f"slab {9 * GIB}\nslab_reclaimable {64 * MIB}\nslab_unreclaimable {8 * GIB}\n",
        },
    )
    assert hostmem.available_nbytes(root) == GIB + (256 + 128 + 64) * MIB


def test_control_group_inside_a_container(tmp_path: Path) -> None:
    """The path in /proc/self/cgroup is the host's; what is mounted is the group itself."""
    root = _tree(
        tmp_path,
        {
            "proc/meminfo": f"MemAvailable: {8 * MIB} kB\n",
            "proc/self/cgroup": "0::/../../kubepods/pod1\n",
            "sys/fs/cgroup/memory.max": f"{GIB}\n",
            "sys/fs/cgroup/memory.current": f"{GIB // 2}\n",
        },
    )
    assert hostmem.available_nbytes(root) == GIB // 2


def test_control_group_v1(tmp_path: Path) -> None:
    root = _tree(
        tmp_path,
        {
            "proc/meminfo": f"MemAvailable: {8 * MIB} kB\n",
            "proc/self/cgroup": "5:cpu,memory:/job\n0::/\n",
            "sys/fs/cgroup/memory/job/memory.limit_in_bytes": f"{GIB}\n",
            "sys/fs/cgroup/memory/job/memory.usage_in_bytes": f"{GIB + 5}\n",
        },
    )
    assert hostmem.available_nbytes(root) == 0
    stat = f"inactive_file 7\ntotal_inactive_file {32 * MIB}\ntotal_active_file {16 * MIB}\n"
    _tree(tmp_path, {"sys/fs/cgroup/memory/job/memory.stat": stat})
    assert hostmem.available_nbytes(root) == 48 * MIB - 5


def test_more_than_half_of_the_memory_is_unavailable(tmp_path: Path) -> None:
    root = _tree(tmp_path, {"proc/meminfo": "MemAvailable: 1024 kB\n"})
    with pytest.raises(Unavailable, match="more than half of the 1 MiB"), hostmem.buffer(600 * KIB, root=root):
        pass
    with hostmem.buffer(500 * KIB, root=root) as area:
        assert area.data.nbytes == 500 * KIB


def test_an_empty_pool_falls_back_to_transparent_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "MemAvailable: 67108864 kB\nHugePages_Free: 999999\nHugePages_Rsvd: 0\nHugepagesize: 2048 kB\n"
    root = _tree(tmp_path, {"proc/meminfo": text})
    whole, asked = mmap.mmap, []

    def refuses(number: int, nbytes: int, flags: int) -> mmap.mmap:
        asked.append(bool(flags & hostmem._MAP_HUGETLB))
        if asked[-1]:
            raise OSError(errno.ENOMEM, "the pool is empty by now")
        return whole(number, nbytes, flags=flags)

    monkeypatch.setattr(hostmem.mmap, "mmap", refuses)
    with hostmem.buffer(4 * MIB, hostmem.HUGE, root) as area:
        assert not area.reserved
        area.data[::4096] = 1
    assert asked == [True, False]
