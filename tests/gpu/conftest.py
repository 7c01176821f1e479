"""Tests that need a GPU are skipped, with the reason, where there is none or too few."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from iobench import gpu
from iobench.errors import Unavailable
from iobench.gpu import Device
from iobench.timing.sampler import Sampler


def pytest_runtest_setup(item: pytest.Item) -> None:
    count = 2 if item.get_closest_marker("multigpu") else 1
    try:
        gpu.require(count)
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture
def card() -> Device:
    """The first GPU."""
    return gpu.device(0)


@pytest.fixture
def sampler() -> Iterator[Sampler]:
    made = Sampler(budget=0.3)
    yield made
    made.close()
