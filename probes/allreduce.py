"""All-reduce between ranks of this host: one process per rank, from 8 B to 64 MiB.

Path: each rank's buffer to the other ranks and back, over TCP on the loopback interface (backend gloo).
The ranks meet at a barrier outside the clock; each starts its clock right before ``all_reduce`` and stops it
when the call returns with the result in place. The sample is the slowest rank's time of each iteration.
Where there are CPUs enough, ranks are pinned and gloo's event loop is kept off its rank's CPU (axis placement).
Not in the number: filling the buffer, the barrier, checking the result. The buffers were just filled, so
small ones lie in the caches. Running it keeps one CPU per rank busy and moves bytes on ``lo`` only.
Every rank checks its result element by element before, during and after sampling. Bandwidth is bus bandwidth
(nccl-tests, doc/PERFORMANCE.md): nbytes * 2(n-1)/n over the time, comparable between numbers of ranks.
Cross-checked against a plain torch.distributed loop started by torchrun.
"""

import dataclasses
import importlib.util
import itertools
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iobench.errors import Unavailable, UserError, WrongData
from iobench.needs import missing
from iobench.probe import Axis, Plot, Samples
from iobench.record import Leg

if TYPE_CHECKING:
    from iobench.ranks import RankGroup
    from iobench.ranks.child import Rank
    from iobench.timing.sampler import Sampler, Timed
    from iobench.topology.graph import Topology

AXES = {
    "backend": Axis(("gloo",), "who carries the bytes: gloo over TCP on the loopback interface"),
    "op": Axis(("all_reduce",), "the collective; the sum of float32"),
    "ranks": Axis((2, 4, 8), "processes; unless you choose, only as many as there are CPUs (at least 2)", minimum=2),
    "placement": Axis(
        ("apart",),
        "apart: gloo's event loop on another CPU than its rank's other threads; free: as the scheduler likes",
        choices=("apart", "free"),
    ),
    "nbytes": Axis(tuple(1 << n for n in range(3, 27)), "size of each rank's buffer", unit="bytes", minimum=4),
}
LAUNCHES = 3
POINT_SECONDS = 0.25
PLOTS = (
    Plot("All-reduce: time", x="nbytes", y="latency", series=("backend", "ranks", "placement")),
    Plot("All-reduce: bus bandwidth", x="nbytes", y="bandwidth", series=("backend", "ranks", "placement")),
)
MODELS = ({"kind": "hockney", "where": {}},)

TARGET = f"{__file__}:Gloo"
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
_START_SECONDS = 90.0  # torch alone takes 2 s of CPU time per rank, and many ranks may share few CPUs
_DEADLINE_SECONDS = 30.0
_SLOWEST_BYTES_PER_S = 20e6  # below this a rank counts as hung
_INNER_AXES = ("backend", "op", "placement", "nbytes")
_ITEM_NBYTES = 4
_BUFFERS = 2
_EVENT_LOOP_NAME = "gloo_tcp_loop"
_PERIOD = 1021  # prime: no chunk of a power of two can take another's place unseen
_MOST_RANKS = 1024  # sums stay below 2**24, where float32 holds every integer
_SMALL_NBYTES = 64 << 10
_SMALL_MIN_SAMPLES = 50  # small messages are bimodal (a late wake-up costs ten times the rest)
_LARGE_NBYTES = 16 << 20
_LARGE_MIN_SAMPLES = 3  # in each launch; one takes a tenth of a second


