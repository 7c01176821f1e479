"""cupy's runtime API: is it there, and what its errors mean."""

from __future__ import annotations

from typing import Any


class OutOfMemory(Exception):
    """The device (or the host, for pinned memory) has no room for a buffer: the point fails, the run goes on."""


def require(count: int = 1) -> Any:
    """Return the module cupy once ``count`` GPUs can be used; loads the driver, makes no context.

    Raises Unavailable with one sentence: no cupy, no driver, a driver older than the toolkit, fewer GPUs.
    """
    raise NotImplementedError


def memcpy(dst: int, src: int, nbytes: int, stream: Any) -> None:
    """Enqueue cudaMemcpyAsync(Default) of ``nbytes`` on a stream of gpu.stream()."""
    raise NotImplementedError


def synchronize() -> None:
    """Wait for everything on the current device."""
    raise NotImplementedError
