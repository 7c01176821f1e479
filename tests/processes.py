"""Waiting for what other processes and threads do, minutes only where something hangs; ports that nobody takes."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

PATIENCE_SECONDS = 300.0  # a hang, not a busy machine


def eventually(condition: Callable[[], bool]) -> bool:
    """Tell whether the condition comes true before anybody would call it a hang."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > end:
            return condition()
        time.sleep(0.01)
    return True


def state(pid: int) -> str:
    """Return the letter of a process's state in /proc, "" for one that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def gone(pid: int) -> bool:
    """Tell whether the process ends; one that nobody has asked for its end yet (a zombie) has ended too."""
    return eventually(lambda: state(pid) in ("", "Z", "X"))


@contextlib.contextmanager
def held_port() -> Iterator[int]:
    """Yield a port of 127.0.0.1 on which nobody listens, and that the kernel gives to nobody else meanwhile.

    Who names it can listen there: both sides have SO_REUSEADDR.
    """
    with socket.socket() as keeper:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind(("127.0.0.1", 0))
        yield int(keeper.getsockname()[1])
