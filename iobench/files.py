"""Files that are written whole or not at all: a full disk leaves the old one, a reader never sees half."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO


def replace(path: Path, content: str | bytes | Iterable[str]) -> None:
    """Write ``content`` (an iterable: text in pieces) as the file ``path``; OSError where that fails."""
    with _target(path) as place:
        if isinstance(content, bytes):
            place.write_bytes(content)
        else:
            with place.open("w", encoding="utf-8") as stream:
                _fill(stream, content)


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
