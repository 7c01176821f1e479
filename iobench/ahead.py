"""Decodes and checks most of a large records file in a second process, while this one takes its beginning.

The other process is Python started anew on a function here: a fork would copy what threads hold, and
``multiprocessing`` would run the caller's script again. What it cannot do (it did not start, it died, the disk for
what it found is full) is done here: the lines are the same, only later.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO

from iobench import batch

WORTH = 32 << 20  # bytes of a file from which on a second process is faster
_LENGTH = 8
_HERE = 0.4  # this process's part: it also makes the lines of all others


def batches(stream: BinaryIO) -> Iterator[batch.Batch]:
    """Yield all lines from the stream's place on, in their order; a second process helps where it is worth it."""
    border = _border(stream)
    with contextlib.ExitStack() as stack:
        if border is not None:
            try:
                found = stack.enter_context(tempfile.TemporaryFile())
                helper = stack.enter_context(_helper(str(stream.name), border, found))
            except OSError:  # no process, no memory or no temporary file is to be had
                border = None
        if border is None:
            yield from batch.batches(stream)
            return
        yield from batch.batches(stream, border)
        if helper.wait() == 0:
            found.seek(0)
            yield from _told(found)
        else:
            stream.seek(border)
            yield from batch.batches(stream)


def serve(path: str, start: int, out: IO[bytes]) -> None:
    """Write what ``batch.batches`` yields of the lines from byte ``start`` on: the second process runs this."""
    from iobench.parse import sound_leg

    builder, words = batch.Builder(sound_leg), dict[str, str]()
    with open(path, "rb") as stream:
        stream.seek(start)
        for one in batch.batches(stream):
            columns, texts = None, one.texts
            if one.columns and builder.sound(one.columns):
                columns, texts = batch.interned(one.columns, words), []  # equal words are written once
            told = marshal.dumps((one.count, columns, texts))
            out.write(len(told).to_bytes(_LENGTH) + told)


def _told(found: IO[bytes]) -> Iterator[batch.Batch]:
    """Yield what ``serve`` wrote: our own process, to a file without a name."""
    while length := found.read(_LENGTH):
        yield batch.Batch(*marshal.loads(found.read(int.from_bytes(length))))


def _border(stream: BinaryIO) -> int | None:
    """Return the byte at which the second process begins, at the start of a line; None where one is enough."""
    if (
        not isinstance(getattr(stream, "name", None), (str, Path))
        or not sys.executable
        or len(os.sched_getaffinity(0)) < 2
    ):
        return None
    here, size = stream.tell(), os.fstat(stream.fileno()).st_size
    if size - here < WORTH:
        return None
    stream.seek(here + int((size - here) * _HERE))
    stream.readline()
    border = stream.tell()
    stream.seek(here)
    return border


@contextlib.contextmanager
def _helper(path: str, start: int, found: Any) -> Iterator[subprocess.Popen[bytes]]:
    serves = f"from iobench.ahead import serve; serve({path!r}, {start}, sys.stdout.buffer)"
    code = f"import sys; sys.path[:] = {sys.path!r}; {serves}"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=found, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
