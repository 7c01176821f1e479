"""The agent of a node that is not the lead: starts ranks on request and passes their commands and answers on.

One connection per rank. The first message names the token, the group and the rank's environment; after it come the
rank's commands, and back go its answers, its state when it changes, and how it ended. When a connection ends, its
rank is killed: nothing outlives the lead. The agent listens on one address and answers only who knows the token.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from iobench.ranks.shared import SharedState
from iobench.ranks.spawn import Process, spawn
from iobench.ranks.wire import Broken, Wire

HELLO_SECONDS = 10.0
_HELLO_NBYTES = 1 << 20
_STATE_SECONDS = 0.2
_MOST_RANKS = 1024


@dataclass
class _Group:
    """The memory that the ranks of one group on this node share; gone with the last of them."""

    descriptor: int
    ranks: int
    users: int = 0


class Agent:
    """Serves one job; ``port`` is where it listens once made."""

    def __init__(self, address: str, token: str, port: int = 0) -> None:
        self._token = token
        self._listener = socket.create_server((address, port))
        self.port: int = self._listener.getsockname()[1]
        self._groups: dict[str, _Group] = {}
        self._lock = threading.Lock()
        self._wires: set[Wire] = set()
        self._taking = threading.Thread(target=self._accept, daemon=True)
        self._taking.start()

    def trust(self, token: str) -> None:
        """Answer those who know this token from now on."""
        self._token = token

    def close(self) -> None:
        """End all ranks and stop listening; whoever came before is turned away, whoever comes later finds nobody."""
        with contextlib.suppress(OSError):  # closed already
            self._listener.shutdown(socket.SHUT_RDWR)  # close alone would leave the port open until accept returns
        self._taking.join()
        self._listener.close()
        for wire in list(self._wires):
            wire.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # closed
            wire = Wire(connection)
            self._wires.add(wire)
            threading.Thread(target=self._serve, args=(wire,), daemon=True).start()

    def _serve(self, wire: Wire) -> None:
        try:
            hello = self._hello(wire)
            if hello is not None:
                with self._shared(hello["group"], int(hello["environment"]["LOCAL_WORLD_SIZE"])) as group:
                    _relay(wire, hello["environment"], group)
        except (OSError, Broken):
            pass  # the lead is gone, or it was none: its rank has ended with the connection
        finally:
            self._wires.discard(wire)
            wire.close()

    def _hello(self, wire: Wire) -> dict[str, Any] | None:
        """Return the first message where it is one of the lead's, else None."""
        wire.connection.settimeout(HELLO_SECONDS)
        message = wire.receive(_HELLO_NBYTES)
        if message is None or not hmac.compare_digest(str(message.get("token", "")).encode(), self._token.encode()):
            return None
        environment, group = message.get("environment"), message.get("group")
        if not isinstance(group, str) or not isinstance(environment, dict) or not _sound(environment):
            return None
        wire.connection.settimeout(None)
        return {"group": group, "environment": environment}

    @contextlib.contextmanager
    def _shared(self, name: str, ranks: int) -> Iterator[_Group]:
        with self._lock:
            if name not in self._groups:
                self._groups[name] = _Group(SharedState.create(ranks), ranks)
            group = self._groups[name]
            group.users += 1
        try:
            yield group
        finally:
            with self._lock:
                group.users -= 1
                if not group.users:
                    os.close(group.descriptor)
                    del self._groups[name]


def _sound(environment: Mapping[str, Any]) -> bool:
    """Tell whether these are variables of a rank with a place on this node."""
    local, size = str(environment.get("LOCAL_RANK")), str(environment.get("LOCAL_WORLD_SIZE"))
    whole = local.isdecimal() and size.isdecimal() and int(local) < int(size) <= _MOST_RANKS
    return whole and all(isinstance(name, str) and isinstance(value, str) for name, value in environment.items())


def _relay(wire: Wire, environment: Mapping[str, str], group: _Group) -> None:
    """Run one rank until it ends or its connection does."""
    slot = int(environment["LOCAL_RANK"])
    state = SharedState(group.descriptor, group.ranks)
    state.write(slot, "the start of Python")
    process = spawn({**os.environ, **environment}, group.descriptor, 0)
    ended = threading.Event()
    threads = [
        threading.Thread(target=_answers, args=(wire, process), daemon=True),
        threading.Thread(target=_states, args=(wire, state, slot, ended), daemon=True),
        threading.Thread(target=_commands, args=(wire, process), daemon=True),
    ]
    for thread in threads:
        thread.start()
    code = process.popen.wait()
    threads[0].join()
    ended.set()
    threads[1].join()
    with contextlib.suppress(OSError):
        wire.send(ended=code, tail=process.tail())
    wire.close()
    threads[2].join()
    process.close()
    state.close()


def _answers(wire: Wire, process: Process) -> None:
    rest = b""
    while data := os.read(process.answers, 1 << 20):
        *lines, rest = (rest + data).split(b"\n")
        with contextlib.suppress(OSError):
            for line in lines:
                wire.send(answer=line.decode())


def _states(wire: Wire, state: SharedState, slot: int, ended: threading.Event) -> None:
    said = ""
    while True:
        last = ended.wait(_STATE_SECONDS)
        text = state.read(slot)
        if text != said:
            said = text
            with contextlib.suppress(OSError):
                wire.send(state=text)
        if last:
            return


def _commands(wire: Wire, process: Process) -> None:
    """Pass commands on; where the connection ends first, end the rank."""
    os.set_blocking(process.commands, True)
    for message in wire.messages():
        command = message.get("command")
        if isinstance(command, str):
            with contextlib.suppress(BrokenPipeError):
                os.write(process.commands, command.encode() + b"\n")
    if process.popen.poll() is None:
        process.popen.send_signal(signal.SIGKILL)
