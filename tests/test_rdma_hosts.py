"""The set-up between two hosts: what comes over the socket is data, and most of it is refused."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import random
import socket
import threading
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import iobench
import pytest
import typer
from iobench.errors import Unavailable, UserError
from iobench.ranks import RankFailed
from iobench.ranks.wire import Wire
from iobench.rdma import measure, pairing, remote, server
from iobench.rdma.remote import PROTOCOL, Remote, address_of, knock
from iobench.rdma.server import Server, checked
from iobench.rdma.setup import Setup

from processes import PATIENCE_SECONDS, eventually, held_port
from rdma_sides import Sides, sound_sides

HELLO = {"protocol": PROTOCOL, "iobench": iobench.__version__}


class Group:
    """Stands for the rank group of a host: one of two sides."""

    def __init__(self, sides: Sides, number: int) -> None:
        self.side = sides.sides[number]

    def call(self, method: str, deadline: float = PATIENCE_SECONDS, **arguments: Any) -> list[Any]:
        return [getattr(self.side, method)(**arguments)]


@pytest.fixture
def sides(tmp_path: Path) -> Iterator[Sides]:
    with sound_sides(tmp_path) as made:
        yield made


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let hellos be as late as they like where a test does not say otherwise."""
    for module in (server, remote):
        monkeypatch.setattr(module, "HELLO_SECONDS", PATIENCE_SECONDS)


@contextlib.contextmanager
def serving(group: Any = None) -> Iterator[tuple[Server, list[str]]]:
    said: list[str] = []
    made = _free(said, group)
    thread = threading.Thread(target=made.serve, daemon=True)
    thread.start()
    try:
        yield made, said
    finally:
        made.close()
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()


def _free(said: list[str], group: Any) -> Server:
    for _ in range(20):
        with socket.socket() as keeper:
            keeper.bind(("127.0.0.1", 0))
            port = keeper.getsockname()[1]
        with contextlib.suppress(UserError):  # somebody else was quicker
            return Server(f"127.0.0.1:{port}", said.append, group)
    raise AssertionError("no free port")


def test_two_hosts_measure_as_one_host_does(sides: Sides) -> None:
    with serving(lambda: contextlib.nullcontext(Group(sides, 1))) as (there, said):
        peer = f"127.0.0.1:{there.port}"
        with knock(peer) as wire:
            pair = Remote(Group(sides, 0), wire, peer)  # type: ignore[arg-type]
            both = _Threads(pair)
            setup = Setup("read", 300)
            facts = pairing.join(both, setup, setup)
            assert [fact["port"] for fact in facts] == ["fake0/1", "fake0/1"]
            assert len(both.call("exchange", count=5, verify=True)[0]) == 5
            assert measure._verify(both, setup, 3) == 3
            wire.send(call="exchange", arguments={"count": 0, "verify": False, "more": 1}, seconds=5)
            assert "arguments of exchange are not" in str(wire.receive())
            assert both.call("word")[1] >= 0  # it goes on after a refusal
    assert any("measuring with" in text for text in said)


class _Threads:
    """Answers of this host before those of the other, as a rank group does it: the message goes out first."""

    apart = True

    def __init__(self, pair: Remote) -> None:
        self.pair = pair

    def call(self, method: str, deadline: float = PATIENCE_SECONDS, **arguments: Any) -> list[Any]:
        return self.pair.call(method, deadline, **arguments)


def hostile(number: int) -> bytes:
    """Return one of many ways to begin wrong."""
    made = random.Random(number)
    ways = [
        lambda: made.randbytes(made.randrange(1, 3000)),
        lambda: b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        lambda: b"SSH-2.0-OpenSSH_9.6\r\n",
        lambda: b"[" * 4000 + b"\n",
        lambda: b'{"protocol":' * 300 + b"\n",
        lambda: b"A" * 100_000,
        lambda: b"\n",
        lambda: b"null\n",
        lambda: b"123\n",
        lambda: b'"rdma-1"\n',
        lambda: json.dumps({**HELLO, "protocol": "rdma-0"}).encode() + b"\n",
        lambda: json.dumps({**HELLO, "protocol": None}).encode() + b"\n",
        lambda: json.dumps({"protocol": PROTOCOL}).encode() + b"\n",
        lambda: json.dumps({**HELLO, "iobench": "0.0.0"}).encode() + b"\n",
        lambda: json.dumps({**HELLO, "iobench": ["x"] * 50}).encode() + b"\n",
        lambda: b'{"protocol": ' + b"9" * 4050 + b"}\n",
        lambda: b"\xff\xfe" + json.dumps(HELLO).encode("utf-16") + b"\n",
        lambda: json.dumps(HELLO).encode()[:-5],
        lambda: b"",
        lambda: b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + made.randbytes(200),
    ]
    return ways[number % len(ways)]()


