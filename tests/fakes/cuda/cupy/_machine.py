"""GPUs that are host memory, with streams that run when they are waited for and a clock of their own.

Commands keep CUDA's order: each waits for the one before on its stream and for the events that its stream waits for.
They run in the order in which they were enqueued, when the host waits for something; the clock says when they would
have begun and ended on a GPU: the host takes LAUNCH seconds for each call, a command what its bytes take at the
rates below. A gate holds its stream until the host waits.

The rates are a hundredth of an H200's: what lasts a millisecond on the clock is few enough bytes for a CPU.
FAKE_GPUS (JSON) describes the machine: count, memory, l2, sms, and busy: [[pid, per cent], ...].
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

DESCRIPTION: dict[str, Any] = {"count": 1, "memory": 512 << 20, "l2": 256 << 10, "sms": 4, "busy": []}
DESCRIPTION |= json.loads(os.environ.get("FAKE_GPUS", "{}"))
LAUNCH = 2e-6
HOST_LINK, PEER_LINK, MEMORY = 0.55e9, 3.95e9, 44e9  # bytes/s
HOST = -1
OUT_OF_MEMORY, INVALID_VALUE, NOT_READY, PEERS_ALREADY = 2, 1, 600, 704
_NAMES = {OUT_OF_MEMORY: "cudaErrorMemoryAllocation", NOT_READY: "cudaErrorNotReady",
          PEERS_ALREADY: "cudaErrorPeerAccessAlreadyEnabled", INVALID_VALUE: "cudaErrorInvalidValue"}  # fmt: skip


class CUDARuntimeError(RuntimeError):
    def __init__(self, status: int) -> None:
        super().__init__(f"{_NAMES.get(status, 'cudaError')}: {status}")
        self.status = status


@dataclass
class Line:
    """One stream: when its last command ends, and what a capture collects."""

    handle: int
    device: int
    time: float = 0.0
    captured: list[Command] | None = None


@dataclass
class Command:
    """``work(line)`` runs once; ``seconds`` may depend on when it runs (a gate)."""

    line: Line
    issued: float
    seconds: float | Callable[[float], float]
    work: Callable[[Line], Any]


@dataclass
class Moment:
    """When an event was passed; None: not yet."""

    time: float | None = None


@dataclass
class Area:
    start: int
    nbytes: int
    device: int
    kept: Any = field(repr=False, default=None)


class Machine:
    def __init__(self) -> None:
        self.now = 0.0  # of the host
        self.lock = threading.RLock()
        self.device = 0
        self.lines: dict[int, Line] = {0: Line(0, 0)}
        self.events: dict[int, Moment] = {}
        self.areas: dict[int, Area] = {}
        self.todo: deque[Command] = deque()
        self.peers: set[tuple[int, int]] = set()
        self.carried = [[0, 0] for _ in range(DESCRIPTION["count"])]  # bytes that each GPU's NVLinks sent, received
        self._handles = 1

    # ---- streams and events

    def handle(self) -> int:
        self._handles += 1
        return self._handles

    def put(self, stream: int, seconds: Any, work: Callable[[Line], Any]) -> None:
        self.now += LAUNCH
        line = self.lines[stream]
        command = Command(line, self.now, seconds, work)
        if line.captured is not None:
            line.captured.append(command)
        else:
            self.todo.append(command)

    def replay(self, stream: int, commands: list[Command]) -> None:
        self.now += LAUNCH
        line = self.lines[stream]
        self.todo.extend(Command(line, self.now, command.seconds, command.work) for command in commands)

    def drain(self) -> None:
        with self.lock:  # a thread that waits for another's command must not go on before that has run
            while self.todo:
                command = self.todo.popleft()
                line = command.line
                begun = max(line.time, command.issued)
                seconds = command.seconds(begun) if callable(command.seconds) else command.seconds
                line.time = begun + seconds
                command.work(line)

    def wait(self, *times: float) -> None:
        self.now = max(self.now, *times)

    def wait_all(self) -> None:
        self.drain()
        self.wait(*(line.time for line in self.lines.values()))

    # ---- memory

    def allocate(self, nbytes: int, device: int) -> int:
        if device != HOST and nbytes > self.free(device):
            raise CUDARuntimeError(OUT_OF_MEMORY)
        if nbytes > 8 << 30:
            raise CUDARuntimeError(OUT_OF_MEMORY)
        kept = mmap.mmap(-1, max(nbytes, 1))
        start = ctypes.addressof(ctypes.c_char.from_buffer(kept))
        self.areas[start] = Area(start, nbytes, device, kept)
        return start

    def free(self, device: int) -> int:
        used = sum(-(-area.nbytes // 512) * 512 for area in self.areas.values() if area.device == device)
        return int(DESCRIPTION["memory"]) - used

    def release(self, start: int) -> None:
        if start not in self.areas:
            raise CUDARuntimeError(INVALID_VALUE)
        self.wait_all()
        del self.areas[start]  # the map goes with the last array that looks into it

    def where(self, ptr: int, nbytes: int = 1) -> Area | None:
        """Return the area that holds these bytes; CUDA faults on device memory that is not wholly inside one."""
        for area in self.areas.values():
            if area.start <= ptr < area.start + max(area.nbytes, 1):
                assert ptr + nbytes <= area.start + area.nbytes, f"{nbytes} bytes from {ptr:#x} leave their buffer"
                return area
        return None

    def seconds_of(self, dst: int, src: int, nbytes: int) -> float:
        """Return how long the bytes take between two places."""
        source, target = self.ends(dst, src, nbytes)
        if source == target != HOST:
            return 2 * nbytes / MEMORY
        return nbytes / (HOST_LINK if HOST in (source, target) else PEER_LINK)

    def ends(self, dst: int, src: int, nbytes: int) -> tuple[int, int]:
        """Return the devices that the bytes come from and go to."""
        source, target = (area.device if (area := self.where(ptr, nbytes)) else HOST for ptr in (src, dst))
        return source, target

    def count(self, dst: int, src: int, nbytes: int, times: int = 1) -> None:
        """Let the NVLinks count what goes from one GPU to another."""
        source, target = self.ends(dst, src, nbytes)
        if source != target and HOST not in (source, target):
            self.carried[source][0] += nbytes * times
            self.carried[target][1] += nbytes * times


MACHINE = Machine()
