"""All-reduce between ranks of this host: one process per rank, from 8 B to 64 MiB.

Path: each rank's buffer to the other ranks and back, over TCP on the loopback interface (backend gloo).
The ranks meet at a barrier outside the clock; each starts its clock right before ``all_reduce`` and stops it
when the call returns with the result in place. The sample is the slowest rank's time of each iteration.
Not in the number: filling the buffer, the barrier, checking the result. The buffers were just filled, so
small ones lie in the caches. Running it keeps one CPU per rank busy and moves bytes on ``lo`` only.
Every rank checks its result element by element before, during and after sampling. Bandwidth is bus bandwidth
(nccl-tests, doc/PERFORMANCE.md): nbytes * 2(n-1)/n over the time, comparable between numbers of ranks.
Cross-checked against a plain torch.distributed loop started by torchrun.
"""

import dataclasses
import importlib.util
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from iobench.errors import Unavailable, UserError, WrongData, missing
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
    "nbytes": Axis(tuple(1 << n for n in range(3, 27)), "size of each rank's buffer", unit="bytes", minimum=4),
}
LAUNCHES = 3
POINT_SECONDS = 0.3
PLOTS = (
    Plot("All-reduce: time", x="nbytes", y="latency", series=("backend", "ranks")),
    Plot("All-reduce: bus bandwidth", x="nbytes", y="bandwidth", series=("backend", "ranks")),
)
MODELS = ({"kind": "hockney", "where": {}},)

TARGET = f"{__file__}:Gloo"
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
_ITEM_NBYTES = 4
_BUFFERS = 2
_PERIOD = 1021  # prime: no chunk of a power of two can take another's place unseen
_MOST_RANKS = 1024  # sums stay below 2**24, where float32 holds every integer
_SMALL_NBYTES = 64 << 10
_SMALL_MIN_SAMPLES = 50  # small messages are bimodal (a late wake-up costs ten times the rest)


def points(topology: "Topology", axes: Mapping[str, tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    cpus = sum(1 for cpu in topology.of("cpu") if cpu.get("allowed", True))
    chosen = axes["ranks"] != AXES["ranks"].values
    for ranks in axes["ranks"]:
        if ranks > _MOST_RANKS:
            raise UserError(f"-a ranks={ranks}: at most {_MOST_RANKS} ranks keep the sums exact; choose fewer")
        if not chosen and ranks > max(cpus, 2):
            continue
        for nbytes in axes["nbytes"]:
            if nbytes % _ITEM_NBYTES:
                raise UserError(f"-a nbytes={nbytes} is no whole number of float32: choose a multiple of 4")
            for backend in axes["backend"]:
                for op in axes["op"]:
                    yield {"backend": backend, "op": op, "ranks": ranks, "nbytes": nbytes}


def measure(point: dict[str, Any], sampler: "Sampler") -> Samples:
    from iobench import ranks

    if importlib.util.find_spec("torch") is None:
        raise Unavailable(missing("torch"))
    size, nbytes = point["ranks"], point["nbytes"]
    pins = ranks.one_cpu_each(size)
    group = sampler.shared(
        ("ranks", point["backend"], size),
        lambda: ranks.group(TARGET, size, pins=pins, environment=ENVIRONMENT),
    )
    group.call("prepare", nbytes=nbytes)
    before = _received(group)
    timed = _patient(sampler, nbytes).collect(lambda count: group.durations("time", count=count))
    after = _received(group)
    return _samples(point, timed, group, _proof(nbytes, size, timed, before, after))


def _patient(sampler: "Sampler", nbytes: int) -> "Sampler":
    """Return the sampler with a higher least number of samples for small messages."""
    least = _SMALL_MIN_SAMPLES if nbytes <= _SMALL_NBYTES else sampler.min_samples
    return dataclasses.replace(sampler, min_samples=min(max(least, sampler.min_samples), sampler.max_samples))


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
    notes = list(timed.notes)
    if group.pins is None:
        notes.append(f"{size} ranks share {len(group.cpus[0])} CPUs: not pinned, they take turns")
    about = {"shape": "one process per rank", "dtype": "float32", "rank_cpus": group.cpus}
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
        evidence={**about, **proof, **_skew(timed, group.call("last_entries")), **group.call("facts")[0]},
        legs=[Leg("net:lo", "mem:0", moved=2 * (size - 1) * nbytes)],
        notes=notes,
    )


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
        rows.copy_(self.mine.expand_as(rows))
        rest.copy_(self.mine[: len(rest)])

    def check(self, buffer: Any) -> None:
        """Compare every element with the sum; WrongData names the first that differs."""
        rows, rest = _rows(buffer)
        if not (bool((rows == self.sum).all()) and bool((rest == self.sum[: len(rest)]).all())):
            raise WrongData(self._difference(buffer))

    def _difference(self, buffer: Any) -> str:
        right = self.sum.repeat(len(buffer) // _PERIOD + 1)[: len(buffer)]
        wrong = (buffer != right).nonzero().flatten()
        first = int(wrong[0])
        return (
            f"{len(wrong)} of {len(buffer)} elements differ from the sum,"
            f" the first is element {first}: {float(buffer[first])}, not {float(right[first])}"
        )


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
        """Return the library's version."""
        return {"torch": self.torch.__version__}

    def last_entries(self) -> list[int]:
        """Return when this rank entered each operation of the last block (ns of the host's clock)."""
        return self.entries

    @property
    def nbytes(self) -> int:
        return int(self.buffers[0].numel()) * _ITEM_NBYTES
