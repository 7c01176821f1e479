"""Files that are written whole or not at all: a full disk leaves the old one, a reader never sees half.

And plain files that somebody else wrote: ``plain`` opens nothing that has no end or waits for a writer.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from iobench.errors import UserError


def replace(path: Path, content: str | bytes | Iterable[str]) -> None:
    """Write ``content`` (an iterable: text in pieces) as the file ``path``; OSError where that fails."""
    with _target(path) as place:
        if isinstance(content, bytes):
            place.write_bytes(content)
        else:
            with place.open("w", encoding="utf-8") as stream:
                _fill(stream, content)


def plain(path: Path, what: str) -> IO[bytes]:
    """Open a plain file for reading; OSError where it can't be, UserError for a device, a pipe or a socket.

    ``what`` says what is wanted, for the sentence. It never waits: a pipe without a writer is refused, too.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    mode = os.fstat(handle).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(handle, "rb")
    os.close(handle)
    kind = "a folder" if stat.S_ISDIR(mode) else "a pipe" if stat.S_ISFIFO(mode) else "a device"
    raise UserError(f"{path} is {kind}, no file: write what it gives to a file, and name that as {what}")


def _fill(stream: IO[str], content: str | Iterable[str]) -> None:
    if isinstance(content, str):
        stream.write(content)
    else:
        stream.writelines(content)


@contextlib.contextmanager
def _target(path: Path) -> Iterator[Path]:
    """Yield where to write: a file beside ``path`` that takes its place, or itself where it is no plain file."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        yield path  # /dev/stdout, a pipe, a link: what it leads to is written
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
