"""An NVML of the same pretended GPUs: readings of an H200, links that count what copies between GPUs moved."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

from cupy._machine import DESCRIPTION

NVML_CLOCK_MEM, NVML_AFFINITY_SCOPE_NODE = 2, 0
_LINKS = 18


class NVMLError(Exception):
    pass


def nvmlInit() -> None:
    """The library is there."""


def nvmlShutdown() -> None:
    """Nothing is to be given back."""


def nvmlDeviceGetCount() -> int:
    return int(DESCRIPTION["count"])


def nvmlDeviceGetHandleByIndex(index: int) -> int:
    return index


def nvmlDeviceGetHandleByPciBusId(address: bytes) -> int:
    for index in range(DESCRIPTION["count"]):
        if address.decode() == f"0000:f0:0{index}.0":
            return index
    raise NVMLError("not found")


def nvmlDeviceGetPciInfo(handle: int) -> Any:
    return SimpleNamespace(busId=f"00000000:F0:0{handle}.0".encode())


def nvmlDeviceGetName(handle: int) -> str:
    return "NVIDIA H200"


def nvmlDeviceGetMemoryInfo(handle: int) -> Any:
    return SimpleNamespace(total=DESCRIPTION["memory"])


def nvmlDeviceGetMaxClockInfo(handle: int, clock: int) -> int:
    return 3201


def nvmlDeviceGetMemoryBusWidth(handle: int) -> int:
    return 6016


def nvmlDeviceGetP2PStatus(handle: int, other: int, index: int) -> int:
    return 0


def nvmlDeviceGetNvLinkState(handle: int, link: int) -> int:
    if link >= _LINKS or DESCRIPTION["count"] < 2:
        raise NVMLError("not supported")
    return 1


def nvmlDeviceGetNvLinkVersion(handle: int, link: int) -> int:
    return 6


def nvmlDeviceGetClockInfo(handle: int, clock: int) -> int:
    return 3201 if clock == NVML_CLOCK_MEM else 1980


def nvmlDeviceGetPowerUsage(handle: int) -> int:
    return 120_000


def nvmlDeviceGetTemperature(handle: int, sensor: int) -> int:
    return 40


def nvmlDeviceGetCurrentClocksEventReasons(handle: int) -> int:
    return 0


def nvmlDeviceGetCurrPcieLinkGeneration(handle: int) -> int:
    return 5


def nvmlDeviceGetCurrPcieLinkWidth(handle: int) -> int:
    return 16


nvmlDeviceGetMaxPcieLinkGeneration = nvmlDeviceGetCurrPcieLinkGeneration
nvmlDeviceGetMaxPcieLinkWidth = nvmlDeviceGetCurrPcieLinkWidth


def nvmlDeviceGetPcieReplayCounter(handle: int) -> int:
    return 0


def nvmlDeviceGetProcessUtilization(handle: int, since: int) -> list[Any]:
    busy = DESCRIPTION["busy"]
    return [SimpleNamespace(pid=pid, smUtil=used, memUtil=0, timeStamp=since + 1) for pid, used in busy]


def nvmlDeviceGetComputeRunningProcesses(handle: int) -> list[Any]:
    return [SimpleNamespace(pid=pid) for pid, _ in DESCRIPTION["busy"]]


def nvmlDeviceGetGraphicsRunningProcesses(handle: int) -> list[Any]:
    return []


def nvmlDeviceGetFieldValues(handle: int, fields: list[tuple[int, int]]) -> list[Any]:
    sent, received = sys.modules["cupy._machine"].MACHINE.carried[handle]
    found = []
    for kind, link in fields:
        nbytes = {138: sent, 139: received}[kind]
        share = nbytes if link == 0xFFFFFFFF else nbytes // _LINKS
        found.append(SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(ullVal=share // 1024)))
    return found
