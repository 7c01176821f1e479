"""Which TCP connections join ranks, and what each one has carried."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest
from iobench.ranks import sockets


def test_sockets_count_what_a_connection_received() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as left, server.accept()[0] as right:
            left.sendall(b"x" * 5000)
            thread = threading.Thread(target=right.recv, args=(5000, socket.MSG_WAITALL))
            thread.start()
            thread.join()
            ends = f"127.0.0.1:{port}"
            mine = {entry["local"]: entry for entry in sockets.own() if ends in (entry["local"], entry["peer"])}
            if mine and next(iter(mine.values()))["received"] is None:
                pytest.skip("this kernel does not count bytes in tcp_info (Linux 4.1 does)")
            entry = mine[ends]
            assert entry["received"] == 5000
            assert entry["peer"] == f"127.0.0.1:{left.getsockname()[1]}"
    assert not any(entry["local"] == ends for entry in sockets.own())


def _entry(local: str, peer: str, received: int | None) -> dict[str, Any]:
    return {"local": local, "peer": peer, "received": received}


def test_between_keeps_only_connections_of_two_ranks() -> None:
    per_rank = [
        [
            _entry("127.0.0.1:5000", "127.0.0.1:6000", 10),  # rank 1
            _entry("127.0.0.1:29500", "127.0.0.1:7000", 99),  # the rendezvous
            _entry("10.0.0.1:5001", "10.0.0.9:22", 1),  # somebody else
            _entry("127.0.0.1:5002", "127.0.0.1:5003", 7),  # itself
            _entry("127.0.0.1:5003", "127.0.0.1:5002", 7),
        ],
        [
            _entry("127.0.0.1:6000", "127.0.0.1:5000", 20),
            _entry("127.0.0.1:7000", "127.0.0.1:29500", 99),
            _entry("10.0.0.1:8000", "10.0.0.1:8001", 30),
        ],
        [_entry("10.0.0.1:8001", "10.0.0.1:8000", 40), _entry("127.0.0.1:9000", "127.0.0.1:9001", None)],
    ]
    found = {(c.sender, c.receiver): (c.received, c.loopback) for c in sockets.between(per_rank, without_port=29500)}
    assert found == {(1, 0): (10, True), (0, 1): (20, True), (2, 1): (30, False), (1, 2): (40, False)}
