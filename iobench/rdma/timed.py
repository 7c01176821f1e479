"""The loops of one side with its endpoint: compiled ones on the C structs; what they return is put into words."""

from __future__ import annotations

import ctypes
import errno
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.errors import RdmaError, Unavailable, WrongData
from iobench.rdma import loops, native, work
from iobench.rdma.endpoint import Endpoint
from iobench.rdma.verbs import STATUS

if TYPE_CHECKING:
    from numpy.typing import NDArray

MINE, THEIRS = (7, 11), (11, 7)  # odd factors that make the two sides' messages differ, by the side's number
LIMIT_SECONDS = 10.0  # without one completion
QUIET_SECONDS = 1.0
_SCRATCH_NBYTES = 64
_ANY_NUMBER = 1 << 40
_KINDS = {"read": loops.READ, "atomic_fadd": loops.FETCH_ADD, "atomic_cas": loops.COMPARE_SWAP}


class Native:
    """Compiled loops on a connected endpoint; ``rank`` 0 begins. ``turn`` counts the messages on both sides."""

    name = "native"

    def __init__(self, endpoint: Endpoint, rank: int, spins: int = 0) -> None:
        self.endpoint, self.rank, self.turn, self.spins = endpoint, rank, 1, spins
        kind = endpoint.verbs.constant(f"QPT_{endpoint.setup.transport}")
        found = [native.find(qp, int(qp.qp_num), kind) for qp in [*endpoint.qps, *endpoint.flows]]
        if None in found:
            raise Unavailable("the C side of pyverbs' queue pairs cannot be told here: use -a loop=pyverbs")
        self.natives = [one for one in found if one is not None]
        own = self.natives[: len(endpoint.qps)]
        self.requests = work.build(endpoint, own)
        self.qps = np.array([one.qp for one in own], np.uint64)
        self.signalled, self.silent, self.receives = (
            np.array([ctypes.addressof(wr) for wr in wrs], np.uint64)
            for wrs in (self.requests.signalled, self.requests.silent, self.requests.receives)
        )
        self.out = np.zeros(4, np.int64)
        self.table, self.completions = self._table(own[0], spins)
        data = endpoint.memory.data
        self.blind = data is None  # the CPU reaches the memory by copies only
        nothing = np.zeros(0, np.uint8)
        self.source, self.target = (
            data[at : at + endpoint.setup.nbytes] if data is not None else nothing
            for at in (endpoint.source_at(0), endpoint.target_at(0))
        )

    def _table(self, own: native.Native, spins: int) -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
        endpoint, requests = self.endpoint, self.requests
        places = np.zeros(48 * 16 + _SCRATCH_NBYTES + 16, np.uint8)  # completions, scratch, the failed request
        start = int(places.ctypes.data)
        t = np.zeros(loops.TABLE, np.uint64)
        t[loops.POST_SEND], t[loops.POST_RECV], t[loops.POLL_CQ] = own.post_send, own.post_recv, own.poll_cq
        t[loops.REQ_NOTIFY], t[loops.QP] = own.req_notify_cq, own.qp
        t[loops.SEND_CQ], t[loops.RECV_CQ] = own.send_cq, own.recv_cq
        t[loops.WC], t[loops.SCRATCH], t[loops.BAD] = start, start + 768, start + 768 + _SCRATCH_NBYTES
        t[loops.WR], t[loops.RECV_WR] = self.signalled[0], self.receives[0]
        t[loops.SECOND_WR] = ctypes.addressof(requests.write_back) if requests.write_back else 0
        memory = endpoint.memory.address
        t[loops.SOURCE], t[loops.TARGET] = memory + endpoint.source_at(0), memory + endpoint.target_at(0)
        t[loops.NBYTES], t[loops.LIMIT] = endpoint.setup.nbytes, int(LIMIT_SECONDS * 1e9)
        t[loops.SCHED_YIELD], t[loops.POLL], t[loops.SPINS] = native.libc("sched_yield"), native.libc("poll"), spins
        if endpoint.setup.events:
            self._add_channels(t, own)
        return t, places

    def _add_channels(self, t: NDArray[np.uint64], own: native.Native) -> None:
        for queue, cq in enumerate((own.send_cq, own.recv_cq)):
            channel = native.channel_of(cq, own)
            if channel is None:
                raise Unavailable("the C side of pyverbs' completion channels cannot be told: use -a loop=pyverbs")
            t[loops.SEND_CHANNEL + queue], t[loops.SEND_FD + queue] = channel.address, channel.fd
            t[loops.GET_EVENT], t[loops.ACK_EVENTS] = channel.get_event, channel.ack_events
        t[loops.EVENTS] = 1

    @property
    def how(self) -> int:
        """How a message is noticed: a write without immediate only by its bytes."""
        return loops.MEMORY if self.endpoint.setup.verb == "write" else loops.RECEIVE

    def arm(self) -> None:
        """Post the receives that the other side's first messages need."""
        if self.endpoint.setup.two_sided:
            count = self.endpoint.receives
            self._check(loops.post_receives(self.table, self.qps, self.receives, count), "posting receives")

    def exchange(self, count: int, verify: bool) -> list[int]:
        """Send and be answered ``count`` times; return nanoseconds (the side that answers: nothing)."""
        if self.blind and (verify or self.how == loops.MEMORY):
            raise Unavailable("the CPU cannot poll in a GPU's memory: use send, write_imm or read, or test=bandwidth")
        first, self.turn = self.turn, self.turn + count
        mine, theirs = np.uint64(MINE[self.rank]), np.uint64(THEIRS[self.rank])
        common = (self.table, self.how, first)
        rest = (self.source, self.target, mine, theirs, verify)
        if self.rank:
            self._check(loops.answer(*common, count, *rest, self.out), "answering")
            return []
        starts, ends = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self._check(loops.pingpong(*common, *rest, starts, ends, self.out), "sending")
        return _differences(starts, ends)

    def one_sided(self, count: int, verify: bool) -> list[int]:
        """Read or do atomics ``count`` times; return nanoseconds. Nothing to do for the other side."""
        if self.blind and (verify or self.endpoint.setup.verb != "read"):
            raise Unavailable("atomics on a GPU's memory are not measured: the CPU could not check their answers")
        first, self.turn = self.turn, self.turn + count
        if self.rank:
            return []
        starts, ends = np.zeros(count, np.int64), np.zeros(count, np.int64)
        kind = _KINDS[self.endpoint.setup.verb]
        code = loops.one_sided(
            self.table, kind, first, self.source, self.target, np.uint64(MINE[0]), verify, starts, ends, self.out
        )
        self._check(code, self.endpoint.setup.verb)
        return _differences(starts, ends)

    def stream(self, total: int, marks: list[int]) -> list[int]:
        """Send ``total`` messages with the set-up's depth; return when each of ``marks`` was done (ns)."""
        setup = self.endpoint.setup
        stamps = np.zeros(len(marks), np.int64)
        self.out[:] = 0
        code = loops.stream(
            self.table, self.qps, self.signalled, self.silent, setup.depth, setup.every, total,
            np.array(marks, np.int64), stamps, np.uint64(0), self.out,
        )  # fmt: skip
        self._check(code, f"streaming {setup.verb}")
        return [int(stamp) for stamp in stamps]

    def drain(self, total: int) -> int:
        """Take ``total`` messages of the other side's stream; return how many came."""
        # what was lost never comes; anything else is only late
        lossy = self.endpoint.setup.transport == "UD"
        return self._drain(total, int(self.table[loops.LIMIT]), QUIET_SECONDS if lossy else LIMIT_SECONDS, lossy)

    def flush(self) -> int:
        """Take what came after ``drain`` had given it up, or it would be taken for a later message; return how many."""
        return self._drain(_ANY_NUMBER, 0, 0.0, True)

    def _drain(self, total: int, limit: int, quiet: float, lossy: bool) -> int:
        out = np.zeros(4, np.int64)
        table = self.table.copy()
        places = np.zeros(48 * 16 + 16, np.uint8)  # its own: the stream may run meanwhile
        table[loops.WC], table[loops.BAD] = places.ctypes.data, places.ctypes.data + 768
        table[loops.LIMIT] = limit
        code = loops.drain(table, self.qps, self.receives, total, int(quiet * 1e9), out)
        if code != loops.TIME_UP or not lossy:
            self._check(code, "receiving")
        return int(out[0])

    def share_cpu(self, on: bool) -> None:
        """Give the CPU away on every look while another thread of this side has to run on it."""
        self.table[loops.SPINS] = 1 if on else self.spins

    def post_batches(self, count: int, batch: int) -> list[int]:
        """Time the posting alone of ``batch`` messages, ``count`` times (ns)."""
        starts, ends = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self._check(loops.post_batches(self.table, self.signalled[0], self.silent[0], batch, starts, ends), "posting")
        return _differences(starts, ends)

    def empty_poll(self, count: int = 2000) -> float:
        """Return the seconds of one poll of an empty queue in this loop."""
        loops.empty_polls(self.table, 10)
        return float(loops.empty_polls(self.table, count)) * 1e-9 / count

    def flood(self, stop: int, out: NDArray[np.int64]) -> None:
        """Keep the bulk flows busy until the word at ``stop`` is not 0; ``out[0]`` counts the messages done."""
        endpoint, kept = self.endpoint, work.Requests()
        flows = self.natives[len(endpoint.qps) :]
        pairs = [
            np.array(
                [
                    ctypes.addressof(work.flow(endpoint, kept, n, signalled, endpoint.setup.flow_nbytes))
                    for n in range(len(flows))
                ],
                np.uint64,
            )
            for signalled in (True, False)
        ]
        table, places = self.table.copy(), np.zeros(48 * 16 + 16, np.uint8)
        table[loops.WC], table[loops.BAD] = places.ctypes.data, places.ctypes.data + 768
        table[loops.SEND_CQ] = flows[0].send_cq
        nothing = np.zeros(0, np.int64)
        queues = np.array([one.qp for one in flows], np.uint64)
        code = loops.stream(
            table, queues, *pairs, endpoint.flow_depth, 4, len(flows) * _ANY_NUMBER, nothing, nothing, np.uint64(stop),
            out,
        )  # fmt: skip
        _raise(int(code), "a bulk flow", out)

    def _check(self, code: int, what: str) -> None:
        _raise(int(code), what, self.out)


def explain(code: int) -> str:
    """Return what a loop's code means."""
    if code == loops.TIME_UP:
        return "nothing came in time: the other side is gone or stuck, or a message was lost"
    if code >= loops.POSTING:
        number = code - loops.POSTING
        full = ": the queue is full" if number == errno.ENOMEM else ""
        return f"the device refused a work request ({os.strerror(number)}){full}"
    if code >= loops.COMPLETION:
        status = code - loops.COMPLETION
        return STATUS.get(status, f"completion status {status}")
    if code == loops.TOO_MANY:
        return "more completions than signalled messages: what they count cannot be told"
    return "the device's completion queue failed"


def _raise(code: int, what: str, out: NDArray[np.int64]) -> None:
    if code == loops.WRONG:
        raise WrongData(
            f"{what}: message {int(out[0])} differs from what was sent, first at byte or as value {int(out[1])}"
        )
    if code != loops.OK:
        raise RdmaError(f"{what}: {explain(code)}")


def _differences(starts: NDArray[np.int64], ends: NDArray[np.int64]) -> list[int]:
    return [int(value) for value in ends - starts]


def make(endpoint: Endpoint, rank: int, spins: int) -> Any:
    """Return the loops that the set-up asks for."""
    if endpoint.setup.loop == "pyverbs":
        from iobench.rdma.slow import Slow

        return Slow(endpoint, rank)
    return Native(endpoint, rank, spins)
