"""The rank's side: load the named target, answer the parent's commands until it closes the pipe.

Started by launcher.py as a fresh interpreter. Messages are JSON, one per line, over two pipes of their
own, so nothing that a library prints can disturb them.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import importlib.util
import json
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iobench.ranks.shared import SharedState

_PR_SET_PDEATHSIG = 1


@dataclass
class Rank:
    """What the target of a group is given: who it is, its configuration, its peers' barrier."""

    rank: int
    size: int
    local_rank: int
    config: dict[str, Any]
    shared: SharedState
    crowded: bool = False

    def state(self, text: str) -> None:
        """Say what this rank does next; the parent quotes it when the rank dies or hangs."""
        self.shared.write(self.local_rank, text)

    def barrier(self) -> None:
        """Wait for all ranks of this host; they leave within about a microsecond of each other."""
        self.shared.meet(self.local_rank, self.crowded)

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """Keep the garbage collector out of a timed loop."""
        gc.disable()
        try:
            yield
        finally:
            gc.enable()


def main() -> None:
    """Run one rank; argv holds the three descriptors and the parent's process id (0: don't watch it)."""
    commands_fd, answers_fd, shared_fd, parent = map(int, sys.argv[2:6])
    die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business, it ends the ranks
    commands: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(commands_fd, commands), daemon=True).start()
    _serve(commands, answers_fd, shared_fd)
    os._exit(0)


def resolve(target: str) -> Callable[[Rank], Any]:
    """Return the callable named "file.py:name" or "package.module:name"."""
    place, _, name = target.rpartition(":")
    if not place.endswith(".py"):
        return getattr(importlib.import_module(place), name)  # type: ignore[no-any-return]
    spec = importlib.util.spec_from_file_location(f"iobench_rank_{Path(place).stem}", place)
    if spec is None or spec.loader is None:
        raise ImportError(f"{place} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return getattr(module, name)  # type: ignore[no-any-return]


def die_with(parent: int) -> None:
    """Ask the kernel to kill this rank when the parent dies, even if it hangs in C code."""
    if parent:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the request
            os._exit(1)


def _listen(fd: int, commands: queue.SimpleQueue[dict[str, Any]]) -> None:
    with os.fdopen(fd, encoding="utf-8") as pipe:
        for line in pipe:
            commands.put(json.loads(line))
    os._exit(0)  # the parent closed the pipe or died: nobody is left to answer


def _serve(commands: queue.SimpleQueue[dict[str, Any]], answers_fd: int, shared_fd: int) -> None:
    with os.fdopen(answers_fd, "w", encoding="utf-8") as answers:
        service: Any = None

        def begin(start: dict[str, Any]) -> list[int]:
            nonlocal service
            allowed = len(os.sched_getaffinity(0))
            cpus = _pin(start["pin"])
            service = resolve(start["target"])(_rank(start, shared_fd, allowed))
            gc.freeze()  # what the libraries made on import stays for good: later collections skip it
            return cpus

        _answer(answers, lambda: begin(commands.get()))
        while (command := commands.get()).get("call"):
            method, arguments = command["call"], command["arguments"]
            _answer(answers, lambda m=method, a=arguments: getattr(service, m)(**a))  # type: ignore[misc]
        if hasattr(service, "close"):
            service.close()


def _rank(start: dict[str, Any], shared_fd: int, allowed: int) -> Rank:
    number, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local, here = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    shared = SharedState(shared_fd, here)
    shared.write(local, "the start")
    return Rank(number, size, local, start["config"], shared, crowded=here > allowed)


def _pin(cpus: list[int] | None) -> list[int]:
    """Pin this process before anything starts a thread; return the CPUs read back."""
    if cpus is not None:
        os.sched_setaffinity(0, cpus)
    return sorted(os.sched_getaffinity(0))


def _answer(answers: Any, work: Callable[[], Any]) -> None:
    """Send what ``work`` returns. Any exception belongs to the parent: it travels as name and text."""
    try:
        message = json.dumps({"value": work()})
    except Exception as error:  # noqa: BLE001 - handed on, not swallowed
        text = {"error": type(error).__name__, "text": str(error), "traceback": traceback.format_exc()}
        message = json.dumps(text)
    answers.write(message + "\n")
    answers.flush()
