"""The CUDA runtime API by the names that cupy gives it."""

from __future__ import annotations

import ctypes
from typing import Any

from cupy._machine import (
    DESCRIPTION,
    HOST,
    INVALID_VALUE,
    MACHINE,
    MEMORY,
    NOT_READY,
    PEERS_ALREADY,
    Area,
    CUDARuntimeError,
    Moment,
)

__all__ = ["CUDARuntimeError"]
memcpyHostToDevice, memcpyDeviceToHost, memcpyDefault = 1, 2, 4
cudaDevAttrClockRate, cudaDevAttrMemoryClockRate = 13, 36
cudaDevAttrGlobalMemoryBusWidth, cudaDevAttrL2CacheSize, cudaDevAttrMaxSharedMemoryPerMultiprocessor = 37, 38, 81


def getDeviceCount() -> int:
    return int(DESCRIPTION["count"])


def driverGetVersion() -> int:
    return 13000


def runtimeGetVersion() -> int:
    return 13000


def getDeviceProperties(device: int) -> dict[str, Any]:
    return {
        "name": b"NVIDIA H200", "totalGlobalMem": DESCRIPTION["memory"], "multiProcessorCount": DESCRIPTION["sms"],
        "l2CacheSize": DESCRIPTION["l2"], "major": 9, "minor": 0,
    }  # fmt: skip


def deviceGetPCIBusId(device: int) -> str:
    return f"0000:F0:0{device}.0"


def deviceGetAttribute(attrib: int, device: int) -> int:
    return {13: 1_980_000, 36: 3_201_000, 37: 6016, 38: int(DESCRIPTION["l2"]), 81: 233_472}[attrib]


def setDevice(device: int) -> None:
    MACHINE.device = device


def deviceSynchronize() -> None:
    MACHINE.drain()
    MACHINE.wait(*(line.time for line in MACHINE.lines.values() if line.device == MACHINE.device or line.handle == 0))


def deviceCanAccessPeer(device: int, peerDevice: int) -> int:
    return int(device != peerDevice)


def deviceEnablePeerAccess(peerDevice: int) -> None:
    if (MACHINE.device, peerDevice) in MACHINE.peers:
        raise CUDARuntimeError(PEERS_ALREADY)
    MACHINE.peers.add((MACHINE.device, peerDevice))


# ---- memory


def memGetInfo() -> tuple[int, int]:
    return MACHINE.free(MACHINE.device), int(DESCRIPTION["memory"])


def malloc(size: int) -> int:
    return MACHINE.allocate(size, MACHINE.device)


def free(ptr: int) -> None:
    MACHINE.release(ptr)


def hostAlloc(size: int, flags: int) -> int:
    return MACHINE.allocate(size, HOST)


def freeHost(ptr: int) -> None:
    MACHINE.release(ptr)


def hostRegister(ptr: int, size: int, flags: int) -> None:
    MACHINE.areas[ptr] = Area(ptr, size, HOST)


def hostUnregister(ptr: int) -> None:
    MACHINE.release(ptr)


def memcpyAsync(dst: int, src: int, size: int, kind: int, stream: int) -> None:
    if kind != memcpyDefault or size < 0:
        raise CUDARuntimeError(INVALID_VALUE)
    seconds = 1.2e-6 + MACHINE.seconds_of(dst, src, size)

    def copy(line: Any) -> None:
        MACHINE.count(dst, src, size)
        ctypes.memmove(dst, src, size)

    MACHINE.put(stream, seconds, copy)
    if MACHINE.lines[stream].captured is None and None in (MACHINE.where(dst), MACHINE.where(src)):
        MACHINE.drain()  # pageable memory: the call waits for its stream
        MACHINE.wait(MACHINE.lines[stream].time)


def memcpy2DAsync(
    dst: int, dpitch: int, src: int, spitch: int, width: int, height: int, kind: int, stream: int
) -> None:
    if kind not in (memcpyHostToDevice, memcpyDeviceToHost, memcpyDefault) or width > min(dpitch, spitch):
        raise CUDARuntimeError(INVALID_VALUE)
    for ptr, pitch in ((dst, dpitch), (src, spitch)):
        MACHINE.where(ptr, (height - 1) * pitch + width)

    def rows(line: Any) -> None:
        for row in range(height):
            ctypes.memmove(dst + row * dpitch, src + row * spitch, width)

    MACHINE.put(stream, 1.2e-6 + MACHINE.seconds_of(dst, src, width) * height, rows)


def memcpy(dst: int, src: int, size: int, kind: int) -> None:
    MACHINE.seconds_of(dst, src, size)
    MACHINE.wait_all()
    ctypes.memmove(dst, src, size)


def memset(ptr: int, value: int, size: int) -> None:
    MACHINE.wait_all()
    MACHINE.where(ptr, size)
    ctypes.memset(ptr, value, size)


def memsetAsync(ptr: int, value: int, size: int, stream: int) -> None:
    MACHINE.where(ptr, size)
    MACHINE.put(stream, 1e-6 + size / MEMORY, lambda line: ctypes.memset(ptr, value, size))


# ---- events


def eventCreate() -> int:
    handle = MACHINE.handle()
    MACHINE.events[handle] = Moment()
    return handle


def eventDestroy(event: int) -> None:
    del MACHINE.events[event]


def eventRecord(event: int, stream: int) -> None:
    moment = MACHINE.events[event] = Moment()

    def passed(line: Any) -> None:
        moment.time = line.time

    MACHINE.put(stream, 0.0, passed)


def streamWaitEvent(stream: int, event: int, flags: int = 0) -> None:
    moment = MACHINE.events[event]  # what it stands for now: recording it anew later does not change the wait

    def wait(line: Any) -> None:
        line.time = max(line.time, moment.time or 0.0)

    MACHINE.put(stream, 0.0, wait)


def eventSynchronize(event: int) -> None:
    MACHINE.drain()
    MACHINE.wait(MACHINE.events[event].time or 0.0)


def eventQuery(event: int) -> int:
    time = MACHINE.events[event].time
    return 0 if time is not None and time <= MACHINE.now else NOT_READY


def eventElapsedTime(start: int, end: int) -> float:
    times = [MACHINE.events[event].time for event in (start, end)]
    if times[0] is None or times[1] is None or max(times[0], times[1]) > MACHINE.now:
        raise CUDARuntimeError(NOT_READY)
    return (times[1] - times[0]) * 1e3
