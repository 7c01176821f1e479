"""The other host's part: ``iobench run rdma --server``. Serves one host at a time, answers nothing but what it knows.

What comes over the socket is data, never code: a hello of at most 4 KiB within 20 seconds, then calls of the methods
of a side (side.py) whose arguments are checked one by one. Connections are looked at apart from each other, so one that
says nothing keeps no other waiting. The port is open to whoever reaches the named address: name one of the fabric.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Any

from iobench import __version__, ranks
from iobench.errors import IobenchError, UserError
from iobench.ranks.wire import Broken, Wire
from iobench.rdma import ports
from iobench.rdma.pairing import START_SECONDS, TARGET
from iobench.rdma.remote import HELLO_NBYTES, HELLO_SECONDS, PORT, PROTOCOL, address_of
from iobench.rdma.setup import Info, Setup
from iobench.topology.sysfs import Tree

_MOST_WAITING = 64  # connections that have not said their hello yet
_IDLE_SECONDS = 600.0
_PATIENCE_SECONDS = 12.0  # for the host before to be done with: less than a host waits for the answer to its hello
_REQUEST_NBYTES = 1 << 20
_MOST_COUNT, _MOST_MARKS, _MOST_SECONDS = 1 << 40, 1 << 16, 3600.0

Say = Callable[[str], object]
Group = Callable[[], contextlib.AbstractContextManager[Any]]


def _whole(most: int = _MOST_COUNT) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and 0 <= value <= most


def _flag(value: Any) -> bool:
    return type(value) is bool


def _marks(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= _MOST_MARKS and all(_whole()(one) for one in value)


def _peers(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(bool(Info.of(one)) for one in value)


def _setups(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(isinstance(one, dict) and Setup.of(one) for one in value)


# method -> argument -> what it must be
CALLS: dict[str, dict[str, Callable[[Any], bool]]] = {
    "prepare": {"setups": _setups},
    "connect": {"peers": _peers},
    "exchange": {"count": _whole(1 << 24), "verify": _flag},
    "stream": {"total": _whole(), "marks": _marks, "both": _flag},
    "post": {"count": _whole(1 << 20), "batch": _whole(1 << 15)},
    "fill": {"turn": _whole()},
    "check": {"turn": _whole(), "both": _flag},
    "word": {},
    "load": {"on": _flag},
    "counters": {},
    "settings": {},
}


def checked(message: dict[str, Any]) -> tuple[str, dict[str, Any], float]:
    """Return method, arguments and seconds of a request; UserError for anything that is none."""
    method, arguments, seconds = message.get("call"), message.get("arguments"), message.get("seconds")
    if not isinstance(method, str) or method not in CALLS or not isinstance(arguments, dict):
        raise UserError("that is no request of this version of iobench")
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds <= _MOST_SECONDS:
        raise UserError("a request needs its deadline in seconds")
    known = CALLS[method]
    if set(arguments) != set(known) or not all(sound(arguments[name]) for name, sound in known.items()):
        raise UserError(f"the arguments of {method} are not those of this version of iobench")
    return method, arguments, float(seconds)


class Server:
    """Listens once made, on ``address`` ("host" or "host:port"); ``serve`` answers until ``close``."""

    def __init__(self, address: str, say: Say, group: Group | None = None) -> None:
        host, port = address_of(address)
        try:
            family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            self._listener = socket.create_server(place[:2], family=family, backlog=16)
        except OSError as error:
            raise UserError(
                f"cannot listen on {host}:{port} ({error.strerror or error}): give --listen an address of this host "
                "and a free port"
            ) from error
        self.port: int = self._listener.getsockname()[1]
        self._say, self._group = say, group or _own_group
        self._busy, self._waiting = threading.Lock(), threading.Semaphore(_MOST_WAITING)
        say(f"serving on {host}:{self.port}; on the other host: iobench run rdma --connect {host}:{self.port}")

    def serve(self) -> None:
        """Take connections until ``close``, each in a thread of its own."""
        while True:
            try:
                connection, peer = self._listener.accept()
            except OSError:
                return  # closed
            if not self._waiting.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(target=self._meet, args=(Wire(connection), peer[0]), daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _meet(self, wire: Wire, peer: str) -> None:
        """Hear the hello; serve who is right, one at a time."""
        try:
            with contextlib.ExitStack() as stack:
                stack.callback(wire.close)
                try:
                    known = self._hello(wire)
                finally:
                    self._waiting.release()
                # Before the hello is answered: who has been greeted is served, whoever comes in between.
                if known and self._busy.acquire(timeout=_PATIENCE_SECONDS):
                    stack.callback(self._busy.release)
                    wire.send(protocol=PROTOCOL, iobench=__version__)
                    self._session(wire, peer)
                elif known:
                    wire.send(refused="another host is being served: try again when it is done")
        except (OSError, Broken) as error:
            self._say(f"{peer} is gone ({error})")

    def _hello(self, wire: Wire) -> bool:
        """Tell whether the first message is one of this protocol and version; a wrong version is told so."""
        # one time for the whole hello: a byte now and then must not hold the place for ever
        timer = threading.Timer(HELLO_SECONDS, wire.close)
        timer.daemon = True
        timer.start()
        try:
            hello = wire.receive(HELLO_NBYTES)
        except (OSError, Broken):
            return False
        finally:
            timer.cancel()
        if hello is None or hello.get("protocol") != PROTOCOL:
            return False
        if hello.get("iobench") != __version__:
            wire.send(protocol=PROTOCOL, iobench=__version__)
            return False
        return True

    def _session(self, wire: Wire, peer: str) -> None:
        """Answer one host's requests until it goes."""
        self._say(f"measuring with {peer}")
        wire.connection.settimeout(_IDLE_SECONDS)
        with self._group() as group:
            while (message := wire.receive(_REQUEST_NBYTES)) is not None:
                try:
                    method, arguments, seconds = checked(message)
                    answer: dict[str, Any] = {"value": group.call(method, seconds, **arguments)[0]}
                except IobenchError as error:
                    answer = {"error": type(error).__name__, "text": str(error)}
                wire.send(**answer)
        self._say(f"done with {peer}")


def _own_group() -> contextlib.AbstractContextManager[Any]:
    return ranks.group(TARGET, 1, config={"side": 1}, environment={"OMP_NUM_THREADS": "1"}, start_seconds=START_SECONDS)


def run(listen: str, say: Say) -> None:
    """Serve on ``listen``, or on the address of the first active port; until interrupted."""
    server = Server(listen or _fabric_address(), say)
    try:
        server.serve()
    finally:
        server.close()


def _fabric_address() -> str:
    """Return the IP address of the first active RoCE port; UserError where none is known."""
    port = ports.choose(ports.read(Tree()))
    if port.ethernet and port.gids:
        gid = port.gid()
        if not gid.link_local:
            return f"[{gid.ip}]:{PORT}"
    raise UserError(f"{port.name} has no IP address of its own: say on which address to listen, --listen ADDRESS")
