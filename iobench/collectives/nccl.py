"""The engine "nccl": the library itself, through cupy's binding, one communicator per process.

Target of a group of ranks: ``Nccl``. NCCL reads its environment once per process, so every transport, algorithm and
protocol has a group of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from iobench.collectives.device import GpuRank, Launch
from iobench.collectives.ops import ROOT, Work
from iobench.errors import Unavailable
from iobench.nccl import library

if TYPE_CHECKING:
    from iobench.gpu import Device
    from iobench.ranks.child import Rank

# ncclDataType_t (nccl.h)
_TYPES = {"float16": 6, "float32": 7, "bfloat16": 9, "float8": 10}
_FLOAT8_SINCE = 22400  # NCCL 2.24: ncclFloat8e4m3
_SUM = 0


def binding() -> Any:
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

    def __init__(self, device: Device, stream: Any, ranks: int, unique: str, rank: int) -> None:
        self._nccl = binding()
        self.device, self.stream, self.ranks, self.rank = device, stream, ranks, rank
        self.comm = joined(self._nccl, ranks, bytes.fromhex(unique), rank)
        self._library = library.load()

    def launcher(self, work: Work, send: int, receive: int) -> Launch:
        """Return what puts one operation on the stream."""
        kind = _TYPES[work.dtype]
        if work.dtype == "float8" and self._nccl.get_version() < _FLOAT8_SINCE:
            raise Unavailable(f"float8 needs NCCL 2.24 or newer: this is {version_text(self._nccl.get_version())}")
        method: Callable[..., Launch] = getattr(self, f"_{work.op.name}")
        return method(work, send, receive, kind, self.stream.ptr)

    def capture(self, row: Sequence[Launch]) -> Launch:
        """Return the replay of a graph of the operations that ``row`` launches."""
        from iobench.timing import cuda

        graph = cuda.captured(lambda turn: row[turn](), self.stream, len(row))
        return partial(graph.launch, self.stream)

    def allocate(self, nbytes: int) -> contextlib.AbstractContextManager[int]:
        """Yield the address of memory from ncclMemAlloc, which NCCL can register; of cudaMalloc where it has none."""
        if library.allocates(self._library):
            return self._own_memory(nbytes)
        return self._plain_memory(nbytes)

    @contextlib.contextmanager
    def _own_memory(self, nbytes: int) -> Iterator[int]:
        from iobench import gpu

        with gpu.using(self.device), library.memory(self._library, nbytes) as address:
            yield address

    @contextlib.contextmanager
    def _plain_memory(self, nbytes: int) -> Iterator[int]:
        from iobench import gpu

        with gpu.buffer(nbytes, self.device) as buffer:
            yield buffer.ptr

    def facts(self) -> dict[str, Any]:
        """Return the version of the library in use and of the headers that cupy was built with."""
        built = getattr(self._nccl, "get_build_version", lambda: None)()
        facts: dict[str, Any] = {"nccl": version_text(self._nccl.get_version())}
        facts["buffers"] = "ncclMemAlloc" if library.allocates(self._library) else "cudaMalloc"
        return facts | ({"nccl_headers": version_text(built)} if built else {})

    def close(self) -> None:
        self.comm.destroy()

    def _all_reduce(self, work: Work, send: int, receive: int, kind: int, stream: int) -> Launch:
        return partial(self.comm.allReduce, send, receive, work.nbytes // work.item, kind, _SUM, stream)

    def _reduce(self, work: Work, send: int, receive: int, kind: int, stream: int) -> Launch:
        return partial(self.comm.reduce, send, receive, work.nbytes // work.item, kind, _SUM, ROOT, stream)

    def _broadcast(self, work: Work, send: int, receive: int, kind: int, stream: int) -> Launch:
        return partial(self.comm.broadcast, send, receive, work.nbytes // work.item, kind, ROOT, stream)

    def _all_gather(self, work: Work, send: int, receive: int, kind: int, stream: int) -> Launch:
        return partial(self.comm.allGather, send, receive, work.send_nbytes // work.item, kind, stream)

    def _reduce_scatter(self, work: Work, send: int, receive: int, kind: int, stream: int) -> Launch:
        return partial(self.comm.reduceScatter, send, receive, work.receive_nbytes // work.item, kind, _SUM, stream)

    def _all_to_all(self, work: Work, send: int, receive: int, kind: int, stream: int) -> Launch:
        part = work.nbytes // self.ranks
        count = part // work.item
        calls = []
        for peer in range(self.ranks):
            calls.append(partial(self.comm.send, send + peer * part, count, kind, peer, stream))
            calls.append(partial(self.comm.recv, receive + peer * part, count, kind, peer, stream))
        return self._together(calls)

    def _sendrecv(self, work: Work, send: int, receive: int, kind: int, stream: int) -> Launch:
        count, following, before = work.nbytes // work.item, (self.rank + 1) % self.ranks, (self.rank - 1) % self.ranks
        return self._together(
            [
                partial(self.comm.send, send, count, kind, following, stream),
                partial(self.comm.recv, receive, count, kind, before, stream),
            ]
        )

    def _together(self, calls: Sequence[Launch]) -> Launch:
        """Return the launch of all calls as one operation."""
        begin, end = self._nccl.groupStart, self._nccl.groupEnd

        def launch() -> None:
            begin()
            try:
                for call in calls:
                    call()
            finally:
                end()

        return launch


class Nccl(GpuRank):
    """One rank; the parent passes rank 0's ``unique_id`` to every rank's ``connect``."""

    def __init__(self, rank: Rank) -> None:
        super().__init__(rank)
        binding()

    def unique_id(self) -> str | None:
        """Return the id of a new communicator in rank 0, as hexadecimal digits; None in the others."""
        if self.rank.rank != ROOT:
            return None
        return bytes(number & 0xFF for number in binding().get_unique_id()).hex()

    def connect(self, unique: str) -> dict[str, Any]:
        """Join the communicator; return facts of the library."""
        from iobench import gpu

        self.rank.state(f"ncclCommInitRank of {self.rank.size} ranks")
        stream = self._stack.enter_context(gpu.stream(self.device))
        communicator = Communicator(self.device, stream, self.rank.size, unique, self.rank.rank)
        self._stack.callback(communicator.close)
        self.engine = communicator
        return self.facts()


def joined(nccl: Any, ranks: int, unique: bytes, rank: int) -> Any:
    """Return the communicator; cupy takes its id as bytes since 14, before as a tuple of signed numbers."""
    try:
        return nccl.NcclCommunicator(ranks, unique, rank)
    except TypeError:
        return nccl.NcclCommunicator(ranks, tuple(number - 256 if number > 127 else number for number in unique), rank)


def version_text(number: int) -> str:
    """Return NCCL's version number as text: 22809 is 2.28.9, 2708 (before 2.9) 2.7.8."""
    major, rest = divmod(number, 10000) if number >= 10000 else divmod(number, 1000)
    return f"{major}.{rest // 100}.{rest % 100}"
