"""Which TCP connections join the ranks, and how many bytes each one has carried so far.

A rank looks at its own descriptors, so neither root nor ``ss`` is needed; the counters are the kernel's
(struct tcp_info, include/uapi/linux/tcp.h; bytes received since Linux 4.1).
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_BYTES_RECEIVED_AT = 128  # offset of tcpi_bytes_received
_TCP_INFO_NBYTES = 256
_ESTABLISHED = 1


@dataclass(frozen=True)
class Connection:
    """One direction between two ranks: what ``receiver`` has received from ``sender``."""

    sender: int
    receiver: int
    sender_end: str
    receiver_end: str
    received: int

    @property
    def loopback(self) -> bool:
        """True where both ends lie on loopback addresses, so the bytes never leave the host."""
        return all(_is_loopback(end.rpartition(":")[0]) for end in (self.sender_end, self.receiver_end))


def own() -> list[dict[str, Any]]:
    """Return this process's established TCP sockets: ``local``, ``peer`` ("address:port"), ``received``.

    ``received`` is in bytes since the connection was made, None where the kernel doesn't count them.
    """
    found = []
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names only
        with contextlib.suppress(OSError), _borrow(int(name)) as tcp:
            info = tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_NBYTES)
            if info[0] == _ESTABLISHED:
                found.append(
                    {"local": _end(tcp.getsockname()), "peer": _end(tcp.getpeername()), "received": _received(info)}
                )
    return found


def between(per_rank: list[list[dict[str, Any]]], without_port: int) -> list[Connection]:
    """Return the connections whose two ends belong to two ranks of the group.

    ``per_rank`` holds what ``own`` answered in each rank. ``without_port`` leaves the rendezvous
    (MASTER_PORT) out: it carries addresses, no data.
    """
    owner = {(entry["local"], entry["peer"]): rank for rank, sockets in enumerate(per_rank) for entry in sockets}
    found = []
    for receiver, sockets in enumerate(per_rank):
        for entry in sockets:
            sender = owner.get((entry["peer"], entry["local"]))
            ports = {int(entry[end].rpartition(":")[2]) for end in ("local", "peer")}
            if sender not in (None, receiver) and entry["received"] is not None and without_port not in ports:
                found.append(Connection(sender, receiver, entry["peer"], entry["local"], entry["received"]))
    return found


@contextlib.contextmanager
def _borrow(fd: int) -> Iterator[socket.socket]:
    """Yield a duplicate of ``fd`` as a socket; OSError where it is none."""
    copy = os.dup(fd)
    try:
        tcp = socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise
    with tcp:
        yield tcp


def _end(address: Any) -> str:
    if not isinstance(address, tuple):
        raise OSError("not an internet socket")
    mapped = getattr(ipaddress.ip_address(address[0].partition("%")[0]), "ipv4_mapped", None)
    return f"{mapped or address[0]}:{address[1]}"


def _received(info: bytes) -> int | None:
    if len(info) < _BYTES_RECEIVED_AT + 8:
        return None
    return int(struct.unpack_from("Q", info, _BYTES_RECEIVED_AT)[0])


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback
