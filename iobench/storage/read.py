"""Readers: a checkpoint's files into memory, by several threads, in blocks.

Only what a loader would do stands here, nothing that measures. ``preadv`` releases the interpreter's lock, so
Python threads reach the rate of C from blocks of 256 KiB on.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from iobench.errors import IobenchError, Unavailable
from iobench.storage.checkpoint import Checkpoint
from iobench.storage.filesystem import direct_access

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SLOT = 2 << 20  # every file starts at a multiple of it in the destination, and has room to read past its end
Work = Callable[[deque[Any], int], None]  # empties a queue; the number tells the threads apart


@dataclass(frozen=True)
class Piece:
    """One read: ``wanted`` bytes of a file from ``offset`` on to ``start`` in the destination.

    ``length`` is what is asked for, ``wanted`` rounded up to ``alignment``: at a file's end it is more.
    """

    fd: int
    offset: int
    wanted: int
    start: int
    alignment: int = 1

    @property
    def length(self) -> int:
        return -(-self.wanted // self.alignment) * self.alignment


def room(checkpoint: Checkpoint) -> int:
    """Return the bytes that the destination of a whole checkpoint takes."""
    return sum(-(-shard.nbytes // SLOT) * SLOT for shard in checkpoint.shards)


def slots(checkpoint: Checkpoint) -> list[int]:
    """Return where each file starts in the destination."""
    starts, at = [], 0
    for shard in checkpoint.shards:
        starts.append(at)
        at += -(-shard.nbytes // SLOT) * SLOT
    return starts


@contextlib.contextmanager
def opened(checkpoint: Checkpoint, direct: bool = False) -> Iterator[list[int]]:
    """Open every shard for reading, past the page cache where ``direct``; Unavailable where that is refused."""
    fds: list[int] = []
    flags = os.O_RDONLY | (os.O_DIRECT if direct else 0)
    try:
        for shard in checkpoint.shards:
            try:
                fds.append(os.open(shard.path, flags))
            except OSError as error:
                how = "with O_DIRECT" if direct else "for reading"
                raise Unavailable(f"cannot open {shard.path} {how}: {error.strerror}") from error
        yield fds
    finally:
        for fd in fds:
            os.close(fd)


def alignment_of(checkpoint: Checkpoint, block: int) -> int:
    """Return the alignment that O_DIRECT needs on all shards; Unavailable where it can't be had or not by ``block``."""
    found = [direct_access(shard.path) for shard in checkpoint.shards]
    refused = next((access.reason for access in found if access.reason), "")
    if refused:
        raise Unavailable(refused)
    alignment = max(access.alignment for access in found)
    if block % alignment:
        raise Unavailable(f"O_DIRECT here needs blocks that are multiples of {alignment} bytes; ask for such a block")
    return alignment


def pieces(checkpoint: Checkpoint, fds: Sequence[int], block: int, alignment: int = 1) -> list[Piece]:
    """Cut the files into reads of ``block`` bytes, each with its place in the destination.

    A file's last read asks past the end and gets what is left.
    """
    return [
        Piece(fd, offset, min(block, shard.nbytes - offset), start + offset, alignment)
        for shard, fd, start in zip(checkpoint.shards, fds, slots(checkpoint), strict=True)
        for offset in range(0, shard.nbytes, block)
    ]


def read_piece(piece: Piece, view: memoryview) -> None:
    """Read one piece in full: one system call moves at most 0x7ffff000 bytes, and any may be short.

    Goes on from the last aligned offset below the end of a short read. IobenchError where the file ends early.
    """
    done = 0
    while done < piece.wanted:
        reached = done + os.preadv(piece.fd, [view[done:]], piece.offset + done)
        if reached < piece.wanted:
            again = reached // piece.alignment * piece.alignment
            if again <= done:
                raise IobenchError(f"the file ends at {piece.offset + reached}: it was cut while it was measured")
            reached = again
        done = reached


def reader(
    todo: Sequence[Piece], destination: memoryview, pool: ThreadPoolExecutor, threads: int
) -> Callable[[], None]:
    """Return the operation "read every piece once to its place" by ``threads`` threads, each taking the next."""
    ready = [(piece, destination[piece.start : piece.start + piece.length]) for piece in todo]

    def take(queue: deque[tuple[Piece, memoryview]], _: int) -> None:
        for piece, view in _until_empty(queue):
            read_piece(piece, view)

    return lambda: spread(take, ready, pool, threads)


def ring_reader(todo: Sequence[Piece], stages: Sequence[memoryview], pool: ThreadPoolExecutor) -> Callable[[], None]:
    """Return the operation "read every piece once" into one buffer per thread, over and over, as fio does."""

    def take(queue: deque[Piece], number: int) -> None:
        stage = stages[number]
        for piece in _until_empty(queue):
            read_piece(piece, stage[: piece.length])

    return lambda: spread(take, todo, pool, len(stages))


def mapped_reader(
    checkpoint: Checkpoint,
    fds: Sequence[int],
    array: NDArray[np.uint8],
    block: int,
    pool: ThreadPoolExecutor,
    threads: int,
) -> Callable[[], None]:
    """Return the operation "map every file, copy it to the destination in blocks, unmap it"."""
    import numpy as np

    def copy(queue: deque[Any], _: int) -> None:
        for target, source in _until_empty(queue):
            np.copyto(target, source)

    def operation() -> None:
        with contextlib.ExitStack() as stack:
            copies: list[tuple[Any, Any]] = []
            for shard, fd, start in zip(checkpoint.shards, fds, slots(checkpoint), strict=True):
                area = stack.enter_context(_mapped(fd, shard.nbytes))
                for at in range(0, shard.nbytes, block):
                    end = min(at + block, shard.nbytes)
                    copies.append((array[start + at : start + end], area[at:end]))
            spread(copy, copies, pool, threads)
            copies.clear()

    return operation


def spread(work: Work, todo: Sequence[Any], pool: ThreadPoolExecutor, threads: int) -> None:
    """Let ``threads`` threads empty one queue; the first error of any is raised."""
    queue = deque(todo)
    if threads == 1:
        work(queue, 0)
        return
    for future in [pool.submit(work, queue, number) for number in range(threads)]:
        future.result()


@contextlib.contextmanager
def _mapped(fd: int, nbytes: int) -> Iterator[memoryview]:
    with mmap.mmap(fd, nbytes, prot=mmap.PROT_READ) as area, memoryview(area) as view:
        yield view


def _until_empty(queue: deque[Any]) -> Iterator[Any]:
    with contextlib.suppress(IndexError):
        while True:
            yield queue.popleft()
