"""The engine "nccl": the library itself, through cupy's binding, one communicator per process.

Target of a group of ranks: ``Nccl``. NCCL reads its environment once per process, so every transport, algorithm and
protocol has a group of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from iobench.collectives.device import GpuRank
from iobench.collectives.ops import ROOT, Work
from iobench.errors import Unavailable

if TYPE_CHECKING:
    from iobench.gpu import Device
    from iobench.ranks.child import Rank

# ncclDataType_t (nccl.h)
_TYPES = {"float16": 6, "float32": 7, "bfloat16": 9, "float8": 10}
_FLOAT8_SINCE = 22400  # NCCL 2.24: ncclFloat8e4m3
_SUM = 0


def library() -> Any:
    """Return cupy.cuda.nccl; Unavailable with the reason where cupy has none."""
    try:
        from cupy.cuda import nccl
    except ImportError as error:
        raise Unavailable("cupy finds no NCCL: pip install nvidia-nccl-cu13 (or -cu12, as your cupy)") from error
    if not getattr(nccl, "available", True):
        raise Unavailable("cupy finds no NCCL: pip install nvidia-nccl-cu13 (or -cu12, as your cupy)")
    return nccl


class Communicator:
    """NCCL's operations on one stream of one device."""

    def __init__(self, device: Device, stream: Any, ranks: int, unique: list[int], rank: int) -> None:
        self._nccl = library()
        self.device, self.stream, self.ranks, self.rank = device, stream, ranks, rank
        self.comm = self._nccl.NcclCommunicator(ranks, tuple(unique), rank)

    def enqueue(self, work: Work, send: int, receive: int) -> None:
        """Put one operation on the stream."""
        kind = _TYPES[work.dtype]
        if work.dtype == "float8" and self._nccl.get_version() < _FLOAT8_SINCE:
            raise Unavailable(f"float8 needs NCCL 2.24 or newer: this is {version_text(self._nccl.get_version())}")
        getattr(self, f"_{work.op.name}")(work, send, receive, kind, self.stream.ptr)

    def capture(self, enqueue: Callable[[int], None], ops: int) -> Callable[[], None]:
        """Return the replay of a graph of ``ops`` operations."""
        from iobench.timing import cuda

        graph = cuda.captured(enqueue, self.stream, ops)
        return lambda: graph.launch(self.stream)

    @contextlib.contextmanager
    def allocate(self, nbytes: int) -> Iterator[int]:
        """Yield the address of plain device memory."""
        from iobench import gpu

        with gpu.buffer(nbytes, self.device) as buffer:
            yield buffer.ptr

    def facts(self) -> dict[str, Any]:
        """Return the version of the library in use and of the headers that cupy was built with."""
        built = getattr(self._nccl, "get_build_version", lambda: None)()
        facts: dict[str, Any] = {"nccl": version_text(self._nccl.get_version())}
        return facts | ({"nccl_headers": version_text(built)} if built else {})

    def close(self) -> None:
        self.comm.destroy()

    def _all_reduce(self, work: Work, send: int, receive: int, kind: int, stream: int) -> None:
        self.comm.allReduce(send, receive, work.nbytes // work.item, kind, _SUM, stream)

    def _reduce(self, work: Work, send: int, receive: int, kind: int, stream: int) -> None:
        self.comm.reduce(send, receive, work.nbytes // work.item, kind, _SUM, ROOT, stream)

    def _broadcast(self, work: Work, send: int, receive: int, kind: int, stream: int) -> None:
        self.comm.broadcast(send, receive, work.nbytes // work.item, kind, ROOT, stream)

    def _all_gather(self, work: Work, send: int, receive: int, kind: int, stream: int) -> None:
        self.comm.allGather(send, receive, work.send_nbytes // work.item, kind, stream)

    def _reduce_scatter(self, work: Work, send: int, receive: int, kind: int, stream: int) -> None:
        self.comm.reduceScatter(send, receive, work.receive_nbytes // work.item, kind, _SUM, stream)

    def _all_to_all(self, work: Work, send: int, receive: int, kind: int, stream: int) -> None:
        part = work.nbytes // self.ranks
        with self._grouped():
            for peer in range(self.ranks):
                self.comm.send(send + peer * part, part // work.item, kind, peer, stream)
                self.comm.recv(receive + peer * part, part // work.item, kind, peer, stream)

    def _sendrecv(self, work: Work, send: int, receive: int, kind: int, stream: int) -> None:
        count = work.nbytes // work.item
        with self._grouped():
            self.comm.send(send, count, kind, (self.rank + 1) % self.ranks, stream)
            self.comm.recv(receive, count, kind, (self.rank - 1) % self.ranks, stream)

    @contextlib.contextmanager
    def _grouped(self) -> Iterator[None]:
        self._nccl.groupStart()
        try:
            yield
        finally:
            self._nccl.groupEnd()


class Nccl(GpuRank):
    """One rank; the parent passes rank 0's ``unique_id`` to every rank's ``connect``."""

    def __init__(self, rank: Rank) -> None:
        super().__init__(rank)
        library()

    def unique_id(self) -> list[int] | None:
        """Return the id of a new communicator in rank 0, None in the others."""
        return list(library().get_unique_id()) if self.rank.rank == ROOT else None

    def connect(self, unique: list[int]) -> dict[str, Any]:
        """Join the communicator; return facts of the library."""
        from iobench import gpu

        self.rank.state(f"ncclCommInitRank of {self.rank.size} ranks")
        stream = self._stack.enter_context(gpu.stream(self.device))
        communicator = Communicator(self.device, stream, self.rank.size, unique, self.rank.rank)
        self._stack.callback(communicator.close)
        self.engine = communicator
        return self.facts()


def version_text(number: int) -> str:
    """Return NCCL's version number as text: 22809 is 2.28.9, 2708 (before 2.9) 2.7.8."""
    major, rest = divmod(number, 10000) if number >= 10000 else divmod(number, 1000)
    return f"{major}.{rest // 100}.{rest % 100}"