def test_200_hostile_hellos(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HELLO_SECONDS", 0.5)

    served: list[int] = []

    def group() -> Any:
        served.append(1)
        return contextlib.nullcontext()

    with serving(group) as (there, _), traced():
        threads = threading.active_count()
        knock_wrongly(there.port, range(40))  # what is loaded and grown once
        assert eventually(lambda: threading.active_count() <= threads)
        before, files = held_nbytes(), descriptors()
        knock_wrongly(there.port, range(200))
        assert served == []  # none got as far as a process of its own
        monkeypatch.setattr(server, "HELLO_SECONDS", PATIENCE_SECONDS)  # who is right may be slow
        with knock_only(there.port) as wire:
            wire.send(**HELLO)
            assert wire.receive() == HELLO  # it serves as before
        assert eventually(lambda: threading.active_count() <= threads)
        assert eventually(lambda: descriptors() <= files)
        assert held_nbytes() - before < 200 << 10  # a kilobyte for each of them


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@contextlib.contextmanager
def traced() -> Iterator[None]:
    """Let Python count what it holds."""
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


def held_nbytes() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def knock_wrongly(port: int, numbers: range) -> None:
    for number in numbers:
        connecting = socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS)
        with connecting as connection, contextlib.suppress(OSError):
            connection.sendall(hostile(number))
            if number % 3:
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(4096):
                    pass


@contextlib.contextmanager
def knock_only(port: int) -> Iterator[Wire]:
    wire = Wire(socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS))
    try:
        yield wire
    finally:
        wire.close()


def test_silent_connections_keep_nobody_waiting(monkeypatch: pytest.MonkeyPatch, sides: Sides) -> None:
    monkeypatch.setattr(server, "HELLO_SECONDS", 100 * PATIENCE_SECONDS)
    with serving(lambda: contextlib.nullcontext(Group(sides, 1))) as (there, _), contextlib.ExitStack() as stack:
        for _ in range(30):
            stack.enter_context(socket.create_connection(("127.0.0.1", there.port), PATIENCE_SECONDS))
        with knock(f"127.0.0.1:{there.port}"):
            pass  # each of the silent ones could wait for hours


def test_a_byte_now_and_then_does_not_hold_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HELLO_SECONDS", 1.0)
    with serving() as (there, _), socket.create_connection(("127.0.0.1", there.port), PATIENCE_SECONDS) as slow:

        def turned_away() -> bool:
            try:
                slow.sendall(b"{")
            except OSError:
                return True
            time.sleep(0.2)
            return False

        assert eventually(turned_away), "the place is held as long as bytes come"


def test_one_host_at_a_time(monkeypatch: pytest.MonkeyPatch, sides: Sides) -> None:
    monkeypatch.setattr(server, "_PATIENCE_SECONDS", 0.1)
    with serving(lambda: contextlib.nullcontext(Group(sides, 1))) as (there, _):
        peer = f"127.0.0.1:{there.port}"
        with knock(peer), pytest.raises(Unavailable, match="another host is being served"), knock(peer):
            pass


def test_the_next_host_waits_until_the_one_before_is_done_with(monkeypatch: pytest.MonkeyPatch, sides: Sides) -> None:
    """The next launch knocks while the server still ends what it had for the one before."""
    monkeypatch.setattr(server, "_PATIENCE_SECONDS", PATIENCE_SECONDS)
    ended = threading.Event()

    @contextlib.contextmanager
    def slow() -> Iterator[Group]:
        yield Group(sides, 1)
        ended.wait(0.3)
        ended.set()

    with serving(slow) as (there, _):
        peer = f"127.0.0.1:{there.port}"
        with knock(peer):
            pass
        with knock(peer) as wire:
            assert ended.is_set()
            assert Remote(Group(sides, 0), wire, peer).call("load", PATIENCE_SECONDS, on=False)  # type: ignore[arg-type]


def test_what_is_no_request_is_refused() -> None:
    good = {"call": "exchange", "arguments": {"count": 3, "verify": True}, "seconds": 5}
    assert checked(good) == ("exchange", {"count": 3, "verify": True}, 5.0)
    for change in (
        {"call": "close"}, {"call": "__init__"}, {"call": ["exchange"]}, {"call": None}, {"arguments": []},
        {"arguments": {"count": -1, "verify": True}}, {"arguments": {"count": 1e9, "verify": True}},
        {"arguments": {"count": True, "verify": True}}, {"arguments": {"count": 3}},
        {"arguments": {"count": 3, "verify": 1}},
        {"arguments": {"count": 3, "verify": True, "more": 1}}, {"seconds": -1}, {"seconds": True}, {"seconds": 1e9},
        {"call": "prepare", "arguments": {"setups": [{"verb": "write", "nbytes": 1 << 60}] * 2}},
        {"call": "connect", "arguments": {"peers": [{}, {}]}},
        {"call": "stream", "arguments": {"total": 1, "marks": ["x"], "both": False}},
    ):  # fmt: skip
        with pytest.raises(UserError):
            checked(good | change)


