"""Readers: a checkpoint's files into memory, by several threads, in blocks.

Only what a loader would do stands here, nothing that measures. ``preadv`` releases the interpreter's lock, so
Python threads reach the rate of C from blocks of 256 KiB on.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

from iobench.errors import IobenchError, Unavailable
from iobench.storage.checkpoint import Checkpoint
from iobench.storage.filesystem import direct_access
from iobench.storage.flight import PREADV, reads
from iobench.storage.plan import SLOT

Work = Callable[[deque[Any], int], None]  # empties a queue; the number tells the threads apart


@dataclass(frozen=True)
class Piece:
    """One read: ``wanted`` bytes of the file ``shard`` from ``offset`` on to ``start`` in the destination.

    ``length`` is what is asked for, ``wanted`` rounded up to ``alignment``: at a file's end it is more.
    """

    shard: int
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


def alignment_of(checkpoint: Checkpoint, block: int, wanted: int = 0) -> int:
    """Return the alignment that O_DIRECT needs on all shards, ``wanted`` where that is a multiple of it.

    Unavailable where it can't be had or not by ``block``.
    """
    found = [direct_access(shard.path) for shard in checkpoint.shards]
    refused = next((access.reason for access in found if access.reason), "")
    if refused:
        raise Unavailable(refused)
    alignment = max(access.alignment for access in found)
    if wanted % alignment:
        raise Unavailable(f"O_DIRECT here needs an alignment of {alignment} bytes or a multiple: {wanted} is none")
    alignment = wanted or alignment
    if block % alignment:
        raise Unavailable(f"O_DIRECT here needs blocks that are multiples of {alignment} bytes; ask for such a block")
    return alignment


def pieces(checkpoint: Checkpoint, block: int, alignment: int = 1) -> list[Piece]:
    """Cut the files into reads of ``block`` bytes, each with its place in the destination.

    A file's last read asks past the end and gets what is left.
    """
    return [
        Piece(number, offset, min(block, shard.nbytes - offset), start + offset, alignment)
        for number, (shard, start) in enumerate(zip(checkpoint.shards, slots(checkpoint), strict=True))
        for offset in range(0, shard.nbytes, block)
    ]


def read_in_full(fd: int, view: memoryview, offset: int, wanted: int, alignment: int = 1) -> None:
    """Read ``wanted`` bytes at least: one system call moves at most 0x7ffff000 bytes, and any may be short.

    Goes on from the last aligned offset below the end of a short read. IobenchError where the file ends early.
    """
    done = 0
    while done < wanted:
        reached = done + os.preadv(fd, [view[done:]], offset + done)
        if reached < wanted:
            again = reached // alignment * alignment
            if again <= done:
                raise IobenchError(f"the file ends at {offset + reached}: it was cut while it was measured")
            reached = again
        done = reached


def reader(
    todo: Sequence[Piece],
    destination: memoryview,
    pool: ThreadPoolExecutor,
    threads: int,
    engine: str = PREADV,
    depth: int = 1,
) -> Callable[[Sequence[int]], None]:
    """Return "read every piece once to its place" by ``threads`` threads, each taking the next; it takes the files.

    By another engine than preadv each thread has ``depth`` reads in flight.
    """
    if engine != PREADV:
        return _flying(todo, destination, pool, threads, engine, depth)
    ready = [(piece, destination[piece.start : piece.start + piece.length]) for piece in todo]

    def run(fds: Sequence[int]) -> None:
        def take(queue: deque[tuple[Piece, memoryview]], _: int) -> None:
            for piece, view in until_empty(queue):
                read_in_full(fds[piece.shard], view, piece.offset, piece.wanted, piece.alignment)

        spread(take, ready, pool, threads)

    return run


def _flying(
    todo: Sequence[Piece], destination: memoryview, pool: ThreadPoolExecutor, threads: int, engine: str, depth: int
) -> Callable[[Sequence[int]], None]:
    import numpy as np

    address = int(np.frombuffer(destination, np.uint8).ctypes.data)

    def run(fds: Sequence[int]) -> None:
        def take(queue: deque[Piece], _: int) -> None:
            with reads(engine, depth) as flying:
                for number, piece in enumerate(until_empty(queue)):
                    flying.start(
                        number, fds[piece.shard], address + piece.start, piece.length, piece.offset, piece.wanted,
                        piece.alignment,
                    )  # fmt: skip
                    if len(flying) == depth:
                        flying.finished()
                while flying:
                    flying.finished()

        spread(take, todo, pool, threads)

    return run


def start_threads(pool: ThreadPoolExecutor, threads: int) -> None:
    """Start every thread of a new pool: it starts each with the first work that finds none idle."""
    all_here = threading.Barrier(threads)
    try:
        waiting = [pool.submit(all_here.wait) for _ in range(threads)]
    except RuntimeError:  # no thread more: those that wait for it would keep the pool from ending
        all_here.abort()
        raise
    for future in waiting:
        future.result()


def spread(work: Work, todo: Sequence[Any], pool: ThreadPoolExecutor, threads: int) -> None:
    """Let ``threads`` threads empty one queue; the first error of any is raised once all have ended.

    Whoever hears of it may close the files and let the memory go that the others still read into.
    """
    queue = deque(todo)
    if threads == 1:
        work(queue, 0)
        return
    futures: list[Future[None]] = []
    try:
        for number in range(threads):
            futures.append(pool.submit(work, queue, number))
        for future in futures:
            future.result()
    except BaseException:
        queue.clear()  # nobody begins anything more
        wait(futures)
        raise


def until_empty(queue: deque[Any]) -> Iterator[Any]:
    """Yield from a queue that several threads empty."""
    with contextlib.suppress(IndexError):
        while True:
            yield queue.popleft()
