"""The block device behind a file, and the bytes read from it.

Two counters prove which way a read went: the device's sectors (everybody's reads) and /proc/self/io
read_bytes (only this process's, but for whatever device). Together neither a busy neighbour nor a cache fools them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from iobench.storage.filesystem import mount_of

_SECTOR = 512  # the unit of the stat files, whatever the device's sector size


@dataclass(frozen=True)
class Device:
    """The device or partition that holds a file.

    ``name`` is the whole disk (the topology's ``block:name``); ``members`` are the sysfs folders whose counters
    count the file's reads: one, or several where a filesystem spans devices.
    """

    name: str
    members: tuple[Path, ...]

    def read_bytes(self) -> int:
        """Return the bytes read from the device since boot, by everybody."""
        return sum(_sectors_read(member) for member in self.members) * _SECTOR


@dataclass(frozen=True)
class Counted:
    """The counters at one moment; None where there is none.

    ``calls`` are the bytes that the process's own read calls returned, from wherever: mapped files and reads that a
    driver does for it are not among them.
    """

    device: int | None
    process: int | None
    calls: int | None = None

    def since(self, earlier: Counted) -> Counted:
        """Return what was read between ``earlier`` and now."""
        return Counted(
            _difference(self.device, earlier.device),
            _difference(self.process, earlier.process),
            _difference(self.calls, earlier.calls),
        )

    @property
    def least(self) -> int | None:
        """The smaller of what is known: bytes that both counters confirm."""
        known = [value for value in (self.device, self.process) if value is not None]
        return min(known) if known and self.device is not None else None


def device_of(path: str | Path, root: str | Path = "/") -> Device | None:
    """Return the block device that holds ``path``; None for tmpfs, overlay, network and other devices unknown."""
    try:
        number = Path(path).stat().st_dev
        if os.major(number) == 0:
            number = _of_mount(path)
    except OSError:
        return None
    return device_at(f"{os.major(number)}:{os.minor(number)}", root) if number else None


def device_at(number: str, root: str | Path = "/") -> Device | None:
    """Return the device of ``number`` ("259:2"); a partition keeps its own counters and its disk's name."""
    folder = Path(root) / "sys/dev/block" / number
    try:
        folder = folder.resolve(strict=True)
    except OSError:
        return None
    if not (folder / "stat").is_file():
        return None
    disk = folder.parent if (folder / "partition").exists() else folder
    return Device(disk.name.replace("!", "/"), _siblings(folder, root))


def count(device: Device | None, process: int | str = "self") -> Counted:
    """Read the counters now; ``process`` is the number of the one that reads."""
    own = io_of(process)
    return Counted(device.read_bytes() if device else None, own.get("read_bytes"), own.get("rchar"))


def io_of(process: int | str = "self") -> dict[str, int]:
    """Return the numbers of /proc/PID/io; none where the kernel counts nothing or doesn't tell."""
    try:
        lines = Path(f"/proc/{process}/io").read_text().splitlines()
        return {name: int(value) for name, value in (line.split(":") for line in lines)}
    except (OSError, ValueError):
        return {}  # no task accounting in this kernel, or forbidden in this container


def _of_mount(path: str | Path) -> int:
    """Return the device number that the mount's source has (btrfs gives its files an anonymous one), else 0."""
    mount = mount_of(path)
    if mount is None or not mount.source.startswith("/dev/"):
        return 0
    return Path(mount.source).stat().st_rdev


def _siblings(folder: Path, root: str | Path) -> tuple[Path, ...]:
    """Return every device of a filesystem that spans several (btrfs lists them), else the one."""
    for devices in (Path(root) / "sys/fs/btrfs").glob("*/devices"):
        members = [link.resolve() for link in devices.iterdir()]
        if folder in members:
            return tuple(members)
    return (folder,)


def _sectors_read(folder: Path) -> int:
    return int((folder / "stat").read_text().split()[2])


def _difference(now: int | None, earlier: int | None) -> int | None:
    return None if now is None or earlier is None else now - earlier
