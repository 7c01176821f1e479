"""One rank of a group on a GPU: buffers, data, timing. An engine (nccl.py, torch.py) says how to enqueue an operation.

Every decision that all ranks must take alike (how many operations, how many replays) comes from the parent.

Clock. graph: a CUDA graph of many operations is replayed back to back, with an event after every few replays; one
replay runs ahead of the first event, so that the ranks' launches, which are some microseconds apart, are outside. A
sample lasts from one event to the next, so samples follow each other without a gap. eager: the operations are
launched one by one from Python between two events, one ahead; where launching takes longer than the operation,
launching is what is timed, and its cost per call is reported beside it. blocking: the host's clock from the call to
the completion of each single operation, after a barrier of the host's ranks.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from iobench.collectives import values
from iobench.collectives.data import Data
from iobench.collectives.ops import Work
from iobench.errors import Unavailable
from iobench.nccl import library

if TYPE_CHECKING:
    from iobench.gpu import Device, Pool, Watch
    from iobench.ranks.child import Rank

MODES = ("graph", "eager", "blocking")
Launch = Callable[[], Any]
_WARM = 4  # the first operations of a connection take up to 200 ms and settle at the fourth (nccl#1487)
_MEMORY_SHARE = 0.4  # of what is free, for each of the two pools
_LEAST_AREA = 1 << 30  # so that buffers of up to 512 MiB are allocated once: NCCL may keep them registered for a while
_FORGET_SECONDS = 0.05  # a graph that is gone is taken off NCCL's registered buffers by another thread
_MOST_SLOTS = 128  # small messages stay in the cache, as they do where they are used: no need for 100,000 slots
_CACHED_SLOTS = 16  # of messages that stay in the cache all the same: filling and checking more only takes time
_LOG_NBYTES = 4 << 20
_POISON = 0xFF  # NaN in every floating-point type


class Engine(Protocol):
    """What an engine offers to a rank; all pointers are device addresses, all work goes to ``stream``."""

    stream: Any

    def launcher(self, work: Work, send: int, receive: int) -> Launch:
        """Return what puts one operation on the stream, with as little to do in Python as can be."""

    def capture(self, row: Sequence[Launch]) -> Launch:
        """Return the replay of a graph of the operations that ``row`` launches."""

    def allocate(self, nbytes: int) -> contextlib.AbstractContextManager[int]:
        """Yield the address of device memory that the engine can use."""

    def facts(self) -> dict[str, Any]:
        """Return library versions and the like."""


@dataclass
class _Prepared:
    """Buffers of one piece of work, the same number of slots for input and result."""

    work: Work
    send: Pool
    receive: Pool
    launches: list[Launch]
    touched: int = 0
    replay: Launch | None = None
    captured: int = 0

    def row(self, ops: int) -> list[Launch]:
        """Return ``ops`` launches, slot after slot."""
        return [self.launches[turn % len(self.launches)] for turn in range(ops)]


class GpuRank:
    """What answers the parent's calls; ``engine`` is made by the subclass's ``connect``."""

    def __init__(self, rank: Rank) -> None:
        rank.state("import cupy")
        from iobench import gpu

        gpu.require()
        self.rank = rank
        node = gpu_of(rank.config, rank.local_rank)
        rank.state(f"making a context on {node}")
        self.device: Device = gpu.at(node)
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(gpu.using(self.device))
        self._buffers = contextlib.ExitStack()
        self._watching = contextlib.ExitStack()
        self._seen: Watch
        self._areas: list[tuple[int, int]] = []  # address and bytes of the memory for inputs and for results
        self._log = library.Log()
        self._now: _Prepared | None = None
        self.engine: Engine

    def prepare(self, op: str, nbytes: int, dtype: str, inplace: bool) -> float:
        """Allocate, fill, run every slot once, verify every result; return seconds of one operation, roughly.

        "Roughly" is one call from the host, with its launch: for short operations ask ``rough`` again.
        """
        work = Work.of(op, nbytes, dtype, self.rank.size, inplace)
        values.levels(work)
        self.rank.state(f"allocating buffers for {self._words(work)}")
        self._now = None  # a graph goes before the buffers it uses
        send, receive = self._pools(work)
        self._now = _Prepared(work, send, receive, self._launches(work, send, receive))
        self.rank.state(f"{self._words(work)}, before sampling")
        for _ in range(_WARM):
            self._now.launches[0]()
        self._wait()
        self.verify_once()
        return self.rough(1)

    def rough(self, count: int) -> float:
        """Return the least seconds of ``count`` single operations as the host sees them."""
        return min(self.time_blocking(count)) * 1e-9

    def capture(self, ops: int) -> None:
        """Capture ``ops`` operations into a graph."""
        now = self._current
        self.rank.state(f"capturing {ops} x {self._words(now.work)}")
        now.replay, now.captured = self.engine.capture(now.row(ops)), ops
        now.replay()
        self._wait()

    def poison(self) -> None:
        """Overwrite all results, so that those which the timed operations leave are known to be theirs."""
        now = self._current
        if not now.work.inplace:
            self._fill_bytes(now.receive)
        now.touched = 0

    def time_graph(self, count: int, replays: int) -> list[int]:
        """Return ``count`` durations (ns), each of ``replays`` replays, without a gap between them."""
        now = self._current
        assert now.replay is not None  # the parent captured before
        now.touched = max(now.touched, now.captured)
        row = [now.replay] * replays
        with self._events(count + 1) as events:
            self.rank.barrier()
            now.replay()
            self._mark(events[0])
            for event in events[1:]:
                for launch in row:
                    launch()
                self._mark(event)
            return [self._passed(*ends) for ends in itertools.pairwise(events)]

    def time_eager(self, count: int, ops: int) -> list[int]:
        """Return ``count`` durations (ns), each of ``ops`` operations launched one by one."""
        now = self._current
        now.touched = max(now.touched, ops)
        lead, row = now.launches[0], now.row(ops)
        with self._events(2) as (start, end):
            return [self._one_by_one(lead, row, start, end) for _ in range(count)]

    def time_blocking(self, count: int) -> list[int]:
        """Return ``count`` durations (ns) from the call to the completion of one operation."""
        now = self._current
        self.rank.state(f"{self._words(now.work)}, timed")
        now.touched = max(now.touched, count)
        durations, clock, wait = [], time.perf_counter_ns, self.engine.stream.synchronize
        with self.rank.quiet():
            for launch in now.row(count):
                self.rank.barrier()
                start = clock()
                launch()
                wait()
                durations.append(clock() - start)
        return durations

    def call_cost(self, ops: int = 32) -> float:
        """Return the seconds that the host needs to launch one operation, as the median of several runs."""
        now = self._current
        now.touched = max(now.touched, ops)
        row, spent = now.row(ops), []
        with self.rank.quiet():
            for _ in range(3):
                self.rank.barrier()
                start = time.perf_counter_ns()
                for launch in row:
                    launch()
                spent.append(time.perf_counter_ns() - start)
                self._wait()
        return sorted(spent)[len(spent) // 2] / ops * 1e-9

    def verify(self) -> int:
        """Verify what the timed operations left; return how many results were looked at.

        In place every operation changes its own input, so there the buffers are filled anew and one operation
        on each is verified.
        """
        now = self._current
        if now.work.inplace:
            return self.verify_once()
        looked = min(now.touched, now.receive.count)
        self._check(range(looked))
        return looked

    def verify_once(self) -> int:
        """Fill all inputs, run one operation on each slot and verify all results."""
        now = self._current
        self.rank.state(f"verifying {self._words(now.work)}")
        for slot in range(now.send.count):
            self._data.fill(now.send.at(slot) + now.work.send_offset(self.rank.rank), now.work, slot)
        if not now.work.inplace:
            self._fill_bytes(now.receive)
        self._wait()
        self.rank.barrier()
        for launch in now.launches:
            launch()
        self._wait()
        self._check(range(now.receive.count))
        return now.receive.count

    def links(self) -> dict[str, Any] | None:
        """Return this rank's GPU's NVLink counters: bytes sent and received, links active and not; None unknown."""
        from iobench.gpu import nvlink

        handle = nvlink.of(self.device)
        found = nvlink.counters(handle)
        if found is None:
            return None
        state = nvlink.links(handle)
        return {
            "gpu": self.device.node, "sent": found.sent, "received": found.received,
            "active": len(state.active) if state else None, "inactive": list(state.inactive) if state else [],
        }  # fmt: skip

    def watch(self) -> None:
        """Start to watch the GPU: clocks, power, throttling, link, other processes."""
        from iobench import gpu

        self._watching = contextlib.ExitStack()
        self._seen = self._watching.enter_context(gpu.watch([self.device]))

    def watched(self) -> dict[str, Any]:
        """Stop watching; return what was seen, and the reason for doubt, if any."""
        self._watching.close()
        return {"seen": self._seen.evidence(), "suspect": self._seen.suspect}

    def nccl_log(self) -> str:
        """Return what NCCL has written of this process since the last call; "" without a log."""
        return self._log.new(_LOG_NBYTES)

    def log_operations(self, wanted: bool) -> bool:
        """Let NCCL write a line on each operation or not, where it can be told; return whether it does."""
        return self._log.log_operations(wanted, library.load())

    def facts(self) -> dict[str, Any]:
        """Return device and library facts of this rank."""
        return {"gpu": self.device.node, "name": self.device.name, **self.engine.facts()}

    def close(self) -> None:
        """Free everything; the log goes too."""
        self._log.remove()
        self._watching.close()
        self._now = None  # NCCL ends a communicator only when no graph uses it any more
        self._buffers.close()
        self._stack.close()

    @property
    def _current(self) -> _Prepared:
        if self._now is None:
            raise RuntimeError("prepare comes first")
        return self._now

    def _words(self, work: Work) -> str:
        return f"{work.op.name} of {work.nbytes} bytes {work.dtype}"

    def _pools(self, work: Work) -> tuple[Pool, Pool]:
        """Return the slots for input and result; the buffers of the point before are used again where they suffice."""
        from iobench import gpu
        from iobench.gpu import memory

        free, _ = gpu.require().cuda.runtime.memGetInfo()
        most = int((free + sum(size for _, size in self._areas)) * _MEMORY_SHARE)
        count, stride = memory.slots(work.slot_nbytes, self.device.l2_nbytes, most)
        if count > _MOST_SLOTS:
            beyond = _MOST_SLOTS * stride > self.device.l2_nbytes
            count = _MOST_SLOTS if beyond else _CACHED_SLOTS
        if not self._areas or count * stride > self._areas[0][1]:
            if self._areas:
                time.sleep(_FORGET_SECONDS)
            self._areas = []
            self._buffers.close()
            size = max(count * stride, min(_LEAST_AREA, most))
            self._areas = [(self._buffers.enter_context(self.engine.allocate(size)), size) for _ in range(2)]
        send, receive = (gpu.Pool(area, work.slot_nbytes, stride, count) for area, _ in self._areas)
        return send, send if work.inplace else receive

    def _launches(self, work: Work, send: Pool, receive: Pool) -> list[Launch]:
        to, back = work.send_offset(self.rank.rank), work.receive_offset(self.rank.rank)
        return [self.engine.launcher(work, send.at(n) + to, receive.at(n) + back) for n in range(send.count)]

    @contextlib.contextmanager
    def _events(self, count: int) -> Iterator[list[int]]:
        """Yield events for a timed loop, which the garbage collector stays out of."""
        self.rank.state(f"{self._words(self._current.work)}, timed")
        from cupy.cuda import runtime as api

        with contextlib.ExitStack() as stack:
            events = []
            for _ in range(count):
                events.append(api.eventCreate())
                stack.callback(api.eventDestroy, events[-1])
            with self.rank.quiet():
                yield events

    def _one_by_one(self, lead: Launch, row: Sequence[Launch], start: int, end: int) -> int:
        """Return nanoseconds of what ``row`` launches; ``lead`` runs ahead."""
        self.rank.barrier()
        lead()
        self._mark(start)
        for launch in row:
            launch()
        self._mark(end)
        return self._passed(start, end)

    def _mark(self, event: int) -> None:
        from cupy.cuda import runtime as api

        api.eventRecord(event, self.engine.stream.ptr)

    def _passed(self, start: int, end: int) -> int:
        """Return the nanoseconds between two events, once the later one has passed."""
        from cupy.cuda import runtime as api

        api.eventSynchronize(end)
        return round(float(api.eventElapsedTime(start, end)) * 1e6)

    def _wait(self) -> None:
        self.engine.stream.synchronize()

    def _fill_bytes(self, pool: Pool) -> None:
        from cupy.cuda import runtime as api

        api.memsetAsync(pool.ptr, _POISON, pool.span, self.engine.stream.ptr)
        self._wait()

    def _check(self, slots: range) -> None:
        """Raise WrongData where an element of a result in ``slots`` (0 on) is not what it must be."""
        now, number = self._current, self.rank.rank
        if now.work.op.has_result(number):
            offset = now.work.receive_offset(number)
            self._data.check([now.receive.at(slot) + offset for slot in slots], now.work)

    @property
    def _data(self) -> Data:
        return Data(self.device, self.engine.stream, self.rank.rank)


def gpu_of(config: dict[str, Any], rank: int) -> str:
    """Return the topology's name of a rank's GPU; Unavailable where there are fewer GPUs than ranks."""
    gpus: list[str] = config["gpus"]
    if rank >= len(gpus):
        raise Unavailable(f"rank {rank} has no GPU of its own: the topology has {len(gpus)}")
    return gpus[rank]
