"""The memory that a group's ranks share."""

from __future__ import annotations

import os

from iobench.ranks.shared import SharedState


def test_shared_state_survives_odd_texts() -> None:
    fd = SharedState.create(2)
    try:
        shared = SharedState(fd, 2)
        shared.write(1, "größer " * 100)
        shared.write(0, "short")
        assert shared.read(0) == "short"
        assert shared.read(1).startswith("größer größer")
        shared.write(1, "x")
        assert shared.read(1) == "x"
        shared.close()
    finally:
        os.close(fd)
