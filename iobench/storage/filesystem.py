"""What a filesystem says about a file: its type, its mount, and what O_DIRECT needs there.

An O_DIRECT open that succeeds proves nothing: tmpfs takes it since Linux 6.x and serves memory. So the type
is asked first (statfs), then the alignment (statx DIOALIGN, Linux 6.1), then a trial read decides.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import re
from dataclasses import dataclass
from pathlib import Path

from iobench.errors import Unavailable

NOT_STORAGE = "not a storage measurement"

_TYPES = {  # f_type of statfs(2), include/uapi/linux/magic.h
    0x01021994: "tmpfs", 0x858458F6: "ramfs", 0x958458F6: "hugetlbfs", 0x794C7630: "overlay", 0xEF53: "ext4",
    0x58465342: "xfs", 0x9123683E: "btrfs", 0xF2F52010: "f2fs", 0x2FC12FC1: "zfs", 0x6969: "nfs",
    0xFF534D42: "cifs", 0xFE534D42: "smb", 0x00C36400: "ceph", 0x0BD00BD0: "lustre", 0x47504653: "gpfs",
    0x19830326: "beegfs", 0x01021997: "9p", 0x65735546: "fuse", 0x73717368: "squashfs", 0x9FA0: "proc",
    0x62656572: "sysfs",
}  # fmt: skip
_IN_MEMORY = {"tmpfs", "ramfs", "hugetlbfs", "proc", "sysfs"}
_STACKED = {"overlay", "squashfs"}
_REMOTE = {"nfs", "cifs", "smb", "ceph", "lustre", "gpfs", "beegfs", "9p", "fuse"}

STATX_DIOALIGN = 0x2000
_AT_EMPTY_PATH = 0x1000
_TRIAL_ALIGNMENTS = (512, 4096)


@dataclass(frozen=True)
class Filesystem:
    """The type that holds a file: name, and where its bytes are in the end."""

    name: str
    magic: int = 0

    @property
    def in_memory(self) -> bool:
        return self.name in _IN_MEMORY

    @property
    def stacked(self) -> bool:
        return self.name in _STACKED

    @property
    def remote(self) -> bool:
        return self.name in _REMOTE

    @property
    def is_storage(self) -> bool:
        """False where a read from it says nothing about a storage device (memory, a stack of filesystems)."""
        return not (self.in_memory or self.stacked)


@dataclass(frozen=True)
class DirectAccess:
    """What O_DIRECT needs on a file, or why it can't be had. ``source`` says who told."""

    alignment: int
    source: str
    reason: str = ""

    @property
    def possible(self) -> bool:
        return not self.reason


@dataclass(frozen=True)
class Mount:
    """One line of /proc/self/mountinfo."""

    point: str
    fstype: str
    source: str
    device: str  # "major:minor"


def filesystem_of(path: str | Path) -> Filesystem:
    """Return the filesystem of ``path`` by its magic number; the mount's name where that is unknown."""
    magic = _magic(path)
    if magic in _TYPES:
        return Filesystem(_TYPES[magic], magic)
    mount = mount_of(path)
    return Filesystem(mount.fstype if mount else f"type {magic:#x}", magic)


def mount_of(path: str | Path, root: str | Path = "/") -> Mount | None:
    """Return the mount that ``path`` is below: the longest mount point, the last where several are stacked."""
    real = os.path.realpath(path)
    best: Mount | None = None
    for mount in mounts(root):
        inside = real == mount.point or real.startswith(mount.point.rstrip("/") + "/")
        if inside and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def mounts(root: str | Path = "/") -> list[Mount]:
    """Return the lines of mountinfo below ``root``; none where it can't be read."""
    try:
        text = (Path(root) / "proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return []
    return [mount for line in text.splitlines() if (mount := _mount(line))]


def _mount(line: str) -> Mount | None:
    fields, dash, rest = line.partition(" - ")
    left, right = fields.split(" "), rest.split(" ")
    if not dash or len(left) < 6 or len(right) < 2:
        return None
    return Mount(_plain(left[4]), right[0], _plain(right[1]), left[2])


def _plain(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def direct_access(path: str | Path) -> DirectAccess:
    """Return the alignment that O_DIRECT reads of ``path`` need, in bytes, or the reason why there are none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError as error:
        return judge(filesystem_of(path), error.errno, 0, 0, 0)
    try:
        mask, memory, offset = _dio_align(fd)
        access = judge(filesystem_of(path), 0, mask, memory, offset)
        return access if access.reason or access.alignment else _trial(fd)
    finally:
        os.close(fd)


def judge(filesystem: Filesystem, open_errno: int | None, mask: int, memory: int, offset: int) -> DirectAccess:
    """Judge what the open and statx said: pure. Alignment 0 without a reason means that a trial must decide."""
    if open_errno:
        name = os.strerror(open_errno)
        why = f"{filesystem.name} refuses O_DIRECT ({name})"
        in_memory = filesystem.in_memory and open_errno == errno.EINVAL
        return DirectAccess(0, "open", f"{why}: {NOT_STORAGE}" if in_memory else why)
    if mask & STATX_DIOALIGN:
        if not memory or not offset:
            return DirectAccess(0, "statx", f"{filesystem.name} has no O_DIRECT for this file (statx DIOALIGN is 0)")
        return DirectAccess(max(memory, offset), "statx DIOALIGN")
    return DirectAccess(0, "")


def _trial(fd: int) -> DirectAccess:
    with mmap.mmap(-1, 8192) as page:
        view = memoryview(page)
        try:
            for alignment in _TRIAL_ALIGNMENTS:
                if _reads(fd, view[alignment : 2 * alignment]):
                    return DirectAccess(alignment, "trial read")
        finally:
            view.release()
    return DirectAccess(0, "trial read", "O_DIRECT opens but its reads fail (EINVAL)")


def _reads(fd: int, view: memoryview) -> bool:
    try:
        with view:
            os.preadv(fd, [view], 0)
    except OSError:
        return False
    return True


def _magic(path: str | Path) -> int:
    buffer = (ctypes.c_long * 64)()  # struct statfs begins with f_type, a long, on every 64-bit Linux
    if _libc().statfs(os.fsencode(path), buffer):
        number = ctypes.get_errno()
        raise Unavailable(f"cannot ask for the filesystem of {path}: {os.strerror(number)}")
    return int(buffer[0]) & 0xFFFFFFFF


def _dio_align(fd: int) -> tuple[int, int, int]:
    """Return (stx_mask, dio_mem_align, dio_offset_align); zeros where statx is missing or fails."""
    libc = _libc()
    buffer = (ctypes.c_uint32 * 64)()  # struct statx is 256 bytes; the three stand at 0, 152 and 156
    if not hasattr(libc, "statx") or libc.statx(fd, b"", _AT_EMPTY_PATH, STATX_DIOALIGN, buffer):
        return 0, 0, 0
    return int(buffer[0]), int(buffer[38]), int(buffer[39])


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
