"""One GPU as CUDA shows it: its readings, its peak, and which node of the topology it is."""

from __future__ import annotations

import contextlib
import functools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from iobench.errors import Unavailable
from iobench.gpu import nvml
from iobench.gpu.runtime import require
from iobench.units import KHZ

if TYPE_CHECKING:
    from iobench.topology.graph import Topology

_MIG = re.compile(r"\bMIG (\S+)")
_EIGHTH_SLACK = 0.05  # a slice's memory is a little less than its eighths: some is kept for the whole card


@dataclass(frozen=True)
class Device:
    """A GPU by its CUDA index. What it does not tell is None.

    ``pci`` is the address as sysfs writes it ("0000:00:06.0"), ``node`` and ``vram`` its ids in the topology
    ("gpu:0", "vram:0"; by PCI address, not by CUDA index) and ``mem`` the host memory nearest ("mem:0"), None where
    unknown. ``shared_nbytes`` is an SM's shared memory, which L1 has where none is used. ``peak_bytes_per_s`` =
    2 * memory clock * bus width / 8, times the slice's part under MIG.
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
    shared_nbytes: int | None = None
    peak_bytes_per_s: float | None = None
    mig: str | None = None
    node: str | None = None
    vram: str | None = None
    mem: str | None = None


def device(index: int = 0) -> Device:
    """Return the GPU with this CUDA index; Unavailable where it is not there."""
    require(index + 1)
    return _device(index)


def devices() -> list[Device]:
    """Return all GPUs that this process may use, in CUDA order."""
    return [_device(index) for index in range(require().cuda.runtime.getDeviceCount())]


def at(node: str) -> Device:
    """Return the GPU that the topology calls ``node`` ("gpu:0"); Unavailable where CUDA does not show it here."""
    for found in devices():
        if found.node == node:
            return found
    raise Unavailable(f"CUDA does not show {node} to this process (see CUDA_VISIBLE_DEVICES)")


@contextlib.contextmanager
def using(device: Device) -> Iterator[Device]:
    """Make ``device`` the current one inside the block."""
    with require(device.index + 1).cuda.Device(device.index):
        yield device


def address(text: str) -> str:
    """Return a PCI address as sysfs writes it ("0000:00:06.0") from CUDA's or NVML's ("00000000:00:06.0")."""
    domain, _, rest = text.strip().lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def peak(memory_hz: int | None, bus_width_bits: int | None, fraction: float | None = 1.0) -> float | None:
    """Return 2 * clock * width / 8 bytes/s (double data rate) times a slice's part, None where one is unknown."""
    if not memory_hz or not bus_width_bits or fraction is None:
        return None
    return 2 * memory_hz * bus_width_bits / 8 * fraction


def slice_fraction(slice_nbytes: int, whole_nbytes: int | None) -> float | None:
    """Return a MIG slice's part of the memory system: it gets whole eighths, rounded up so that it is a bound."""
    if not whole_nbytes or slice_nbytes > whole_nbytes:
        return None
    eighths = math.ceil(8 * slice_nbytes / whole_nbytes - _EIGHTH_SLACK)
    return min(max(eighths, 1), 8) / 8


@functools.cache
def machine() -> Topology:
    """Return this machine's graph, discovered once per process."""
    from iobench.topology import discover

    return discover()


def place(pci: str, graph: Topology) -> tuple[str | None, str | None, str | None]:
    """Return the graph's ids of a GPU, of its memory and of the host memory nearest to it, None where unknown."""
    node = next((node for node in graph.of("gpu") if node.get("address") == pci), None)
    if node is None:
        return None, None, None
    vram = f"vram:{node.id.split(':')[1]}"
    return node.id, vram if graph.node(vram) else None, _nearest(node.id, node.get("numa"), graph)


def _nearest(node: str, numa: int | None, graph: Topology) -> str | None:
    """Return the memory of the GPU's NUMA node; where none is told, the only one there is."""
    memories = [memory.id for memory in graph.of("mem")]
    if numa is None:
        pci = graph.node(node)
        parent = next((graph.node(there) for there, _ in graph.neighbours(node) if there.startswith("pci:")), None)
        numa = parent.get("numa") if pci and parent else None
    if numa is None:
        return memories[0] if len(memories) == 1 else None
    return f"mem:{numa}" if f"mem:{numa}" in memories else None


@functools.cache
def _device(index: int) -> Device:
    api = require(index + 1).cuda.runtime
    properties = api.getDeviceProperties(index)
    name = properties["name"].decode("utf-8", "replace")
    pci = address(api.deviceGetPCIBusId(index))
    width, clock = _read(api, "GlobalMemoryBusWidth", index), _read(api, "MemoryClockRate", index, KHZ)
    memory = int(properties["totalGlobalMem"])
    mig = _MIG.search(name)
    node, vram, mem = place(pci, machine())
    return Device(
        index=index,
        name=name,
        pci=pci,
        sm_count=int(properties["multiProcessorCount"]),
        l2_nbytes=_read(api, "L2CacheSize", index) or int(properties.get("l2CacheSize", 0)),
        memory_nbytes=memory,
        compute_capability=(int(properties["major"]), int(properties["minor"])),
        bus_width_bits=width,
        memory_hz=clock,
        sm_hz=_read(api, "ClockRate", index, KHZ),
        shared_nbytes=_read(api, "MaxSharedMemoryPerMultiprocessor", index),
        peak_bytes_per_s=peak(clock, width, slice_fraction(memory, nvml.memory_nbytes(pci)) if mig else 1.0),
        mig=mig[1] if mig else None,
        node=node,
        vram=vram,
        mem=mem,
    )


def _read(api: Any, attribute: str, index: int, factor: int = 1) -> int | None:
    """Return a device attribute, None where this toolkit or device has none."""
    number = getattr(api, f"cudaDevAttr{attribute}", None)
    if number is None:
        return None
    try:
        return int(api.deviceGetAttribute(number, index)) * factor or None
    except api.CUDARuntimeError:
        return None
