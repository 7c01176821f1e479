"""What NVML tells of the GPUs: names, memory clock and bus, NVLinks and peer access. Optional: no NVML, no facts."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from iobench.units import MHZ

T = TypeVar("T")
_MOST_LINKS = 18
_SWITCH = 2  # NVML_NVLINK_DEVICE_TYPE_SWITCH
_PEER_READ, _PEER_OK = 0, 0  # NVML_P2P_CAPS_INDEX_READ (a tuple by mistake in some releases), NVML_P2P_STATUS_OK
# what a missing function, another module of that name or an odd driver raises beside NVMLError
_ODD = (OSError, AttributeError, TypeError, ValueError, ctypes.ArgumentError)


@dataclass(frozen=True)
class NvLink:
    """One active NVLink. ``remote``: "switch", a GPU's PCI address, or None where NVML does not say."""

    number: int
    version: int | None
    remote: str | None


@dataclass
class Gpu:
    """One GPU as NVML shows it; what it would not tell is None. ``peers``: PCI address -> peer access works."""

    pci: str
    name: str | None = None
    memory_bytes: int | None = None
    memory_hz: int | None = None
    bus_bits: int | None = None
    numa: int | None = None
    links: list[NvLink] = field(default_factory=list)
    links_inactive: int = 0
    peers: dict[str, bool] = field(default_factory=dict)


def read() -> tuple[list[Gpu], str]:
    """Return the GPUs and in one phrase what NVML said; no GPU where it is missing or fails."""
    try:
        import pynvml
    except ModuleNotFoundError:
        return [], "not used: this Python has no nvidia-ml-py"
    except (ImportError, OSError) as error:
        return [], f"not used: {type(error).__name__}"
    return read_with(pynvml)


def read_with(library: Any) -> tuple[list[Gpu], str]:
    """Return the same through a module that works like pynvml."""
    failures = (getattr(library, "NVMLError", OSError), *_ODD)
    try:
        library.nvmlInit()
    except failures as error:
        return [], f"not used: {_phrase(error)}"
    try:
        return _read_all(library), "used"
    except failures as error:
        return [], f"not used: {_phrase(error)}"
    finally:
        _ask(library, lambda: library.nvmlShutdown())


def _phrase(error: Exception) -> str:
    return str(error).splitlines()[0][:80] if str(error) else type(error).__name__


def _ask(nvml: Any, call: Callable[..., T], *arguments: Any) -> T | None:
    """Return what one call answers, None where this GPU or driver does not support it or the library lacks it."""
    try:
        return call(*arguments)
    except (getattr(nvml, "NVMLError", OSError), *_ODD):
        return None


def _read_all(nvml: Any) -> list[Gpu]:
    handles = [_ask(nvml, nvml.nvmlDeviceGetHandleByIndex, place) for place in range(nvml.nvmlDeviceGetCount())]
    found = [(handle, gpu) for handle in handles if handle is not None and (gpu := _gpu(nvml, handle)) is not None]
    for handle, gpu in found:
        for other, peer in found:
            if peer is not gpu:
                status = _ask(nvml, nvml.nvmlDeviceGetP2PStatus, handle, other, _PEER_READ)
                if status is not None:
                    gpu.peers[peer.pci] = status == _PEER_OK
    return [gpu for _, gpu in found]


def _gpu(nvml: Any, handle: Any) -> Gpu | None:
    info = _ask(nvml, nvml.nvmlDeviceGetPciInfo, handle)
    address = _address(info)
    if address is None:
        return None
    memory = _ask(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    clock = _ask(nvml, lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM))
    links, inactive = _links(nvml, handle)
    return Gpu(
        pci=address,
        name=_text(_ask(nvml, nvml.nvmlDeviceGetName, handle)),
        memory_bytes=getattr(memory, "total", None),
        memory_hz=clock * MHZ if clock else None,
        bus_bits=_ask(nvml, lambda: nvml.nvmlDeviceGetMemoryBusWidth(handle)) or None,
        numa=_numa(nvml, handle),
        links=links,
        links_inactive=inactive,
    )


def _links(nvml: Any, handle: Any) -> tuple[list[NvLink], int]:
    """Return the active links and how many are there but inactive."""
    active, inactive = [], 0
    for number in range(_MOST_LINKS):
        state = _ask(nvml, lambda number=number: nvml.nvmlDeviceGetNvLinkState(handle, number))
        if state == 0:
            inactive += 1
        elif state == 1:
            version = _ask(nvml, lambda number=number: nvml.nvmlDeviceGetNvLinkVersion(handle, number))
            active.append(NvLink(number, _generation(version), _remote(nvml, handle, number)))
    return active, inactive


def _generation(version: int | None) -> int | None:
    """Return the generation of NVML's version number, which counts 1.0, 2.0, 2.2, 3.0, 3.1, 4.0, 5.0 from 1 on."""
    return {1: 1, 2: 2, 3: 2, 4: 3, 5: 3, 6: 4, 7: 5}.get(version or 0)


def _remote(nvml: Any, handle: Any, number: int) -> str | None:
    kind = _ask(nvml, lambda: nvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, number))
    if kind == _SWITCH:
        return "switch"
    return _address(_ask(nvml, lambda: nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, number)))


def _numa(nvml: Any, handle: Any) -> int | None:
    """Return the one NUMA node whose memory is nearest, None where there are several or none."""
    words = _ask(nvml, lambda: nvml.nvmlDeviceGetMemoryAffinity(handle, 16, nvml.NVML_AFFINITY_SCOPE_NODE))
    nodes = [64 * place + bit for place, word in enumerate(words or ()) for bit in range(64) if int(word) >> bit & 1]
    return nodes[0] if len(nodes) == 1 else None


def _address(info: Any) -> str | None:
    """Return a PCI address as sysfs writes it, with a domain of four digits."""
    text = _text(getattr(info, "busId", None)) or ""
    match = re.fullmatch(r"([0-9A-Fa-f]{4,8}):([0-9A-Fa-f]{2}):([0-9A-Fa-f]{2})\.([0-7])", text)
    if not match or text.lower().startswith("ffffffff"):
        return None
    return f"{int(match[1], 16):04x}:{match[2]}:{match[3]}.{match[4]}".lower()


def _text(value: Any) -> str | None:
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    return text if isinstance(text, str) and text else None
