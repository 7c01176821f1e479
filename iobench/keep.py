"""Keeps what the last point used for the next one, where that asks for the same."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Kept(Generic[T]):
    """One thing under one key; another key closes it and makes the next."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._held: tuple[Hashable, T] | None = None

    def get(self, key: Hashable, make: Callable[[], contextlib.AbstractContextManager[T]]) -> T:
        """Return what ``make()`` yields, or what it yielded before under the same ``key``."""
        if self._held is None or self._held[0] != key:
            self.drop()
            self._held = (key, self._stack.enter_context(make()))
        return self._held[1]

    def drop(self) -> None:
        """Close what is held."""
        self._held = None
        self._stack.close()


@contextlib.contextmanager
def kept() -> Iterator[Kept[T]]:
    """Yield a place for one thing, which is closed on leaving. Made for ``sampler.shared``."""
    with contextlib.ExitStack() as stack:
        yield Kept(stack)
