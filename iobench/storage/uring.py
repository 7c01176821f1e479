"""Reads in flight through io_uring, from Python: one ring per thread, as many reads under way as it has slots.

Only what reading needs: IORING_OP_READ, or IORING_OP_READ_FIXED into buffers that are registered once (their pages
need not be pinned for every read). Sources: io_uring(7), io_uring_setup(2), io_uring_enter(2), io_uring_register(2).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import platform
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

from iobench import syscall
from iobench.errors import Unavailable

_SETUP, _ENTER, _REGISTER = 425, 426, 427  # the same on every architecture
_GETEVENTS, _REGISTER_BUFFERS = 1, 0
_READ_FIXED, _READ = 4, 22
_AT_SQES = 0x10000000
_SINGLE_MMAP = 1  # both rings lie in one mapping: Linux 5.4
_SQE, _CQE = struct.Struct("<8Q"), struct.Struct("<Qii")
_PARAMS = 30  # 32-bit words of struct io_uring_params
_SYSCTL = "proc/sys/kernel/io_uring_disabled"


class Uring:
    """An io_uring for one thread; ``registered`` says whether the kernel keeps its buffers pinned.

    ``buffers`` are (address, bytes) of memory that reads go to. Raises Unavailable where there is no io_uring.
    """

    def __init__(self, depth: int, buffers: Sequence[tuple[int, int]] = ()) -> None:
        _supported()
        params = (ctypes.c_uint32 * _PARAMS)()
        self._fd = syscall.call(_SETUP, ctypes.c_uint(max(depth, 1)), params)
        words = list(params)
        self._entries, self._sq, self._cq = words[0], words[10:17], words[20:26]
        ring = max(self._sq[6] + 4 * words[0], self._cq[5] + _CQE.size * words[1])
        self._maps = contextlib.ExitStack()
        self._maps.callback(os.close, self._fd)
        try:
            if not words[5] & _SINGLE_MMAP:
                raise Unavailable("this kernel's io_uring is older than Linux 5.4: -a engine=preadv")
            self._ring = self._maps.enter_context(mmap.mmap(self._fd, ring, mmap.MAP_SHARED))
            self._sqes = self._maps.enter_context(
                mmap.mmap(self._fd, words[0] * _SQE.size, mmap.MAP_SHARED, offset=_AT_SQES)
            )
            self._index = self._registered_by_address(buffers)
        except BaseException:
            self._maps.close()
            raise

    @property
    def registered(self) -> bool:
        return bool(self._index)

    def read(self, fd: int, address: int, nbytes: int, offset: int, token: int) -> None:
        """Begin to read ``nbytes`` of a file; ``token`` comes back when it is done."""
        at = self._word(self._sq[1])
        slot = at & self._word(self._sq[2])
        buffer = self._index.get(address)
        code = _READ if buffer is None else _READ_FIXED
        self._sqes[slot * _SQE.size : (slot + 1) * _SQE.size] = _SQE.pack(
            code | fd << 32, offset, address, nbytes, token, buffer or 0, 0, 0
        )
        self._put(self._sq[6] + 4 * slot, slot)
        self._put(self._sq[1], at + 1)
        self._enter(1, 0)

    def done(self) -> list[tuple[int, int]]:
        """Wait for one read at least; return the token of each that is done with its bytes, or with -errno."""
        head = self._word(self._cq[0])
        if head == self._word(self._cq[1]):
            self._enter(0, 1)
        found, tail, mask = [], self._word(self._cq[1]), self._word(self._cq[2])
        while head != tail:
            token, result, _ = _CQE.unpack_from(self._ring, self._cq[5] + (head & mask) * _CQE.size)
            found.append((token, result))
            head = head + 1 & 0xFFFFFFFF
        self._put(self._cq[0], head)
        return found

    def close(self) -> None:
        """Give the ring back; no read may be in flight."""
        self._maps.close()

    def _registered_by_address(self, buffers: Sequence[tuple[int, int]]) -> dict[int, int]:
        """Return the index of each buffer that the kernel keeps pinned; none where it allows none (RLIMIT_MEMLOCK)."""
        if not buffers:
            return {}
        vectors = (ctypes.c_uint64 * (2 * len(buffers)))(*(word for buffer in buffers for word in buffer))
        try:
            syscall.call(_REGISTER, self._fd, _REGISTER_BUFFERS, vectors, len(buffers))
        except OSError:
            return {}
        return {address: index for index, (address, _) in enumerate(buffers)}

    def _enter(self, submit: int, wait: int) -> None:
        while True:
            try:
                syscall.call(_ENTER, self._fd, submit, wait, _GETEVENTS if wait else 0, None, ctypes.c_size_t(0))
            except InterruptedError:
                continue
            return

    def _word(self, at: int) -> int:
        return int.from_bytes(self._ring[at : at + 4], "little")

    def _put(self, at: int, value: int) -> None:
        self._ring[at : at + 4] = (value & 0xFFFFFFFF).to_bytes(4, "little")


def _supported() -> None:
    """Raise Unavailable where io_uring can't be had, with the reason.

    Python has no memory barriers, so this needs a processor that keeps the order of loads and of stores.
    """
    if platform.machine() != "x86_64":
        raise Unavailable(f"io_uring is used on x86-64 only, this is {platform.machine()}: -a engine=preadv")


@contextlib.contextmanager
def opened(depth: int, buffers: Sequence[tuple[int, int]] = (), root: str | Path = "/") -> Iterator[Uring]:
    """Yield a ring; Unavailable, with what to do, where the kernel or a container forbids it."""
    try:
        made = Uring(depth, buffers)
    except OSError as error:
        raise Unavailable(_why(error, root)) from error
    try:
        yield made
    finally:
        made.close()


def _why(error: OSError, root: str | Path) -> str:
    if error.errno == errno.ENOSYS:
        return "this kernel has no io_uring (or a container hides it): -a engine=aio or preadv"
    if error.errno != errno.EPERM:
        return f"io_uring does not start here ({error.strerror}): -a engine=aio or preadv"
    try:
        setting = (Path(root) / _SYSCTL).read_text().strip()
    except OSError:
        setting = "0"
    by = f"kernel.io_uring_disabled is {setting}" if setting != "0" else "a container's seccomp profile, it seems"
    return f"io_uring is forbidden here ({by}): -a engine=aio or preadv"
