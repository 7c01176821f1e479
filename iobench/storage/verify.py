"""Every byte checked: the sum of each 512 bytes, so that misplaced sectors show as well as changed ones."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from iobench.errors import IobenchError, WrongData

if TYPE_CHECKING:
    from numpy.typing import NDArray

UNIT = 512  # the smallest piece that O_DIRECT moves
_PIECE = 4 << 20
POISON = 0xA5


def sums(data: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Return the sum modulo 2^64 of the 64-bit words of each 512 bytes; a last part is filled up with zeros."""
    whole = len(data) // UNIT * UNIT
    pieces = [_of_words(data[at : min(at + _PIECE, whole)]) for at in range(0, whole, _PIECE)]
    if whole < len(data):
        last = np.zeros(UNIT, np.uint8)
        last[: len(data) - whole] = data[whole:]
        pieces.append(_of_words(last))
    return np.concatenate(pieces) if pieces else np.zeros(0, np.uint64)


def file_sums(path: str | os.PathLike[str], nbytes: int, offset: int = 0) -> NDArray[np.uint64]:
    """Return the sums of ``nbytes`` of a file by an ordinary buffered read; IobenchError where it ends before."""
    data = np.empty(_PIECE, np.uint8)
    pieces = []
    with open(path, "rb", buffering=0) as file:
        for at in range(0, nbytes, _PIECE):
            wanted = min(_PIECE, nbytes - at)
            _read_full(file.fileno(), data[:wanted], offset + at)
            pieces.append(sums(data[:wanted]))
    return np.concatenate(pieces) if pieces else np.zeros(0, np.uint64)


def check(data: NDArray[np.uint8], expected: NDArray[np.uint64], name: str) -> None:
    """Raise WrongData, with the first wrong place, unless ``data`` has the sums ``expected``."""
    compare(sums(data), expected, name)


def compare(found: NDArray[np.uint64], expected: NDArray[np.uint64], name: str) -> None:
    """Raise WrongData, with the first wrong place, unless the sums are those ``expected``."""
    if len(found) == len(expected) and np.array_equal(found, expected):
        return
    wrong = np.flatnonzero(found != expected) if len(found) == len(expected) else np.arange(max(len(found), 1))
    raise WrongData(f"{name}: {len(wrong)} of {len(found)} pieces of {UNIT} bytes, the first at {wrong[0] * UNIT}")


def poison(data: NDArray[np.uint8]) -> None:
    """Overwrite the memory, so that bytes left from the read before can't pass for new ones."""
    data.fill(POISON)


def _of_words(data: NDArray[np.uint8]) -> NDArray[np.uint64]:
    words = np.ascontiguousarray(data).view(np.uint64).reshape(-1, UNIT // 8)
    out: NDArray[np.uint64] = np.einsum("ij->i", words)  # three times as fast as add.reduce, and wraps as well
    return out


def _read_full(fd: int, data: NDArray[np.uint8], at: int) -> None:
    done = 0
    while done < len(data):
        moved = os.preadv(fd, [data.data[done:]], at + done)
        if not moved:
            raise IobenchError(f"the file ends at {at + done}: it was cut while it was measured")
        done += moved
