"""One GPU's readings through NVML. Optional: where it is missing, forbidden or silent, a reading is None."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
from dataclasses import dataclass
from typing import Any

from iobench.topology.pci import End
from iobench.units import MHZ

# what a missing function, another module of that name or an odd driver raises beside NVMLError
_ODD = (OSError, AttributeError, TypeError, ValueError, ctypes.ArgumentError)
_CLOCK_SM, _CLOCK_MEMORY, _TEMPERATURE = 1, 2, 0  # NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU


@dataclass(frozen=True)
class Reading:
    """What one GPU said at one moment. ``reasons`` is NVML's bit mask of why the clock is not higher."""

    link: End
    sm_hz: int | None
    memory_hz: int | None
    watts: float | None
    celsius: int | None
    reasons: int | None


@dataclass(frozen=True)
class Process:
    """A process with a context on the GPU; ``used`` is the highest per cent of its SMs or memory, None: unknown."""

    pid: int
    used: int | None
    graphics: bool = False


class Gpu:
    """One GPU of an NVML that works like pynvml."""

    def __init__(self, library: Any, handle: Any) -> None:
        self._library, self._handle = library, handle

    def ask(self, name: str, *arguments: Any) -> Any:
        """Return what NVML's function ``name`` says of this GPU, None where it does not."""
        try:
            return getattr(self._library, name)(self._handle, *arguments)
        except (getattr(self._library, "NVMLError", OSError), *_ODD):
            return None

    def read(self) -> Reading:
        """Return the present state."""
        sm, memory = (self.ask("nvmlDeviceGetClockInfo", clock) for clock in (_CLOCK_SM, _CLOCK_MEMORY))
        power = self.ask("nvmlDeviceGetPowerUsage")
        reasons = self.ask("nvmlDeviceGetCurrentClocksEventReasons")
        if reasons is None:  # the name in libraries before 12.2
            reasons = self.ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        return Reading(
            link=End(
                self.ask("nvmlDeviceGetCurrPcieLinkGeneration") or None,
                self.ask("nvmlDeviceGetCurrPcieLinkWidth") or None,
            ),
            sm_hz=sm * MHZ if sm else None,
            memory_hz=memory * MHZ if memory else None,
            watts=power / 1000 if power is not None else None,
            celsius=self.ask("nvmlDeviceGetTemperature", _TEMPERATURE),
            reasons=reasons,
        )

    def most(self) -> End:
        """Return what the GPU's own end of its link can do."""
        return End(
            self.ask("nvmlDeviceGetMaxPcieLinkGeneration") or None, self.ask("nvmlDeviceGetMaxPcieLinkWidth") or None
        )

    def replays(self) -> int | None:
        """Return how many PCIe packets were sent again so far."""
        count = self.ask("nvmlDeviceGetPcieReplayCounter")
        return int(count) if count is not None else None

    def processes(self, since_us: int) -> list[Process]:
        """Return the processes on the GPU and how busy they kept it since ``since_us`` (us of the epoch)."""
        used: dict[int, int] = {}
        samples = self.ask("nvmlDeviceGetProcessUtilization", since_us)
        for sample in samples or ():
            if sample.timeStamp >= since_us:
                used[sample.pid] = max(used.get(sample.pid, 0), sample.smUtil, sample.memUtil)
        found: dict[int, Process] = {}
        for name, graphics in (("Graphics", True), ("Compute", False)):
            for process in self.ask(f"nvmlDeviceGet{name}RunningProcesses") or ():
                busy = used.get(process.pid, 0 if samples else None)
                found[process.pid] = Process(process.pid, busy, graphics)
        return list(found.values())


def at(pci: str) -> Gpu | None:
    """Return the GPU at a PCI address (of the whole card under MIG), None where NVML does not show it."""
    library = _library()
    if library is None:
        return None
    try:
        handle = library.nvmlDeviceGetHandleByPciBusId(pci.encode())
    except (getattr(library, "NVMLError", OSError), *_ODD):
        return None
    return Gpu(library, handle)


def memory_nbytes(pci: str) -> int | None:
    """Return the whole card's memory, which a MIG slice's CUDA does not tell."""
    gpu = at(pci)
    return getattr(gpu.ask("nvmlDeviceGetMemoryInfo"), "total", None) if gpu else None


@functools.cache
def _library() -> Any:
    """Return pynvml, initialised once per process, None where it is not to be had."""
    try:
        import pynvml
    except (ImportError, OSError):
        return None
    failures = (getattr(pynvml, "NVMLError", OSError), *_ODD)
    try:
        pynvml.nvmlInit()
    except failures:
        return None
    atexit.register(_shut, pynvml, failures)
    return pynvml


def _shut(library: Any, failures: tuple[type[Exception], ...]) -> None:
    with contextlib.suppress(*failures):
        library.nvmlShutdown()
