"""NCCL as cupy 14 offers it, over a socket: rank 0 takes every rank's data, computes and answers.

It obeys the variables that force a transport, writes the lines of NCCL's log that tell the way and the algorithm, and
counts what the NVLinks would carry.
"""

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

import numpy as np

from cupy import codes
from cupy.cuda import CURRENT, run, runtime
from cupy.cuda.memory import looking

available = True
_DTYPES = {6: "float16", 7: "float32", 9: "bfloat16", 10: "float8"}
_ITEM = {6: 2, 7: 4, 9: 2, 10: 1}
_WORDS = {
    "allReduce": "AllReduce", "reduce": "Reduce", "broadcast": "Broadcast", "allGather": "AllGather",
    "reduceScatter": "ReduceScatter", "exchange": "SendRecv",
}  # fmt: skip
_GROUP: "list[list[tuple[Any, ...]]]" = []
Arrays = Sequence["np.ndarray[Any, Any]"]


class NcclError(RuntimeError):
    pass


def get_version() -> int:
    return 22809


def get_build_version() -> int:
    return 22707


def get_unique_id() -> bytes:
    return os.urandom(128)


def groupStart() -> None:
    _GROUP.append([])


def groupEnd() -> None:
    calls = _GROUP.pop()
    for communicator in {call[0] for call in calls}:
        communicator.exchange([call[1:] for call in calls if call[0] is communicator])


class NcclCommunicator:
    def __init__(self, ndev: int, comm_id: bytes, rank: int) -> None:
        if not isinstance(comm_id, bytes):
            raise TypeError(f"Argument 'commId' has incorrect type (expected bytes, got {type(comm_id).__name__})")
        assert len(comm_id) == 128
        self.size, self.rank = ndev, rank
        self._peers = _meet("\0fake-nccl-" + comm_id[:16].hex(), ndev, rank)
        self._log = os.environ.get("NCCL_DEBUG_FILE", "").replace("%p", str(os.getpid()))
        self._way = _way()
        self._announce()
        devices = self._all(CURRENT[0])
        if len(set(devices)) < ndev:
            self._say(f"Duplicate GPU detected : rank 0 and rank 1 both on CUDA device {CURRENT[0]}")
            raise NcclError("NCCL_ERROR_INVALID_USAGE: invalid usage (run with NCCL_DEBUG=WARN for details)")

    def destroy(self) -> None:
        for peer in self._peers:
            peer.close()

    def allReduce(self, send: int, receive: int, count: int, kind: int, op: int, stream: int) -> None:
        self._put("allReduce", kind, count, send, receive, count, stream, _summed)

    def reduce(self, send: int, receive: int, count: int, kind: int, op: int, root: int, stream: int) -> None:
        target = receive if self.rank == root else 0
        self._put("reduce", kind, count, send, target, count, stream, _summed)

    def broadcast(self, send: int, receive: int, count: int, kind: int, root: int, stream: int) -> None:
        self._put("broadcast", kind, count, send, receive, count, stream, lambda parts, _: [parts[root]] * len(parts))

    def allGather(self, send: int, receive: int, count: int, kind: int, stream: int) -> None:
        whole: Callable[..., Any] = lambda parts, _: [np.concatenate(parts)] * len(parts)  # noqa: E731
        self._put("allGather", kind, count, send, receive, count * self.size, stream, whole)

    def reduceScatter(self, send: int, receive: int, count: int, kind: int, op: int, stream: int) -> None:
        def parted(parts: Arrays, kind: int) -> list[Any]:
            return list(np.split(_summed(parts, kind)[0], len(parts)))

        self._put("reduceScatter", kind, count * self.size, send, receive, count, stream, parted)

    def send(self, send: int, count: int, kind: int, peer: int, stream: int) -> None:
        _GROUP[-1].append((self, "send", send, count * _ITEM[kind], peer, stream))

    def recv(self, receive: int, count: int, kind: int, peer: int, stream: int) -> None:
        _GROUP[-1].append((self, "recv", receive, count * _ITEM[kind], peer, stream))

    def exchange(self, calls: list[tuple[Any, ...]]) -> None:
        """Run the sends and receives of a group."""

        def work() -> None:
            sent = {peer: looking(at, size).tobytes() for what, at, size, peer, _ in calls if what == "send"}
            every = self._all(sent)
            for what, at, size, peer, _ in calls:
                if what == "recv":
                    looking(at, size)[:] = np.frombuffer(every[peer][self.rank], np.uint8)
            self._count(sum(map(len, sent.values())))

        run(calls[0][4], work)

    def _put(
        self, name: str, kind: int, count: int, send: int, receive: int, taken: int, stream: int,
        result: Callable[..., Any],
    ) -> None:  # fmt: skip
        nbytes = max(count, taken) * _ITEM[kind]
        if "TUNING" in os.environ.get("NCCL_DEBUG_SUBSYS", "") and self.rank == 0:
            proto = os.environ.get("NCCL_PROTO", "LL" if nbytes <= 1 << 16 else "SIMPLE").upper()
            self._say(f"{_WORDS[name]}: {nbytes} Bytes -> Algo RING proto {proto} channel{{Lo..Hi}}={{0..23}}")

        def work() -> None:
            mine = looking(send, count * _ITEM[kind]).tobytes()
            parts = [np.frombuffer(one, np.uint8) for one in self._all(mine)]
            found = result(parts, kind)[self.rank]
            if receive:
                looking(receive, taken * _ITEM[kind])[:] = found
                _fault(name, nbytes, self.rank, receive)
            self._count(2 * nbytes)

        run(stream, work)

    def _all(self, mine: Any) -> list[Any]:
        """Return what every rank gave, by rank."""
        if self.rank:
            self._peers[0].send(mine)
            found: list[Any] = self._peers[0].recv()
            return found
        every = [mine, *(peer.recv() for peer in self._peers)]
        for peer in self._peers:
            peer.send(every)
        return every

    def _count(self, nbytes: int) -> None:
        if self._way != "P2P/CUMEM":
            return
        here = runtime.deviceGetPCIBusId(int(os.environ["LOCAL_RANK"]))
        file = Path(os.environ["FAKE_COUNTERS"]) / here.replace(":", "-")
        before = int(file.read_text() or 0) if file.exists() else 0
        file.write_text(str(before + nbytes))

    def _announce(self) -> None:
        self._say("NCCL version 2.28.9+cuda13.0")
        for gpu in range(self.size):
            others = " ".join(f"GPU/0-{n} ({'0/5000.0/LOC' if n == gpu else '2/370.8/NVL'})" for n in range(self.size))
            self._say(f"GPU/0-{gpu} :{others}")
        self._say("NET/IB : No device found.")
        there = (self.rank + 1) % self.size
        self._say(f"Channel 00/0 : {self.rank}[{self.rank}] -> {there}[{there}] via {self._way}")

    def _say(self, text: str) -> None:
        if self._log:
            with open(self._log, "a", encoding="utf-8") as file:
                file.write(f"{socket.gethostname()}:{os.getpid()}:1 [{self.rank}] NCCL INFO {text}\n")


