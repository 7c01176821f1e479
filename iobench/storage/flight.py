"""How O_DIRECT reads are submitted: ``preadv`` by blocking threads, or several in flight per thread."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from iobench.errors import IobenchError
from iobench.storage import aio, uring

PREADV, IO_URING, AIO = "preadv", "io_uring", "aio"
ENGINES = (PREADV, IO_URING, AIO)
_AGAIN = (-errno.EINTR, -errno.EAGAIN)


class Queue(Protocol):
    """A kernel's queue of reads; what is done comes in any order."""

    @property
    def registered(self) -> bool: ...

    def read(self, fd: int, address: int, nbytes: int, offset: int, token: int) -> None: ...

    def done(self) -> list[tuple[int, int]]: ...


_OPENED: dict[str, Callable[[int, Sequence[tuple[int, int]]], contextlib.AbstractContextManager[Queue]]] = {
    IO_URING: uring.opened,
    AIO: aio.opened,
}


@dataclass
class _Flight:
    """One read: ``wanted`` of ``length`` bytes from ``offset`` on must arrive, ``got`` have."""

    fd: int
    address: int
    length: int
    offset: int
    wanted: int
    alignment: int
    got: int = 0


class Reads:
    """Reads in flight by token; a short one goes on from the last aligned offset below its end."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._flying: dict[int, _Flight] = {}

    def __len__(self) -> int:
        return len(self._flying)

    def start(
        self, token: int, fd: int, address: int, length: int, offset: int, wanted: int, alignment: int = 1
    ) -> None:
        """Begin a read; ``token`` must not be in flight."""
        self._begin(token, _Flight(fd, address, length, offset, wanted, alignment))

    def finished(self) -> list[int]:
        """Wait and return the tokens of reads that have all they want; IobenchError where a file ends before."""
        found: list[int] = []
        while self._flying and not found:
            # all leave the books before one may raise: who drains afterwards waits for those that still fly
            down = [(self._flying.pop(token), token, result) for token, result in self._queue.done()]
            found += [token for flight, token, result in down if self._landed(flight, token, result)]
        return found

    def drain(self) -> None:
        """Wait for all that is in flight, whatever came of it: their memory may go afterwards."""
        while self._flying:
            for token, _ in self._queue.done():
                self._flying.pop(token, None)

    def _begin(self, token: int, flight: _Flight) -> None:
        got = flight.got
        self._queue.read(flight.fd, flight.address + got, flight.length - got, flight.offset + got, token)
        self._flying[token] = flight

    def _landed(self, flight: _Flight, token: int, result: int) -> bool:
        """Whether a read has all it wants; begin it again where it is short."""
        if result < 0 and result not in _AGAIN:
            raise OSError(-result, os.strerror(-result))
        reached = flight.got + max(result, 0)
        if reached >= flight.wanted:
            return True
        again = reached // flight.alignment * flight.alignment
        if again <= flight.got and result >= 0:
            raise IobenchError(f"the file ends at {flight.offset + reached}: it was cut while it was measured")
        flight.got = max(again, flight.got)
        self._begin(token, flight)
        return False


@contextlib.contextmanager
def reads(engine: str, depth: int, buffers: Sequence[tuple[int, int]] = ()) -> Iterator[Reads]:
    """Yield an empty set of at most ``depth`` reads in flight; Unavailable where the engine can't be had.

    ``buffers`` are (address, bytes) of the memory that they go to, each read to the start of one, where they are known.
    """
    with _OPENED[engine](depth, buffers) as queue:
        made = Reads(queue)
        try:
            yield made
        finally:
            made.drain()
