"""One GPU as CUDA shows it: its readings, its peak, and which node of the topology it is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Device:
    """A GPU by its CUDA index. What it does not tell is None.

    ``pci`` is the address as sysfs writes it ("0000:00:06.0"), ``node`` and ``vram`` its ids in the topology
    ("gpu:0", "vram:0"; by PCI address, not by CUDA index) and ``mem`` the host memory nearest ("mem:0"), None where
    unknown. ``peak_bytes_per_s`` = 2 * memory clock * bus width / 8, times the slice's part under MIG.
    """

    index: int
    name: str
    pci: str
    sm_count: int
    l2_nbytes: int
    memory_nbytes: int
    compute_capability: tuple[int, int]
    bus_width_bits: int | None = None
    memory_hz: int | None = None
    sm_hz: int | None = None
    peak_bytes_per_s: float | None = None
    mig: str | None = None
    node: str | None = None
    vram: str | None = None
    mem: str | None = None


def device(index: int = 0) -> Device:
    """Return the GPU with this CUDA index; Unavailable where it is not there."""
    raise NotImplementedError


def devices() -> list[Device]:
    """Return all GPUs that this process may use, in CUDA order."""
    raise NotImplementedError


def at(node: str) -> Device:
    """Return the GPU that the topology calls ``node`` ("gpu:0"); Unavailable where CUDA does not show it here."""
    raise NotImplementedError


@contextlib.contextmanager
def using(device: Device) -> Iterator[Device]:
    """Make ``device`` the current one inside the block."""
    raise NotImplementedError
