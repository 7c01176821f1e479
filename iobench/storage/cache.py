"""The page cache of a file: throw it out, and prove that it is out (or in).

"Cold" here means data-cold: the file's pages are gone from this machine's page cache. Directory entries and
inodes stay unless they are dropped too (metadata-cold, which needs root), and so does any cache below: a disk's, a
hypervisor's, a file server's.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from pathlib import Path

from iobench import syscall
from iobench.errors import IobenchError, Unavailable
from iobench.storage.filesystem import filesystem_of

_SYS_CACHESTAT = 451  # the same number on every architecture; Linux 6.5
_TRIES = 3
COLD_FRACTION = 0.01  # at most this part of a cold file may be in the cache
WARM_FRACTION = 0.999  # at least this part of a warm file must be
_PIECE = 8 << 20
_FEW = 1000  # directory entries: what others open meanwhile may be as many
_FORBIDDEN = "the kernel tells what the page cache holds of a file only to who may write it: run as the file's owner"


class ResidencyUnknown(Unavailable):
    """Neither cachestat nor mincore can tell what the page cache holds."""


def resident_fraction(fd: int) -> float:
    """Return the part of the file in the page cache (0..1); 1.0 for an empty file.

    Raises ResidencyUnknown where the kernel doesn't tell.
    """
    import numpy as np

    nbytes = os.fstat(fd).st_size
    pages = -(-nbytes // mmap.PAGESIZE)
    if not pages:
        return 1.0
    cached = _cachestat(fd)
    if cached is None:
        cached = int(np.count_nonzero(np.frombuffer(_mincore(fd, nbytes), np.uint8) & 1))
    return min(cached / pages, 1.0)


def residency_source(fd: int) -> str:
    """Return which call answers here: "cachestat" or "mincore"."""
    return "mincore" if _cachestat(fd) is None else "cachestat"


def evict(fds: list[int]) -> float:
    """Throw the files out of the page cache and return the largest part still in it.

    Raises IobenchError where more than COLD_FRACTION stays: such a file must not be called cold.
    """
    for _ in range(_TRIES):
        for fd in fds:
            os.fdatasync(fd)  # dirty pages can't be dropped
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        left = max(resident_fraction(fd) for fd in fds)
        if left <= COLD_FRACTION:
            return left
    raise IobenchError(
        f"not cold: {left:.1%} of the file stays in the page cache after posix_fadvise(DONTNEED); "
        "another process maps it, or its filesystem keeps it in memory"
    )


def forget_metadata(root: str | Path = "/") -> tuple[int, int]:
    """Drop the directory entries and inodes that nobody uses, the whole machine's; return how many before and after.

    Writes 2 to vm.drop_caches: pages of files stay, everybody's. The blocks that hold inodes may stay in the block
    device's own cache. No file may be open, or its entry stays. Unavailable without the right to it.
    """
    state = Path(root) / "proc/sys/fs/dentry-state"
    before = _unused(state)
    try:
        (Path(root) / "proc/sys/vm/drop_caches").write_text("2\n")
    except OSError as error:
        raise Unavailable(
            f"metadata-cold needs the right to drop directory entries and inodes (vm.drop_caches: {error.strerror}): "
            "run it as root, or leave -a cold=metadata out"
        ) from error
    after = _unused(state)
    if before > _FEW and after >= before:
        raise IobenchError(f"not metadata-cold: {after} directory entries are cached after dropping {before}")
    return before, after


def _unused(state: Path) -> int:
    """Return the cached directory entries that nobody uses (Documentation/admin-guide/sysctl/fs.rst)."""
    return int(state.read_text().split()[1])


def warm(fds: list[int]) -> float:
    """Read what is missing in the page cache and return the smallest part that is in it.

    Raises IobenchError where less than WARM_FRACTION can be kept: memory is too short for a warm measurement.
    """
    least = min(resident_fraction(fd) for fd in fds)
    for _ in range(_TRIES):
        if least >= WARM_FRACTION:
            return least
        for fd in fds:
            read_through(fd)
        least = min(resident_fraction(fd) for fd in fds)
    if least >= WARM_FRACTION:
        return least
    raise IobenchError(f"not warm: only {least:.1%} of the file stays in the page cache; free some memory")


def read_through(fd: int) -> None:
    """Read the whole file once through the page cache."""
    buffer, at = bytearray(_PIECE), 0
    while moved := os.preadv(fd, [buffer], at):
        at += moved


def _cachestat(fd: int) -> int | None:
    """Return the file's pages in the cache by cachestat(2); None where the kernel lacks it or it looks elsewhere.

    On overlay it asks the upper inode, which holds no pages, and calls every file cold; a mapping leads to the real
    one.
    """
    if filesystem_of(f"/proc/self/fd/{fd}").stacked:
        return None
    span = (ctypes.c_uint64 * 2)(0, 0)  # offset, length; 0 means to the end
    out = (ctypes.c_uint64 * 5)()  # nr_cache first
    try:
        syscall.call(_SYS_CACHESTAT, ctypes.c_uint(fd), ctypes.byref(span), ctypes.byref(out), ctypes.c_uint(0))
    except OSError as error:
        if error.errno == errno.EPERM:
            raise ResidencyUnknown(_FORBIDDEN) from error
        return None
    return int(out[0])


def _mincore(fd: int, nbytes: int) -> bytes:
    """Return one byte per page, odd where the page is in the cache, by mincore(2) over a mapping.

    Since Linux 5.2 it calls every page of a file that this user may not write resident: then it proves nothing.
    """
    if not os.access(f"/proc/self/fd/{fd}", os.W_OK):
        raise ResidencyUnknown(_FORBIDDEN)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    address = libc.mmap(None, nbytes, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        raise ResidencyUnknown(f"cannot map the file to ask for its pages: {os.strerror(ctypes.get_errno())}")
    try:
        pages = (ctypes.c_ubyte * -(-nbytes // mmap.PAGESIZE))()
        if libc.mincore(address, nbytes, pages):
            raise ResidencyUnknown(f"mincore: {os.strerror(ctypes.get_errno())}")
        return bytes(pages)
    finally:
        libc.munmap(address, nbytes)
