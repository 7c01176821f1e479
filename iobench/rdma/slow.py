"""The same loops through pyverbs' objects: for a pyverbs whose C side cannot be told, and to know what Python costs.

Every operation makes and posts Python objects, some microseconds each: ``seconds_per_empty_poll`` and the difference
to the compiled loops stand in the evidence, and the record says loop=pyverbs. No bulk flows here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from iobench.errors import RdmaError, Unavailable, WrongData
from iobench.rdma import loops, work
from iobench.rdma.endpoint import QKEY, Endpoint
from iobench.rdma.setup import ATOMICS, GRH_NBYTES
from iobench.rdma.timed import LIMIT_SECONDS, MINE, QUIET_SECONDS, THEIRS, explain

_BATCH = 16


class Slow:
    """Loops in Python on a connected endpoint, with the methods of timed.Native."""

    name = "pyverbs"

    def __init__(self, endpoint: Endpoint, rank: int) -> None:
        if endpoint.setup.events or endpoint.setup.flows:
            raise Unavailable("loop=pyverbs has neither events nor bulk flows: use -a loop=native")
        self.endpoint, self.rank, self.turn = endpoint, rank, 1
        data = endpoint.memory.data
        at, to, nbytes = endpoint.source_at(0), endpoint.target_at(0), endpoint.setup.nbytes
        if data is None and endpoint.setup.verb not in ("read", "send", "write_imm"):
            raise Unavailable("loop=pyverbs reaches GPU memory by read, send and write_imm only")
        self.source = np.zeros(0, np.uint8) if data is None else data[at : at + nbytes]
        self.target = np.zeros(0, np.uint8) if data is None else data[to : to + nbytes]
        self.memory = endpoint.setup.verb == "write"

    def arm(self) -> None:
        """Post the receives that the other side's first messages need."""
        if self.endpoint.setup.two_sided:
            for qp in range(self.endpoint.setup.qps):
                for _ in range(self.endpoint.receives):
                    self._receive(qp)

    def exchange(self, count: int, verify: bool) -> list[int]:
        """Send and be answered, or answer, ``count`` times; nanoseconds of each on the side that begins."""
        durations = []
        for _ in range(count):
            if self.rank == 0:
                self._stamp(verify)
                start = time.perf_counter_ns()
                self._post(0, True)
                self._arrive()
                durations.append(time.perf_counter_ns() - start)
                self._verify(verify, THEIRS[0])
            else:
                self._arrive()
                self._verify(verify, THEIRS[1])
                self._stamp(verify)
                self._post(0, True)
            if not self.memory:
                self._receive(0)
            self._wait(self.endpoint.send_cq)
            self.turn += 1
        return durations

    def one_sided(self, count: int, verify: bool) -> list[int]:
        """Read or do atomics ``count`` times on side 0."""
        if self.rank:
            self.turn += count
            return []
        durations = []
        reads = self.endpoint.setup.verb == "read"
        for _ in range(count):
            if reads and verify:
                self._stamp(True)
                self._post(0, True, "write")
                self._wait(self.endpoint.send_cq)
            start = time.perf_counter_ns()
            self._post(0, True)
            self._wait(self.endpoint.send_cq)
            durations.append(time.perf_counter_ns() - start)
            if reads:
                self._verify(verify, MINE[0])
            elif int(self.target.view(np.uint64)[0]) != self.turn:
                raise WrongData(f"{self.endpoint.setup.verb}: {self.target.view(np.uint64)[0]}, not {self.turn}")
            self.turn += 1
        return durations

    def stream(self, total: int, marks: list[int]) -> list[int]:
        """Send ``total`` messages with the set-up's depth; return when each of ``marks`` was done (ns)."""
        setup = self.endpoint.setup
        posted, done = [0] * setup.qps, [0] * setup.qps
        share, finished = total // setup.qps, 0
        stamps: list[int] = []
        while finished < total:
            for qp in range(setup.qps):
                while posted[qp] < share and posted[qp] - done[qp] < setup.depth:
                    posted[qp] += 1
                    self._post(qp, posted[qp] % setup.every == 0)
            for entry in self._take(self.endpoint.send_cq, LIMIT_SECONDS):
                done[entry.wr_id] += setup.every
                finished += setup.every
            while len(stamps) < len(marks) and finished >= marks[len(stamps)]:
                stamps.append(time.perf_counter_ns())
        return stamps

    def drain(self, total: int) -> int:
        """Take ``total`` messages of the other side's stream; return how many came."""
        taken = 0
        while taken < total:
            try:
                found = self._take(self.endpoint.recv_cq, QUIET_SECONDS if taken else LIMIT_SECONDS)
            except TimeoutError:
                break
            for entry in found:
                self._receive(entry.wr_id)
            taken += len(found)
        return taken

    def flush(self) -> int:
        """Take what came after ``drain`` had given it up; return how many."""
        taken = 0
        while (found := self.endpoint.recv_cq.poll(_BATCH))[0]:
            for entry in found[1]:
                self._receive(entry.wr_id)
            taken += found[0]
        return taken

    def share_cpu(self, on: bool) -> None:
        """Nothing to do: Python's lock goes from thread to thread by itself."""

    def post_batches(self, count: int, batch: int) -> list[int]:
        """Time the posting alone of ``batch`` messages, ``count`` times (ns)."""
        durations = []
        for _ in range(count):
            start = time.perf_counter_ns()
            for number in range(batch):
                self._post(0, number == batch - 1)
            durations.append(time.perf_counter_ns() - start)
            self._wait(self.endpoint.send_cq)
        return durations

    def empty_poll(self, count: int = 2000) -> float:
        """Return the seconds of one poll of an empty queue in this loop."""
        poll = self.endpoint.send_cq.poll
        start = time.perf_counter()
        for _ in range(count):
            poll(1)
        return (time.perf_counter() - start) / count

    def _stamp(self, verify: bool) -> None:
        if verify:
            loops.fill(self.source, np.uint64(self.turn), np.uint64(MINE[self.rank]))
        elif self.memory:
            self.source[-1] = self.turn & 0xFF

    def _verify(self, verify: bool, salt: int) -> None:
        wrong = int(loops.first_wrong(self.target, np.uint64(self.turn), np.uint64(salt))) if verify else -1
        if wrong >= 0:
            raise WrongData(f"{self.endpoint.setup.verb}: byte {wrong} of message {self.turn} is not the one sent")

    def _arrive(self) -> None:
        if not self.memory:
            self._wait(self.endpoint.recv_cq)
            return
        wanted = self.turn & 0xFF
        _until(lambda: int(self.target[-1]) == wanted, LIMIT_SECONDS)

    def _wait(self, queue: Any) -> None:
        try:
            self._take(queue, LIMIT_SECONDS, 1)
        except TimeoutError:
            raise RdmaError(explain(loops.TIME_UP)) from None

    def _take(self, queue: Any, seconds: float, most: int = _BATCH) -> list[Any]:
        """Return completions, one at least; TimeoutError where none comes, RdmaError where one failed."""
        found: list[Any] = []

        def some() -> bool:
            count, entries = queue.poll(most)
            found.extend(entries or ())
            return bool(count)

        _until(some, seconds)
        for entry in found:
            if int(entry.status):
                raise RdmaError(f"{self.endpoint.setup.verb}: {explain(loops.COMPLETION + int(entry.status))}")
        return found

    def _receive(self, qp: int) -> None:
        endpoint, wr = self.endpoint, self.endpoint.verbs.wr
        head = GRH_NBYTES if endpoint.setup.transport == "UD" else 0
        at = endpoint.memory.address + endpoint.target_at(qp) - head
        entry = wr.SGE(at, endpoint.setup.nbytes + head, endpoint.memory.mr.lkey)
        with endpoint.verbs.doing("posting a receive"):
            endpoint.qps[qp].post_recv(wr.RecvWR(wr_id=qp, num_sge=1, sg=[entry]))

    def _post(self, qp: int, signalled: bool, verb: str = "") -> None:
        endpoint, setup, peer = self.endpoint, self.endpoint.setup, self.endpoint.peer
        verbs, name = endpoint.verbs, verb or setup.verb
        assert peer is not None
        one_sided = setup.verb in (*ATOMICS, "read")
        local = endpoint.target_at(qp) if name in (*ATOMICS, "read") else endpoint.source_at(qp)
        remote = peer.address + (endpoint.source_at(qp) if one_sided else endpoint.target_at(qp))
        entry = verbs.wr.SGE(endpoint.memory.address + local, setup.nbytes, endpoint.memory.mr.lkey)
        flags = (verbs.constant("SEND_SIGNALED") if signalled else 0) | (
            verbs.constant("SEND_INLINE") if endpoint.inline else 0
        )
        wr = verbs.wr.SendWR(
            wr_id=qp,
            opcode=work.opcode(endpoint, name),
            num_sge=1,
            imm_data=work.IMMEDIATE,
            sg=[entry],
            send_flags=flags,
        )
        if setup.transport == "UD":
            wr.set_wr_ud(endpoint.handles[qp], peer.qps[qp], QKEY)
        elif name in ATOMICS:
            added = self.turn if name == "atomic_cas" else 1
            wr.set_wr_atomic(peer.rkey, remote, added, self.turn + 1)
        elif name != "send":
            wr.set_wr_rdma(peer.rkey, remote)
        with verbs.doing(f"posting a {name}"):
            endpoint.qps[qp].post_send(wr)


def _until(done: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            raise TimeoutError