def _way() -> str:
    environment = os.environ
    if environment.get("FAKE_WAY"):
        return environment["FAKE_WAY"]
    if environment.get("NCCL_P2P_DISABLE", "0") != "1":
        return "P2P/CUMEM"
    return "SHM/direct/direct" if environment.get("NCCL_SHM_DISABLE", "0") != "1" else "NET/Socket/0"


def _meet(address: str, size: int, rank: int) -> list[Connection]:
    if rank:
        while True:
            with contextlib.suppress(ConnectionRefusedError, FileNotFoundError):
                own = Client(address)
                own.send(rank)
                return [own]
            time.sleep(0.005)
    with Listener(address, backlog=size) as listener:
        found = [listener.accept() for _ in range(size - 1)]
    return [peer for _, peer in sorted(((peer.recv(), peer) for peer in found), key=lambda pair: pair[0])]


def _summed(parts: Arrays, kind: int) -> list[Any]:
    table = codes(_DTYPES[kind])
    width = {1: np.uint8, 2: np.uint16, 4: np.uint32}[_ITEM[kind]]
    if kind == 7:
        total = np.sum([part.view(np.float32) for part in parts], axis=0, dtype=np.float32)
        return [total.view(np.uint8)] * len(parts)
    order = np.argsort(table)
    numbers = [order[np.minimum(np.searchsorted(table[order], part.view(width)), len(table) - 1)] for part in parts]
    total = np.minimum(np.sum(numbers, axis=0), len(table) - 1)
    return [table[total].astype(width).view(np.uint8)] * len(parts)


def _fault(name: str, nbytes: int, rank: int, receive: int) -> None:
    faults = dict(one.rsplit(":", 1) for one in os.environ.get("FAKE_FAULT", "").split(",") if one)
    kind = faults.get(f"{name}:{nbytes}")
    if kind is None or rank != 1:
        return
    if kind == "wrong":
        looking(receive, 4)[:] ^= 0x10
    else:
        os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[kind])
