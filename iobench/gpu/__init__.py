"""NVIDIA GPUs through cupy's runtime API: devices, memory, patterns that prove the bytes, a watch over the link.

Importing it is cheap; cupy, pynvml and numpy are imported when a function needs them.
"""

from __future__ import annotations

from iobench.gpu.device import Device, at, device, devices, using
from iobench.gpu.memory import Buffer, HostBuffer, Pool, buffer, host_pool, pageable, pinned, pool, stream
from iobench.gpu.pattern import check, check_host, expected, fill, fill_host
from iobench.gpu.runtime import OutOfMemory, memcpy, require, synchronize
from iobench.gpu.watch import Watch, watch

__all__ = [
    "Buffer", "Device", "HostBuffer", "OutOfMemory", "Pool", "Watch", "at", "buffer", "check", "check_host", "device",
    "devices", "expected", "fill", "fill_host", "host_pool", "memcpy", "pageable", "pinned", "pool", "require",
    "stream", "synchronize", "using", "watch",
]  # fmt: skip
