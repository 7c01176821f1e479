"""Streams, graphs and devices. What is launched on a stream that captures is kept and runs when the graph does."""

import itertools
from collections.abc import Callable
from typing import Any

from cupy import clock
from cupy.cuda import runtime

__all__ = ["Device", "Graph", "Stream", "run", "runtime"]
_NUMBERS = itertools.count(1000)
STREAMS: "dict[int, Stream]" = {}
CURRENT = [0]


class Device:
    def __init__(self, index: int) -> None:
        assert 0 <= index < runtime.getDeviceCount()
        self.index = index

    def __enter__(self) -> "Device":
        CURRENT[0] = self.index
        return self

    def __exit__(self, *_: Any) -> None:
        pass


class Graph:
    def __init__(self, calls: list[Callable[[], Any]]) -> None:
        self._calls = calls

    def upload(self, stream: "Stream") -> None:
        assert isinstance(stream, Stream)

    def launch(self, stream: "Stream") -> None:
        assert isinstance(stream, Stream)
        for call in self._calls:
            call()
            clock.operation()


class Stream:
    def __init__(self, *, non_blocking: bool) -> None:
        assert non_blocking
        self.ptr, self.device_id = next(_NUMBERS), 0
        self.captured: list[Callable[[], Any]] | None = None
        STREAMS[self.ptr] = self

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def synchronize(self) -> None:
        assert self.captured is None, "cudaErrorStreamCaptureUnsupported"

    def begin_capture(self) -> None:
        self.captured = []

    def end_capture(self) -> Graph:
        assert self.captured is not None
        made, self.captured = Graph(self.captured), None
        return made


def run(stream: int, call: Callable[[], Any]) -> None:
    """Run now, or with the graph that the stream captures."""
    captured = STREAMS[stream].captured
    if captured is not None:
        captured.append(call)
        return
    call()
    clock.operation()
