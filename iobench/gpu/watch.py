"""Watches GPUs while they work: link state of every hop, clocks, power, throttling, replays, other processes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from iobench.gpu.device import Device
    from iobench.topology.graph import Topology


class Watch:
    """What was seen. Read it after the block has ended."""

    def evidence(self) -> dict[str, Any]:
        """Return plain data: per GPU link histogram of each hop, clocks, power, temperature, throttling, replays."""
        raise NotImplementedError

    def link_bytes_per_s(self, device: Device) -> float | None:
        """Return what the narrowest hop to ``device`` could move at its best state seen: for Leg.bytes_per_s of
        legs between host and GPU. None where nothing was seen."""
        raise NotImplementedError

    @property
    def limit_notes(self) -> list[str]:
        """One sentence per hop that stayed below its maximum under load: for Samples.notes."""
        raise NotImplementedError

    @property
    def suspect(self) -> str:
        """The reason for Samples.suspect: another process busy on a GPU, throttling by heat or power brake; else ""."""
        raise NotImplementedError


@contextlib.contextmanager
def watch(devices: Sequence[Device], topology: Topology | None = None) -> Iterator[Watch]:
    """Sample ``devices`` in a background thread, 10 times per second and at both ends."""
    raise NotImplementedError
