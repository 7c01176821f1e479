"""Which way a read went: judged from counters and residency, never from what was asked for. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from iobench.storage.device import Counted
from iobench.storage.filesystem import NOT_STORAGE, Filesystem
from iobench.units import KIB

O_DIRECT = "o_direct"
PAGE_CACHE = "page cache"
DEVICE_VIA_CACHE = "device via page cache"

_ALL = 0.98  # at least this part of the bytes came from the device
_NONE = 0.02  # at most this part did
_FAULTS = 512 * KIB  # that a process may read beside: pages of its own programs, touched for the first time or again
_AMPLIFIED = 1.1


@dataclass(frozen=True)
class Verdict:
    """The path's label, whether it is proven, and sentences on what is odd."""

    path: str
    proven: bool
    notes: list[str] = field(default_factory=list)


def onto(verdict: Verdict, bounced: bool, target: str) -> Verdict:
    """Return the verdict with the rest of the way: through slots of host memory, by a copy to a GPU."""
    if target == "host":
        return replace(verdict, path=f"{verdict.path} + bounce") if bounced else verdict
    return replace(verdict, path=f"{verdict.path} + {'bounce' if bounced else 'copy'} to {target}")


def few(moved: int, asked: int, resident: float | None) -> bool:
    """Whether what was read from the device is next to nothing of the bytes asked.

    Where the files are proven to be in the page cache, so is what page faults of the process itself may have read.
    """
    return moved <= max(_NONE * asked, _FAULTS if (resident or 0.0) >= _ALL else 0)


def judge(method: str, asked: int, moved: Counted, filesystem: Filesystem, resident: float | None = None) -> Verdict:
    """Return the path of a read of ``asked`` bytes by ``method`` "direct" or in the state "cold" or "warm".

    ``moved`` holds what the counters say was read from the device meanwhile, ``resident`` the part of the file
    that was in the page cache right before (the worst sample's).
    """
    if method == "direct":
        return _direct(asked, moved, filesystem)
    if method.endswith("cold"):
        return _cold(asked, moved, filesystem)
    return _warm(asked, moved, filesystem, resident)


def _direct(asked: int, moved: Counted, filesystem: Filesystem) -> Verdict:
    if not filesystem.is_storage:
        return _no_storage("O_DIRECT", filesystem)
    return _from_device(O_DIRECT, "O_DIRECT", asked, moved, filesystem)


def _cold(asked: int, moved: Counted, filesystem: Filesystem) -> Verdict:
    if not filesystem.is_storage:
        return _no_storage("page cache", filesystem)
    return _from_device(DEVICE_VIA_CACHE, "buffered", asked, moved, filesystem)


def _no_storage(how: str, filesystem: Filesystem) -> Verdict:
    return Verdict(
        f"{how} on {filesystem.name}: {NOT_STORAGE}",
        False,
        [f"{filesystem.name} is {NOT_STORAGE}: choose a folder on a disk with --scratch or --path"],
    )


def _from_device(label: str, how: str, asked: int, moved: Counted, filesystem: Filesystem) -> Verdict:
    if moved.device is None:
        why = "a file server's cache may have answered" if filesystem.remote else "its block device is unknown"
        return Verdict(f"{how} on {filesystem.name}, unproven", False, [f"path unproven on {filesystem.name}: {why}"])
    if moved.device == 0 and (moved.process or 0) >= _ALL * asked:
        note = "the block device counts no reads (a multipath head?), so only this process's own counter speaks for it"
        return Verdict(f"{how}, unproven", False, [note])
    share = (moved.least or 0) / asked
    if share < _ALL:
        note = f"only {share:.1%} of the bytes asked were read from the device: a cache answered the rest"
        return Verdict(f"{how}, not from the device", False, [note])
    notes = []
    if (moved.process or moved.device) > _AMPLIFIED * asked:
        notes.append(f"{(moved.process or moved.device) / asked:.2f} bytes were read from the device per byte asked")
    elif moved.device > _AMPLIFIED * asked:
        notes.append(f"others read {moved.device - asked} bytes from the device at the same time")
    return Verdict(label, True, notes)


def _warm(asked: int, moved: Counted, filesystem: Filesystem, resident: float | None) -> Verdict:
    own = moved.process if moved.process is not None else moved.device
    if own is not None and not few(own, asked, resident):
        return Verdict(
            "page cache and device", False, [f"warm, yet {own / asked:.1%} of the bytes came from the device"]
        )
    if resident is not None and resident < _ALL:
        note = f"{resident:.1%} of the files lay in the page cache: this filesystem drops pages, or memory is short"
        return Verdict("buffered, not from the page cache", False, [note])
    label = PAGE_CACHE if not filesystem.in_memory else f"{filesystem.name} (memory)"
    return Verdict(label, resident is not None, [] if resident is not None else ["residency unknown"])
