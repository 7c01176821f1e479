"""Writing a records file: whole lines only, each flushed to the disk, one writer at a time."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from iobench.errors import UserError
from iobench.record import FILE_NAME, Header


class Writer:
    """Appends lines to a records file, each in one write that is flushed to the disk.

    A write that fails half way (disk full) is cut back, so the file always ends on a whole line.
    """

    def __init__(self, path: Path, fd: int, size: int) -> None:
        self.path, self._fd, self._size = path, fd, size

    @classmethod
    def create(cls, folder: Path, header: Header) -> Writer:
        """Make ``folder`` and a new file in it; UserError if it holds one already or can't be written."""
        path = folder / FILE_NAME
        try:
            folder.mkdir(parents=True, exist_ok=True)
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError as error:
            raise UserError(f"{path} exists: continue it with --resume {folder}, or choose another --out") from error
        except OSError as error:
            raise UserError(f"cannot write to {folder}: {error.strerror}; choose another folder with --out") from error
        _lock(fd, path)
        writer = cls(path, fd, 0)
        try:
            writer.append(header.to_json())
        except UserError as error:
            writer.close()
            path.unlink()  # nothing is in it: the next attempt shall not find it in its way
            raise UserError(f"cannot write to {folder}: {_cause(error)}; choose another folder with --out") from error
        return writer

    @classmethod
    def reopen(cls, folder: Path) -> Writer:
        """Open an existing file to go on; a torn last line is cut off first."""
        path = folder / FILE_NAME
        try:
            fd = os.open(path, os.O_RDWR)
        except OSError as error:
            raise UserError(f"cannot write to {path}: {error.strerror}; nothing was changed") from error
        _lock(fd, path)
        size = os.fstat(fd).st_size
        whole = path.read_bytes().rfind(b"\n") + 1
        if whole < size:
            os.ftruncate(fd, whole)
        os.lseek(fd, whole, os.SEEK_SET)
        return cls(path, fd, whole)

    def append(self, text: str) -> None:
        """Write one line and flush it; UserError (nothing lost) when the disk is full."""
        data = text.encode() + b"\n"
        try:
            done = 0
            while done < len(data):
                done += os.write(self._fd, data[done:])
            os.fsync(self._fd)
        except OSError as error:
            os.ftruncate(self._fd, self._size)
            os.lseek(self._fd, self._size, os.SEEK_SET)
            raise UserError(
                f"cannot write {self.path}: {error.strerror}; every finished point is safe in it: "
                f"make room, then iobench run --resume {self.path.parent}"
            ) from error
        self._size += len(data)

    def close(self) -> None:
        os.close(self._fd)


def _lock(fd: int, path: Path) -> None:
    """Keep a second run out of the same file; file systems without locks are let pass."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        raise UserError(f"{path} is being written by another run: wait for it or choose another --out") from error
    except OSError:
        return


def _cause(error: UserError) -> str:
    cause = error.__cause__
    return (cause.strerror or str(cause)) if isinstance(cause, OSError) else str(error)
