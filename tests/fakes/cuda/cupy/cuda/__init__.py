"""Devices, streams, events and graphs as cupy.cuda has them."""

from __future__ import annotations

from typing import Any

from cupy._machine import DESCRIPTION, MACHINE, CUDARuntimeError, Line
from cupy.cuda import runtime

__all__ = ["Device", "Event", "Graph", "Stream", "current_stream", "get_elapsed_time", "runtime"]
_current: dict[int, list[Stream]] = {}


class Device:
    def __init__(self, index: int | None = None) -> None:
        self.id = MACHINE.device if index is None else index
        if not 0 <= self.id < DESCRIPTION["count"]:
            raise CUDARuntimeError(101)
        self._before: list[int] = []

    @property
    def attributes(self) -> dict[str, int]:
        return {"MultiProcessorCount": DESCRIPTION["sms"]}

    def synchronize(self) -> None:
        runtime.deviceSynchronize()

    def __enter__(self) -> Device:
        self._before.append(MACHINE.device)
        MACHINE.device = self.id
        return self

    def __exit__(self, *_: object) -> None:
        MACHINE.device = self._before.pop()


class Stream:
    null: Stream

    def __init__(self, null: bool = False, non_blocking: bool = False) -> None:
        self.device_id = -1 if null else MACHINE.device
        self.ptr = 0 if null else MACHINE.handle()
        if not null:
            MACHINE.lines[self.ptr] = Line(self.ptr, self.device_id)

    def __enter__(self) -> Stream:
        _current.setdefault(MACHINE.device, []).append(self)
        return self

    def __exit__(self, *_: object) -> None:
        for stack in _current.values():
            if stack and stack[-1] is self:
                stack.pop()
                return

    def synchronize(self) -> None:
        line = MACHINE.lines[self.ptr]
        assert line.captured is None, "a stream that is captured cannot be waited for"
        MACHINE.drain()
        MACHINE.wait(line.time)

    def begin_capture(self) -> None:
        MACHINE.lines[self.ptr].captured = []

    def is_capturing(self) -> bool:
        return MACHINE.lines[self.ptr].captured is not None

    def end_capture(self) -> Graph:
        line = MACHINE.lines[self.ptr]
        commands, line.captured = line.captured, None
        return Graph(commands or [])


Stream.null = Stream(null=True)


class Graph:
    def __init__(self, commands: list[Any]) -> None:
        self._commands = commands

    def upload(self, stream: Stream | None = None) -> None:
        """Nothing is to be brought anywhere."""

    def launch(self, stream: Stream | None = None) -> None:
        MACHINE.replay((stream or current_stream()).ptr, self._commands)


class Event:
    def __init__(self, block: bool = False, disable_timing: bool = False) -> None:
        self.ptr = runtime.eventCreate()

    def record(self, stream: Stream | None = None) -> None:
        runtime.eventRecord(self.ptr, (stream or current_stream()).ptr)

    def synchronize(self) -> None:
        runtime.eventSynchronize(self.ptr)


def get_elapsed_time(start: Event, end: Event) -> float:
    return runtime.eventElapsedTime(start.ptr, end.ptr)


def current_stream() -> Stream:
    stack = _current.get(MACHINE.device)
    return stack[-1] if stack else Stream.null
