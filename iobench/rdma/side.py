"""One side in a process of its own: what the parent (pairing.py) or another host (server.py) may ask of it."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.errors import UserError, WrongData
from iobench.rdma import compiled, counters, loops, timed, verbs
from iobench.rdma.endpoint import Endpoint
from iobench.rdma.setup import Info, Setup
from iobench.topology.sysfs import Tree

if TYPE_CHECKING:
    from iobench.ranks.child import Rank

_CROWDED_SPINS = 1  # more processes than CPUs: give the CPU away on every look


class Side:
    """Rank 0 begins, rank 1 answers; between two hosts each has one rank, and ``number`` tells which it is."""

    def __init__(self, rank: Rank) -> None:
        rank.state("import pyverbs")
        loaded = verbs.load()
        rank.state("compiling the loops")
        compiled.compile_all()
        self.begin(rank, loaded, Tree())
        cpus = sorted(os.sched_getaffinity(0))
        if len(cpus) > 1:  # bulk flows and receiving beside run elsewhere than the timed loop
            self.others = cpus[1:]
            os.sched_setaffinity(0, cpus[:1])

    def begin(self, rank: Rank, loaded: verbs.Verbs, tree: Tree) -> None:
        """Take the rank's place; ``tree`` is where ports and counters are read."""
        self.rank, self.verbs, self.tree = rank, loaded, tree
        self.number = int(rank.config.get("side", rank.rank))
        # spinning side by side on one CPU each would wait for the other's turn to end
        self.spins = _CROWDED_SPINS if rank.crowded else 0
        self.endpoint: Endpoint | None = None
        self.loops: Any = None
        self._load: threading.Thread | None = None
        self._load_error: list[Exception] = []
        self._stop = np.zeros(1, np.int64)
        self._flooded = np.zeros(4, np.int64)
        self.others = []

    def prepare(self, setups: list[dict[str, Any]]) -> dict[str, Any]:
        """Open the device, make queue pairs and memory (one set-up per side); return what the other must know."""
        self.close()
        wanted = Setup.of(setups[self.number])
        self.rank.state(f"making {wanted.qps} queue pairs of {wanted.transport} for {wanted.verb}")
        self.endpoint = Endpoint(wanted, self.verbs, self.tree).__enter__()
        return self.endpoint.info.to_dict()

    def connect(self, peers: list[Any]) -> dict[str, Any]:
        """Take what the other side said (one entry per side); return the facts of this one."""
        endpoint = self._ready()
        self.rank.state("connecting queue pairs")
        endpoint.connect(Info.of(peers[1 - self.number]))
        self.loops = timed.make(endpoint, self.number, self.spins)
        self._set_values()
        self.loops.arm()
        return self._facts()

    def _set_values(self) -> None:
        """Write where atomics work: the first message's turn, which each operation raises by one."""
        endpoint = self._ready()
        if endpoint.setup.verb.startswith("atomic"):
            endpoint.memory.put(endpoint.source_at(0), np.array([self.loops.turn], np.uint64).view(np.uint8))

    def exchange(self, count: int, verify: bool) -> list[int]:
        """Do ``count`` operations of latency; nanoseconds of each on side 0, [] on side 1."""
        endpoint = self._ready()
        self.rank.state(f"{'verified ' if verify else ''}{endpoint.setup.verb} of {endpoint.setup.nbytes} bytes")
        act = (
            self.loops.one_sided
            if endpoint.setup.verb in ("read", "atomic_fadd", "atomic_cas")
            else self.loops.exchange
        )
        with self.rank.quiet():
            durations: list[int] = act(count, verify)
        return durations

    def stream(self, total: int, marks: list[int], both: bool) -> dict[str, Any]:
        """Send, or receive where the verb needs it, ``total`` messages; return stamps (ns) and what was received."""
        endpoint = self._ready()
        self.rank.state(f"{total} messages of {endpoint.setup.nbytes} bytes by {endpoint.setup.verb}")
        sends, takes = both or self.number == 0, endpoint.setup.two_sided and (both or self.number == 1)
        received: list[Any] = []
        beside = threading.Thread(target=self._drain_beside, args=(received, total)) if sends and takes else None
        with self.rank.quiet():
            if beside:
                self.loops.share_cpu(not self.others)
                beside.start()
            stamps = self.loops.stream(total, marks) if sends else []
            if takes and not beside:
                _keep(received, self.loops.drain, total)
        if beside:
            beside.join()
            self.loops.share_cpu(False)
        if received and isinstance(received[0], Exception):
            raise received[0]
        return {"stamps": stamps, "received": received[0] if received else None}

    def _drain_beside(self, received: list[Any], total: int) -> None:
        self._go_aside()
        _keep(received, self.loops.drain, total)

    def _go_aside(self) -> None:
        """Move the calling thread to the CPUs that the timed loop leaves to it."""
        if self.others:
            os.sched_setaffinity(0, self.others)

    def post(self, count: int, batch: int) -> list[int]:
        """Time the posting alone; nanoseconds of each batch on side 0."""
        self.rank.state(f"posting batches of {batch}")
        durations: list[int] = self.loops.post_batches(count, batch) if self.number == 0 else []
        return durations

    def fill(self, turn: int) -> None:
        """Write message ``turn`` of this side to where queue pairs send from, and zeros to where they receive."""
        endpoint = self._ready()
        if endpoint.setup.verb.startswith("atomic"):
            return
        data = np.empty(endpoint.setup.nbytes, np.uint8)
        loops.fill(data, np.uint64(turn), np.uint64(timed.MINE[self.number]))
        empty = np.zeros_like(data)
        for qp in range(endpoint.setup.qps):
            endpoint.memory.put(endpoint.source_at(qp), data)
            endpoint.memory.put(endpoint.target_at(qp), empty)

    def check(self, turn: int, both: bool) -> int:
        """Compare every byte that must have arrived with the other side's message ``turn``; return how many were."""
        endpoint = self._ready()
        verb = endpoint.setup.verb
        arrives = both or (self.number == 0) == (verb == "read")
        if verb.startswith("atomic") or not arrives:
            return 0
        if endpoint.setup.two_sided:
            self.loops.flush()
        for qp in range(endpoint.setup.qps):
            data = endpoint.memory.get(endpoint.target_at(qp), endpoint.setup.nbytes)
            wrong = int(loops.first_wrong(data, np.uint64(turn), np.uint64(timed.THEIRS[self.number])))
            if wrong >= 0:
                raise WrongData(f"{verb} of {data.size} bytes on queue pair {qp}: byte {wrong} is not the one sent")
        return endpoint.setup.qps * endpoint.setup.nbytes

    def word(self) -> int:
        """Return the number at which the other side's atomics work."""
        endpoint = self._ready()
        return int(endpoint.memory.get(endpoint.source_at(0), 8).view(np.uint64)[0])

    def load(self, on: bool) -> dict[str, Any]:
        """Start the bulk flows of this side, and see them flow; or end them and return the messages."""
        if on:
            self._stop[0] = 0
            self._flooded[:] = 0
            self._load_error.clear()
            self.loops.share_cpu(not self.others)
            self._load = threading.Thread(target=self._flood, daemon=True)
            self._load.start()
            while self._load.is_alive() and not self._flooded[0]:
                time.sleep(50e-6)
            return {}
        self._stop[0] = 1
        if self._load:
            self._load.join()
            self._load = None
            self.loops.share_cpu(False)
        if self._load_error:
            raise self._load_error[0]
        return {"messages": int(self._flooded[0])}

    def _flood(self) -> None:
        try:
            self._go_aside()
            self.loops.flood(int(self._stop.ctypes.data), self._flooded)
        except Exception as error:  # noqa: BLE001 - raised by load(False) in the thread that answers
            self._load_error.append(error)

    def counters(self) -> dict[str, int]:
        """Return the port's and interface's counters."""
        return counters.read(self.tree, self._ready().port)

    def settings(self) -> dict[str, Any]:
        """Return the interface's settings that change latency: offloads, pause, coalescing, MTU."""
        return counters.settings(self.tree, self._ready().port)

    def _ready(self) -> Endpoint:
        if self.endpoint is None:
            raise UserError("nothing is prepared: a set-up comes first")
        return self.endpoint

    def _facts(self) -> dict[str, Any]:
        endpoint = self._ready()
        memory = endpoint.memory
        nodes: dict[str, int] | None = None
        if memory.data is not None:
            from iobench import pageplaces

            found = pageplaces.nodes(memory.data)
            nodes = {str(node): count for node, count in sorted(found.items())} if found is not None else None
        return {
            "port": endpoint.port.name,
            "ethernet": endpoint.port.ethernet,
            "software": endpoint.port.software,
            "gid": str(endpoint.gid) if endpoint.gid else "",
            "mtu_nbytes": endpoint.mtu_nbytes,
            "path": endpoint.path,
            "inline": endpoint.inline,
            "memory": memory.how,
            "pages_on_node": nodes,
            "cpus": sorted(os.sched_getaffinity(0)),
            "cpus_beside": self.others,
            "loop": self.loops.name,
            "seconds_per_empty_poll": self.loops.empty_poll(),
            "pyverbs": _version(self.verbs),
        }

    def close(self) -> None:
        """Give device and memory back."""
        if self._load:
            self._stop[0] = 1
            self._load.join()
            self._load = None
        self.loops = None
        if self.endpoint is not None:
            self.endpoint.__exit__(None, None, None)
            self.endpoint = None


def _keep(where: list[Any], act: Any, *arguments: Any) -> None:
    """Put what ``act`` returns or raises into ``where``: it runs in a thread of its own."""
    try:
        where.append(act(*arguments))
    except Exception as error:  # noqa: BLE001 - raised by the thread that waits for it
        where.append(error)


def _version(loaded: verbs.Verbs) -> str:
    """Return where pyverbs was loaded from and in which of its two forms."""
    return f"{loaded.form} of {loaded.place}"
