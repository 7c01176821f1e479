"""Another host's side: the first host's part of the set-up over TCP. The server's part is server.py.

The set-up connection carries JSON lines (ranks.wire). The first word of both sides names the protocol and the version
of iobench; then the first host asks for the methods of a side, one at a time, and the server answers each.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from typing import Any

from iobench import __version__, errors
from iobench.errors import Unavailable, UserError
from iobench.ranks import RankFailed, RankGroup
from iobench.ranks.wire import Broken, Wire
from iobench.rdma.pairing import CALL_SECONDS

PROTOCOL = "rdma-1"
PORT = 29518
HELLO_SECONDS = 20.0  # busy hosts answer late
HELLO_NBYTES = 4096
ANSWER_NBYTES = 4 << 20
_KNOCK_SECONDS = 10.0
_GRACE_SECONDS = 5.0
_HOW = "start iobench run rdma --server there, and look at the firewall"


class Remote:
    """Side 0 is a process here, side 1 is the other host's."""

    apart = True

    def __init__(self, group: RankGroup, wire: Wire, peer: str) -> None:
        self.group, self.wire, self.peer = group, wire, peer

    def call(self, method: str, deadline: float = CALL_SECONDS, **arguments: Any) -> list[Any]:
        """Ask both sides at once; raises what went wrong, here first."""
        try:
            self.wire.send(call=method, arguments=arguments, seconds=deadline)
        except OSError as error:
            raise self._lost(error) from error
        try:
            here = self.group.call(method, deadline, **arguments)
        except errors.IobenchError:
            with contextlib.suppress(errors.IobenchError):  # its answer must not be taken for the next one's
                self._answer(deadline + _GRACE_SECONDS)
            raise
        return [*here, self._answer(deadline + _GRACE_SECONDS)]

    def _answer(self, seconds: float) -> Any:
        self.wire.connection.settimeout(seconds)
        try:
            message = self.wire.receive(ANSWER_NBYTES)
        except TimeoutError as error:
            raise RankFailed(f"{self.peer} gave no answer within {seconds:g} s: is its process stopped?") from error
        except OSError as error:
            raise self._lost(error) from error
        if message is None:
            raise self._lost("it ended the connection")
        if "error" in message:
            kind = getattr(errors, str(message["error"]), RankFailed)
            known = isinstance(kind, type) and issubclass(kind, errors.IobenchError)
            raise (kind if known else RankFailed)(f"{self.peer}: {str(message.get('text'))[:500]}")
        if "value" not in message:
            raise RankFailed(f"{self.peer} answered what is no answer: use one version of iobench on both hosts")
        return message["value"]

    def _lost(self, why: object) -> RankFailed:
        return RankFailed(f"the other side at {self.peer} is gone ({why}): look at what its server says")


def address_of(text: str, port: int = PORT) -> tuple[str, int]:
    """Return host and port of "host", "host:port", "[fe80::1]:port"; UserError for anything else."""
    host, colon, number = text.rpartition(":")
    if not colon or (":" in host and not host.endswith("]")):
        host, number = text, str(port)
    host = host.strip("[]")
    if not host or not number.isdecimal() or not 0 < int(number) < 1 << 16:
        raise UserError(f"{text!r:.80} is no address: write HOST or HOST:PORT")
    return host, int(number)


@contextlib.contextmanager
def knock(peer: str) -> Iterator[Wire]:
    """Yield the connection to a server that speaks the same version; UserError or Unavailable with the next step."""
    host, port = address_of(peer)
    wire = Wire(_connected(host, port))
    try:
        wire.connection.settimeout(HELLO_SECONDS)
        _greet(wire, f"{host}:{port}")
        yield wire
    finally:
        wire.close()


def _connected(host: str, port: int) -> socket.socket:
    end = time.monotonic() + _KNOCK_SECONDS
    while True:
        try:
            return socket.create_connection((host, port), max(end - time.monotonic(), 0.1))
        except OSError as error:
            if time.monotonic() > end - 0.2 or isinstance(error, socket.gaierror):
                raise Unavailable(f"nothing answers at {host}:{port} ({error.strerror or error}): {_HOW}") from error
            time.sleep(0.2)


def _greet(wire: Wire, peer: str) -> None:
    try:
        wire.send(protocol=PROTOCOL, iobench=__version__)
        hello = wire.receive(HELLO_NBYTES)
    except (OSError, Broken) as error:
        raise Unavailable(
            f"what listens at {peer} is no iobench server ({error or 'it says nothing'}): {_HOW}"
        ) from error
    if hello is None:
        raise Unavailable(f"the server at {peer} turned this host away: another one is being served, or {_HOW}")
    if "refused" in hello:
        raise Unavailable(f"the server at {peer} says: {str(hello['refused'])[:300]}")
    if hello.get("protocol") != PROTOCOL or hello.get("iobench") != __version__:
        raise UserError(
            f"the server at {peer} runs iobench {str(hello.get('iobench'))[:40]}, this is {__version__}: "
            "install one version on both hosts"
        )