def test_nobody_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_KNOCK_SECONDS", 0.5)
    with held_port() as port:
        said = rf"nothing answers at 127\.0\.0\.1:{port} .*--server"
        with pytest.raises(Unavailable, match=said), knock(f"127.0.0.1:{port}"):
            pass


@pytest.mark.parametrize(
    ("says", "kind", "match"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", Unavailable, "no iobench server"),
        (b"", Unavailable, "turned this host away"),
        (b"{}\n", UserError, "install one version"),
        (json.dumps({**HELLO, "iobench": "9.9"}).encode() + b"\n", UserError, "runs iobench 9.9"),
        (json.dumps({"refused": "another host is being served"}).encode() + b"\n", Unavailable, "another host"),
        (b"[" * 4000 + b"\n", Unavailable, "no iobench server"),
    ],
)
def test_what_answers_is_no_server_of_this_version(says: bytes, kind: type[Exception], match: str) -> None:
    with answering(says) as port, pytest.raises(kind, match=match), knock(f"127.0.0.1:{port}"):
        pass


def test_a_server_that_says_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "HELLO_SECONDS", 0.3)
    with answering(None) as port, pytest.raises(Unavailable, match="no iobench server"), knock(f"127.0.0.1:{port}"):
        pass


def test_a_peer_that_goes_or_falls_silent(sides: Sides, monkeypatch: pytest.MonkeyPatch) -> None:
    hello = json.dumps(HELLO).encode() + b"\n"
    cases = [(hello, "gone"), (hello + b'{"value', "gone"), (hello + b"{}\n", "no answer"), (hello + b"[1]\n", "gone")]
    for says, match in cases:
        with answering(says) as port, knock(f"127.0.0.1:{port}") as wire:
            pair = Remote(Group(sides, 0), wire, "peer")  # type: ignore[arg-type]
            with pytest.raises(RankFailed, match=match):
                pair.call("load", PATIENCE_SECONDS, on=False)
    monkeypatch.setattr(remote, "_GRACE_SECONDS", 0.2)
    with answering(hello, stay=True) as port, knock(f"127.0.0.1:{port}") as wire:
        pair = Remote(Group(sides, 0), wire, "peer")  # type: ignore[arg-type]
        with pytest.raises(RankFailed, match="no answer within"):
            pair.call("load", 0.3, on=False)


@contextlib.contextmanager
def answering(says: bytes | None, stay: bool = False) -> Iterator[int]:
    """Listen as somebody else: say ``says`` to who comes (None: nothing) and go, or stay."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        done = threading.Event()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                if says is not None:
                    connection.sendall(says)
                    connection.settimeout(PATIENCE_SECONDS)
                    connection.recv(1)  # the hello has come: closing with it unread would reset the connection
                    if not stay:
                        connection.shutdown(socket.SHUT_WR)
                done.wait(PATIENCE_SECONDS)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        done.set()
        thread.join(PATIENCE_SECONDS)


def test_addresses() -> None:
    assert address_of("gpu07") == ("gpu07", remote.PORT)
    assert address_of("gpu07:4000") == ("gpu07", 4000)
    assert address_of("[fe80::1]:4000") == ("fe80::1", 4000)
    assert address_of("fe80::1") == ("fe80::1", remote.PORT)
    for wrong in ("", ":", "x:", "x:99999", "x:0"):
        with pytest.raises(UserError, match="no address"):
            address_of(wrong)


def test_it_listens_on_the_named_address_only() -> None:
    with serving() as (there, _):
        assert there._listener.getsockname()[0] == "127.0.0.1"
    with pytest.raises(UserError, match="--listen an address of this host"):
        Server("203.0.113.7:4000", lambda text: None)


def test_the_command_line_takes_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    from iobench import cli_remote

    monkeypatch.setenv(pairing.VARIABLE, "")  # what the calls below set is undone with it
    assert cli_remote.take_place(["dram"], False, "", "") == []
    assert cli_remote.take_place(["rdma"], False, "", "gpu07") == ["nodes=2"]
    assert os.environ[pairing.VARIABLE] == f"gpu07:{remote.PORT}"
    assert cli_remote.take_place(["rdma"], False, "", "fe80::1") == ["nodes=2"]
    assert address_of(os.environ[pairing.VARIABLE]) == ("fe80::1", remote.PORT)
    monkeypatch.delenv(pairing.VARIABLE)
    for probes, server_wanted, listen, connect in (
        (["dram"], True, "", ""), ([], False, "", "x"), (["rdma"], True, "", "x"), (["rdma"], False, "127.0.0.1", ""),
    ):  # fmt: skip
        with pytest.raises(UserError, match="run rdma --server there"):
            cli_remote.take_place(probes, server_wanted, listen, connect)
    called: list[str] = []
    monkeypatch.setattr(server, "run", lambda listen, say: called.append(listen))
    with pytest.raises(typer.Exit):
        cli_remote.take_place(["rdma"], True, "127.0.0.1", "")
    assert called == ["127.0.0.1"]
