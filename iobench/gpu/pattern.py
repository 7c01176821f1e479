"""A pattern that no shifted, repeated or missing byte can match: word i is splitmix64(seed, i), on GPU and host alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def fill(ptr: int, nbytes: int, seed: int) -> None:
    """Write the pattern with a kernel on the current device (local, mapped host or peer memory) and wait for it."""
    raise NotImplementedError


def check(ptr: int, nbytes: int, seed: int, what: str = "the copy") -> None:
    """Compare EVERY byte on the current device; WrongData names ``what``, the count and the first wrong byte."""
    raise NotImplementedError


def fill_host(data: NDArray[Any], seed: int) -> None:
    """Write the pattern into a contiguous host array of bytes."""
    raise NotImplementedError


def check_host(data: NDArray[Any], seed: int, what: str = "the copy") -> None:
    """Compare every byte on the host; raises as ``check``."""
    raise NotImplementedError


def expected(nbytes: int, seed: int, start: int = 0) -> NDArray[np.uint8]:
    """Return bytes ``start`` to ``start + nbytes`` of the pattern."""
    raise NotImplementedError
