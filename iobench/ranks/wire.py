"""Messages between nodes: JSON, one per line, on a TCP connection; a line that is too long or no JSON ends it."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

MOST_NBYTES = 16 << 20  # an answer holds a few thousand durations


class Broken(ConnectionError):
    """The other side sent what is no message."""


class Wire:
    """One connection; ``send`` may be called from several threads."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection = connection
        self._lock = threading.Lock()
        self._rest = b""

    def send(self, **message: Any) -> None:
        """Send one message."""
        data = json.dumps(message).encode() + b"\n"
        with self._lock:
            self.connection.sendall(data)

    def receive(self, most_nbytes: int = MOST_NBYTES) -> dict[str, Any] | None:
        """Return the next message, None where the other side has closed; Broken for anything else."""
        while b"\n" not in self._rest:
            if len(self._rest) > most_nbytes:
                raise Broken(f"a message of more than {most_nbytes} bytes")
            data = self.connection.recv(1 << 16)
            if not data:
                return None
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        try:
            message = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise Broken("a message that is no JSON") from error
        if not isinstance(message, dict):
            raise Broken("a message that is no object")
        return message

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yield messages until the connection ends, however it ends."""
        try:
            while (message := self.receive()) is not None:
                yield message
        except OSError:
            return

    def close(self) -> None:
        """End the connection; a receiver on either side sees the end."""
        with contextlib.suppress(OSError):  # it has ended already
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()
