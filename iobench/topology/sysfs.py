"""Reads sysfs and procfs below a root: every odd, missing or unreadable file is None, never a wrong number."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from iobench.units import GIB, KIB, MIB

_MOST_BYTES = 8 * MIB  # /proc/cpuinfo of a large server stays below this
_MOST_CPUS = 8192  # the largest NR_CPUS that Linux can be built with
_SIZE = re.compile(r"([0-9]+)([KMG]?)B?")
_FACTOR = {"": 1, "K": KIB, "M": MIB, "G": GIB}


class Tree:
    """The files below one root. Paths are given from the root, without a leading slash."""

    def __init__(self, root: str | Path = "/") -> None:
        self.root = os.path.realpath(root)

    @property
    def live(self) -> bool:
        """True where this is the running machine and not a captured one."""
        return self.root == "/"

    def path(self, *parts: str) -> str:
        return os.path.join(self.root, *parts)  # noqa: PTH118 - called for thousands of files: Path costs five times more

    def text(self, *parts: str) -> str | None:
        """Return the file's content without white space around it, None where it is empty or unreadable."""
        data = _read(self.path(*parts))
        return (data.decode("utf-8", "replace").strip() or None) if data is not None else None

    def data(self, *parts: str) -> bytes | None:
        """Return a file as it is, None where it is unreadable."""
        return _read(self.path(*parts))

    def number(self, *parts: str) -> int | None:
        """Return a count or an id: None for a negative number (-1 is sysfs's unknown) and for anything odd."""
        return integer(self.text(*parts))

    def cpus(self, *parts: str) -> tuple[int, ...] | None:
        """Return the ids of a list file ("0-3,8"); an empty file is an empty tuple, a missing one None."""
        data = _read(self.path(*parts))
        return cpu_list(data.decode("utf-8", "replace")) if data is not None else None

    def names(self, *parts: str) -> list[str]:
        """Return the names in a folder in natural order, none where there is no such folder."""
        try:
            return sorted(os.listdir(self.path(*parts)), key=natural)  # noqa: PTH208
        except (OSError, ValueError):
            return []

    def exists(self, *parts: str) -> bool:
        try:
            return os.path.exists(self.path(*parts))  # noqa: PTH110
        except ValueError:
            return False

    def real(self, *parts: str) -> str | None:
        """Return where a link leads, from the root; None where there is nothing or it leaves the root."""
        try:
            real = os.path.realpath(self.path(*parts), strict=True)
        except (OSError, ValueError):
            return None
        prefix = "/" if self.live else self.root + "/"
        return real[len(prefix) :] if real.startswith(prefix) else None

    def target(self, *parts: str) -> str | None:
        """Return the last name of where a link points to (the driver, the subsystem); it need not exist."""
        try:
            return os.path.basename(os.readlink(self.path(*parts))) or None  # noqa: PTH115, PTH119
        except (OSError, ValueError):
            return None


def _read(path: str) -> bytes | None:
    """Read a regular file: a pipe or a device would block or never end."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return None
        return b"".join(_chunks(handle))
    except OSError:
        return None  # hundreds of attributes answer EIO, EINVAL or EPERM
    finally:
        os.close(handle)


def _chunks(handle: int) -> Iterator[bytes]:
    left = _MOST_BYTES
    while left > 0 and (chunk := os.read(handle, min(left, 1 << 16))):
        left -= len(chunk)
        yield chunk


def natural(name: str) -> list[tuple[int, int, str]]:
    """Return a sort key that puts cpu2 before cpu10."""
    parts = re.split(r"([0-9]+)", name)
    return [(0, int(part), "") if part.isascii() and part.isdigit() else (1, 0, part) for part in parts if part]


def integer(text: str | None) -> int | None:
    """Return a whole number that is not negative, written in decimal or as 0x..., else None."""
    if text is None or not re.fullmatch(r"0x[0-9a-fA-F]{1,16}|[0-9]{1,20}", text):
        return None
    return int(text, 0) if text.startswith("0x") else int(text)


def cpu_list(text: str) -> tuple[int, ...] | None:
    """Return the ids in "0-3,8" in order, an empty tuple for an empty list, None where it is no such list."""
    ids: set[int] = set()
    for part in text.strip().split(",") if text.strip() else []:
        match = re.fullmatch(r"\s*([0-9]{1,6})(?:-([0-9]{1,6}))?\s*", part)
        if not match or int(match[2] or match[1]) >= _MOST_CPUS:
            return None
        ids.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(sorted(ids))


def size(text: str | None) -> int | None:
    """Return the bytes of a cache size ("32768K"), None where it is unknown or zero."""
    match = _SIZE.fullmatch(text or "")
    return (int(match[1]) * _FACTOR[match[2]] or None) if match else None


def positive(value: int | None) -> int | None:
    """Return ``value`` where it is more than zero: a size or a width of zero is an unknown one."""
    return value if value else None
