"""What one point leaves for the next."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from iobench import keep
from iobench.keep import Kept


def test_the_same_key_keeps_and_another_closes_first() -> None:
    log: list[str] = []

    @contextlib.contextmanager
    def make(name: str) -> Iterator[str]:
        log.append(f"open {name}")
        yield name
        log.append(f"close {name}")

    place: Kept[str]
    with keep.kept() as place:
        assert place.get(1, lambda: make("a")) == "a"
        assert place.get(1, lambda: make("b")) == "a"
        assert place.get(2, lambda: make("c")) == "c"
        assert log == ["open a", "close a", "open c"]
    assert log[-1] == "close c"


def test_what_fails_to_open_is_not_held() -> None:
    @contextlib.contextmanager
    def broken() -> Iterator[str]:
        raise OSError("no")
        yield ""

    place: Kept[str]
    with keep.kept() as place:
        with pytest.raises(OSError, match="no"):
            place.get(1, broken)
        assert place.get(1, lambda: contextlib.nullcontext("next")) == "next"
