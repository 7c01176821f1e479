"""cudaMalloc and the like; events by the ranks' clock."""

import ctypes
import itertools
import json
import os
from pathlib import Path
from typing import Any

from cupy import clock
from cupy.cuda.memory import AREAS, looking, take

memcpyDefault = 4
L2_NBYTES = 1 << 10
_EVENTS: dict[int, int] = {}
_NUMBERS = itertools.count(1)


class CUDARuntimeError(RuntimeError):
    status = 1


def _gpus() -> list[dict[str, Any]]:
    nodes = json.loads(Path(os.environ["FAKE_MACHINE"]).read_text())["nodes"]
    return [node for node in nodes if node["kind"] == "gpu"]


def getDeviceCount() -> int:
    return len(_gpus())


def getDeviceProperties(index: int) -> dict[str, Any]:
    return {
        "name": b"NVIDIA H200", "multiProcessorCount": 1, "totalGlobalMem": 1 << 32, "l2CacheSize": L2_NBYTES,
        "major": 9, "minor": 0,
    }  # fmt: skip


def deviceGetPCIBusId(index: int) -> str:
    return str(_gpus()[index]["attrs"]["address"])


def memGetInfo() -> tuple[int, int]:
    return 1 << 24, 1 << 24


def malloc(nbytes: int) -> int:
    return take(nbytes)


def free(address: int) -> None:
    del AREAS[address]


def memcpy(target: int, source: int, nbytes: int, kind: int) -> None:
    ctypes.memmove(target, source, nbytes)


def memset(address: int, value: int, nbytes: int) -> None:
    looking(address, nbytes)[:] = value


def memsetAsync(address: int, value: int, nbytes: int, stream: int) -> None:
    memset(address, value, nbytes)


def eventCreate() -> int:
    return next(_NUMBERS)


def eventRecord(event: int, stream: int) -> None:
    assert isinstance(stream, int)
    _EVENTS[event] = clock.look()


def eventSynchronize(event: int) -> None:
    assert event in _EVENTS


def eventElapsedTime(start: int, end: int) -> float:
    return max(_EVENTS[end] - _EVENTS[start], 500) * 1e-6


def eventDestroy(event: int) -> None:
    _EVENTS.pop(event, None)


def deviceGetAttribute(number: int, index: int) -> int:
    raise CUDARuntimeError("cudaErrorInvalidValue")
