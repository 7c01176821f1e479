"""A folder of scratch files that goes at the end; what a killed process left behind goes when the next one starts.

The process that uses a folder holds a lock on a file in it, which the kernel takes away with the process, however it
ends and whatever its number was. Only folders of the same user with such a file that nobody holds are removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

PREFIX = "iobench-weights-"
_HELD, _UNHELD = ".held", ".unheld"


@contextlib.contextmanager
def folder(where: str | Path) -> Iterator[Path]:
    """Yield a new folder below ``where`` and remove it at the end; OSError where it can't be made."""
    sweep(where)
    made = Path(tempfile.mkdtemp(prefix=PREFIX, dir=where))
    try:
        with _held(made):
            yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def sweep(where: str | Path) -> list[Path]:
    """Remove the folders below ``where`` that processes left that are gone; return them."""
    left = [path for path in Path(where).glob(f"{PREFIX}*") if _abandoned(path)]
    for path in left:
        shutil.rmtree(path, ignore_errors=True)
    return left


@contextlib.contextmanager
def _held(made: Path) -> Iterator[None]:
    """Hold the folder's lock; on a filesystem without locks it has none, and nobody ever sweeps it."""
    fd = os.open(made / _UNHELD, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            (made / _UNHELD).rename(made / _HELD)  # only now: a lock that is not yet held looks like one that is left
        yield
    finally:
        os.close(fd)


def _abandoned(path: Path) -> bool:
    try:
        if path.is_symlink() or not path.is_dir() or path.stat().st_uid != os.geteuid():
            return False
        fd = os.open(path / _HELD, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False  # none of ours, or its user has just removed it
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True
