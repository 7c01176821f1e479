"""Reads in flight through Linux's native asynchronous I/O (io_submit), which containers allow where io_uring is not.

It is asynchronous for O_DIRECT only. Source: io_setup(2), io_submit(2), io_getevents(2), include/uapi/linux/aio_abi.h.
"""

from __future__ import annotations

import contextlib
import ctypes
import platform
import struct
from collections.abc import Iterator, Sequence

from iobench import syscall
from iobench.errors import Unavailable

_NUMBERS = {  # of io_setup, io_destroy, io_submit, io_getevents
    "x86_64": (206, 207, 209, 208),
    "aarch64": (0, 1, 2, 4),
    "riscv64": (0, 1, 2, 4),
}
_PREAD = 0
_IOCB, _EVENT = struct.Struct("<QIIHhIQQqQII"), struct.Struct("<QQqq")


class Aio:
    """A context for one thread's reads. Raises Unavailable on a processor whose system calls are not known here."""

    registered = False

    def __init__(self, depth: int) -> None:
        found = _NUMBERS.get(platform.machine())
        if found is None:
            raise Unavailable(f"native AIO is not known on {platform.machine()} here: -a engine=preadv")
        self._setup, self._destroy, self._submit, self._getevents = found
        self._context = ctypes.c_ulong(0)
        syscall.call(self._setup, ctypes.c_uint(max(depth, 1)), ctypes.byref(self._context))
        self._events = ctypes.create_string_buffer(_EVENT.size * max(depth, 1))
        self._depth = max(depth, 1)

    def read(self, fd: int, address: int, nbytes: int, offset: int, token: int) -> None:
        """Begin to read ``nbytes`` of a file; ``token`` comes back when it is done."""
        block = ctypes.create_string_buffer(
            _IOCB.pack(token, 0, 0, _PREAD, 0, fd, address, nbytes, offset, 0, 0, 0), _IOCB.size
        )
        blocks = (ctypes.c_void_p * 1)(ctypes.addressof(block))
        syscall.call(self._submit, self._context, ctypes.c_long(1), blocks)  # copied when it returns

    def done(self) -> list[tuple[int, int]]:
        """Wait for one read at least; return the token of each that is done with its bytes, or with -errno."""
        while True:
            try:
                count = syscall.call(
                    self._getevents, self._context, ctypes.c_long(1), ctypes.c_long(self._depth), self._events, None
                )
            except InterruptedError:
                continue
            events = (_EVENT.unpack_from(self._events, number * _EVENT.size) for number in range(count))
            return [(token, result) for token, _, result, _ in events]

    def close(self) -> None:
        """Give the context back; no read may be in flight."""
        syscall.call(self._destroy, self._context)


@contextlib.contextmanager
def opened(depth: int, buffers: Sequence[tuple[int, int]] = ()) -> Iterator[Aio]:
    """Yield a context; Unavailable, with what to do, where the kernel or a container forbids it."""
    del buffers  # it registers none
    try:
        made = Aio(depth)
    except OSError as error:
        raise Unavailable(f"native AIO does not start here ({error.strerror}): -a engine=preadv") from error
    try:
        yield made
    finally:
        made.close()