def points(topology: "Topology", axes: Mapping[str, tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    cpus = sum(1 for cpu in topology.of("cpu") if cpu.get("allowed", True))
    chosen = axes["ranks"] != AXES["ranks"].values
    for ranks in axes["ranks"]:
        if ranks > _MOST_RANKS:
            raise UserError(f"-a ranks={ranks}: at most {_MOST_RANKS} ranks keep the sums exact; choose fewer")
        if not chosen and ranks > max(cpus, 2):
            continue
        for backend, op, placement, nbytes in itertools.product(*(axes[name] for name in _INNER_AXES)):
            if nbytes % _ITEM_NBYTES:
                raise UserError(f"-a nbytes={nbytes} is no whole number of float32: choose a multiple of 4")
            yield {"backend": backend, "op": op, "ranks": ranks, "placement": placement, "nbytes": nbytes}


def measure(point: dict[str, Any], sampler: "Sampler") -> Samples:
    from iobench import ranks

    if importlib.util.find_spec("torch") is None:
        raise Unavailable(missing("torch"))
    size, nbytes = point["ranks"], point["nbytes"]
    group = sampler.shared(
        ("ranks", point["backend"], size, point["placement"]),
        lambda: ranks.group(
            TARGET,
            size,
            environment=ENVIRONMENT,
            start_seconds=_START_SECONDS,
            **_placement(point["placement"], ranks.cpu_shares(size)),
        ),
    )
    deadline = _DEADLINE_SECONDS + _BUFFERS * nbytes / _SLOWEST_BYTES_PER_S
    group.call("prepare", deadline, nbytes=nbytes)
    before = _received(group)
    timed = _patient(sampler, nbytes).collect(lambda count: group.durations("time", deadline, count=count))
    after = _received(group)
    return _samples(point, timed, group, _proof(nbytes, size, timed, before, after))


def _placement(placement: str, shares: list[list[int]] | None) -> dict[str, Any]:
    """Return where the ranks run: gloo's event loop never on a CPU of its rank's other threads.

    The loop polls a connection's lock while another thread of the rank holds it to send (try_to_lock in
    gloo/transport/tcp/pair.cc). On one CPU it keeps that thread from running until the scheduler's next tick:
    3 to 4 ms, in half of all operations. With one CPU per rank the loop goes to the next rank's CPU.
    """
    if placement == "free" or shares is None:
        return {}
    loops = [share[-1] for share in shares] if len(shares[0]) > 1 else [share[0] for share in shares[1:] + shares[:1]]
    return {"pins": [share[:-1] or share for share in shares], "config": {"event_loop_cpu": loops}}


def _patient(sampler: "Sampler", nbytes: int) -> "Sampler":
    """Return the sampler with a least number of samples that suits the size."""
    least = sampler.min_samples
    if nbytes <= _SMALL_NBYTES:
        least = min(max(least, _SMALL_MIN_SAMPLES), sampler.max_samples)
    elif nbytes >= _LARGE_NBYTES:
        least = min(least, _LARGE_MIN_SAMPLES)
    return dataclasses.replace(sampler, min_samples=least)


def _received(group: "RankGroup") -> dict[tuple[str, str], tuple[int, bool]]:
    """Return the bytes each connection between two ranks has carried, and whether it is loopback."""
    from iobench.ranks import sockets

    connections = sockets.between(group.call("sockets"), without_port=group.port)
    return {(c.sender_end, c.receiver_end): (c.received, c.loopback) for c in connections}


def _proof(
    nbytes: int,
    size: int,
    timed: "Timed",
    before: Mapping[tuple[str, str], tuple[int, bool]],
    after: Mapping[tuple[str, str], tuple[int, bool]],
) -> dict[str, Any]:
    """Compare what the loopback connections between the ranks carried with the least any algorithm needs."""
    iterations = len(timed.seconds[0]) + len(timed.warmup[0])
    carried = [count - before.get(ends, (0, True))[0] for ends, (count, loopback) in after.items() if loopback]
    return {
        "loopback_connections": len(carried),
        "other_connections": len(after) - len(carried),
        "bytes_received": sum(carried),
        # A reduction to one rank and a broadcast back, whatever the order: n - 1 buffers each way.
        "bytes_expected": 2 * (size - 1) * nbytes * iterations,
    }


def _samples(point: dict[str, Any], timed: "Timed", group: "RankGroup", proof: dict[str, Any]) -> Samples:
    size, nbytes = point["ranks"], point["nbytes"]
    facts = group.call("facts")
    about = {"shape": "one process per rank", "dtype": "float32", "torch": facts[0]["torch"]}
    about |= {"rank_cpus": group.cpus, "event_loop_cpus": [fact["event_loop_cpus"] for fact in facts]}
    return Samples(
        timed=timed,
        nbytes=nbytes,
        moved=round(nbytes * 2 * (size - 1) / size),
        moved_rule="bus bytes: nbytes * 2(n-1)/n, what each of n ranks must send",
        quantity="bandwidth",
        mode="blocking",
        verified=True,
        path="gloo over TCP on the loopback interface",
        proven=proof["bytes_received"] >= proof["bytes_expected"] and not proof["other_connections"],
        evidence={**about, **proof, **_skew(timed, group.call("last_entries"))},
        legs=[Leg("net:lo", "mem:0", moved=2 * (size - 1) * nbytes)],
        notes=_placement_notes(group, facts),
    )


def _placement_notes(group: "RankGroup", facts: list[dict[str, Any]]) -> list[str]:
    """Return what a reader must know of where the ranks ran."""
    loops = [fact["event_loop_cpus"] for fact in facts]
    if group.pins is None:
        return [f"{group.size} ranks on {len(group.cpus[0])} CPUs, not pinned"]
    if [] in loops:
        return ["gloo's event loop was not found by its thread's name: ranks not pinned, expect stalls of 3 to 4 ms"]
    if len(group.pins[0]) == 1 and loops[0] == group.cpus[1]:
        return ["one CPU per rank: gloo's event loop runs on the next rank's CPU"]
    return []


def _skew(timed: "Timed", entries: list[list[int]]) -> dict[str, Any]:
    """Return each rank's median, the rank most often slowest, and how far apart the ranks started (ns)."""
    from collections import Counter
    from statistics import median

    slowest = Counter(max(range(len(row)), key=row.__getitem__) for row in zip(*timed.seconds, strict=True))
    rank, times = slowest.most_common(1)[0]
    apart = [max(starts) - min(starts) for starts in zip(*entries, strict=True)]
    return {
        "rank_median_seconds": [median(row) for row in timed.seconds],
        "entry_skew_seconds": {"median": median(apart) * 1e-9, "max": max(apart) * 1e-9},
        "slowest_rank": rank,
        "slowest_share": times / slowest.total(),
    }


class Pattern:
    """What each rank contributes and what the sum must be: whole numbers that float32 holds exactly.

    Element i of rank r is (i + 1)(r + 1)^2 mod 1021, plus 1: the squares make sets of wrong ranks differ,
    the prime keeps chunks apart whose length is a power of two.
    """

    def __init__(self, torch: Any, rank: int, size: int) -> None:
        positions = torch.arange(1, _PERIOD + 1, dtype=torch.int64)
        tiles = [(positions * (number + 1) ** 2 % _PERIOD + 1).to(torch.float32) for number in range(size)]
        self.mine, self.sum = tiles[rank], sum(tiles[1:], start=tiles[0])

    def fill(self, buffer: Any) -> None:
        """Write this rank's share."""
        rows, rest = _rows(buffer)
        if len(rows):
            rows.copy_(self.mine.expand_as(rows))
        rest.copy_(self.mine[: len(rest)])

    def check(self, buffer: Any) -> None:
        """Compare every element with the sum; WrongData names the first that differs."""
        rows, rest = _rows(buffer)
        if not (rows.equal(self.sum.expand_as(rows)) and rest.equal(self.sum[: len(rest)])):
            raise WrongData(self._difference(buffer))

    def _difference(self, buffer: Any) -> str:
        right = self.sum.repeat(len(buffer) // _PERIOD + 1)[: len(buffer)]
        wrong = (buffer != right).nonzero().flatten()
        first = int(wrong[0])
        return (
            f"{len(wrong)} of {len(buffer)} elements differ from the sum,"
            f" the first is element {first}: {float(buffer[first])}, not {float(right[first])}"
        )


def _move_event_loop(cpu: int) -> list[int]:
    """Pin this process's gloo event loop to ``cpu``; unpin everything where it can't be found. Return its threads."""
    threads = {int(task.name): (task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()}
    loops = [thread for thread, name in threads.items() if name == _EVENT_LOOP_NAME]
    for thread in loops or threads:
        os.sched_setaffinity(thread, {cpu} if loops else range(os.cpu_count() or 1))
    return loops


def _rows(buffer: Any) -> tuple[Any, Any]:
    """Return views of the buffer: as many whole periods as it holds, one per row, and the rest."""
    whole = len(buffer) // _PERIOD * _PERIOD
    return buffer[:whole].view(-1, _PERIOD), buffer[whole:]


class Gloo:
    """One rank: owns the process group and a pool of buffers; lives in a process of its own."""

    def __init__(self, rank: "Rank") -> None:
        rank.state("import torch")
        import torch
        import torch.distributed as dist

        if not dist.is_available() or not dist.is_gloo_available():
            raise Unavailable("this torch was built without gloo: install torch from PyPI")
        torch.set_num_threads(1)
        rank.state(f"init_process_group of {rank.size} ranks")
        dist.init_process_group("gloo")
        self.event_loops = _move_event_loop(rank.config["event_loop_cpu"][rank.rank]) if rank.config else []
        self.rank, self.torch, self.all_reduce = rank, torch, dist.all_reduce
        self.pattern = Pattern(torch, rank.rank, rank.size)
        self.buffers: list[Any] = []
        self.entries: list[int] = []

    def prepare(self, nbytes: int) -> None:
        """Make the pool of buffers of this size, reduce each once (connections, pages) and check it."""
        self.rank.state(f"allocating {_BUFFERS} buffers of {nbytes} bytes")
        self.buffers = [self.torch.empty(nbytes // _ITEM_NBYTES, dtype=self.torch.float32) for _ in range(_BUFFERS)]
        self.rank.state(f"all_reduce of {nbytes} bytes, before sampling")
        for buffer in self.buffers:
            self.pattern.fill(buffer)
            self.all_reduce(buffer)
        self.check()

    def time(self, count: int) -> list[int]:
        """Return ``count`` durations in ns. Each buffer is filled anew, so each result can be checked."""
        self.rank.state(f"all_reduce of {self.nbytes} bytes")
        now, barrier, fill, all_reduce = time.perf_counter_ns, self.rank.barrier, self.pattern.fill, self.all_reduce
        buffers, durations, entries = self.buffers, [], []
        with self.rank.quiet():
            for number in range(count):
                buffer = buffers[number % _BUFFERS]
                fill(buffer)
                barrier()
                start = now()
                all_reduce(buffer)
                durations.append(now() - start)
                entries.append(start)
        self.entries = entries
        self.check()
        return durations

    def check(self) -> None:
        """Compare the results that lie in the buffers with the sum, every element of them."""
        self.rank.state(f"checking all_reduce of {self.nbytes} bytes")
        for buffer in self.buffers:
            self.pattern.check(buffer)

    def sockets(self) -> list[dict[str, Any]]:
        """Return this rank's TCP sockets with the bytes received so far."""
        from iobench.ranks import sockets

        return sockets.own()

    def facts(self) -> dict[str, Any]:
        """Return the library's version and where gloo's event loop runs, read back; [] where not placed."""
        cpus = [sorted(os.sched_getaffinity(thread)) for thread in self.event_loops]
        return {"torch": self.torch.__version__, "event_loop_cpus": cpus[0] if cpus else []}

    def last_entries(self) -> list[int]:
        """Return when this rank entered each operation of the last block (ns of the host's clock)."""
        return self.entries

    @property
    def nbytes(self) -> int:
        return int(self.buffers[0].numel()) * _ITEM_NBYTES
