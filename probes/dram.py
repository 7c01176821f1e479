"""Memory: stream bandwidth of plain and non-temporal kernels, latency of a pointer chase, walks over KV blocks.

Path: between the memory of a NUMA node (or a cache, where the working set fits) and the cores: ``read``
comes in, ``write`` goes out, ``copy``, ``scale``, ``add`` and ``triad`` do both. Every thread is pinned to
one of the allowed CPUs and the first to touch its own slice; with ``policy`` the kernel spreads the pages over all
memory nodes instead, and where they lie is compared with the weights.

Clock: CLOCK_MONOTONIC inside the compiled loop. All threads meet at a spinning barrier, then read the
clock, run the pass (short ones many times), drain non-temporal stores and read it again; a sample is the
last end less the first start. The chase follows a random single cycle, one node per 64-byte line, each
load waiting for the one before; a sample is many loads, and the number is for one. The walk reads all blocks of a
paged KV cache in the order of a random block table, one block after the other; with ``prefetch`` it asks for lines
that far ahead, into the next block, which no hardware prefetcher can foresee.

Bytes: ``nbytes`` is the working set, all arrays of all threads together, and one pass reads or writes
each byte of it once (STREAM's convention). A plain store makes most CPUs fetch the line first
(write-allocate): that traffic is not in the rate; ``bus_nbytes`` in the evidence counts it.

Not in the number: allocation, first touch, compilation, verification. Running it takes the memory of one
working set (never more than half of what is available) and all allowed CPUs for a few milliseconds at
a time. Every element of every array is verified after the samples, every sum of ``read``, every place
where the chase stopped, and that the chase's cycle visits each node once.

Cross-checked against C kernels of the same form (gcc -O3 -march=native), interleaved on the same pages:
``iobench crosscheck dram``.
"""

import contextlib
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from iobench.errors import Unavailable
from iobench.probe import Axis, Plot, Samples
from iobench.units import KIB, MIB

if TYPE_CHECKING:
    from iobench.hostmem import Buffer, Pages
    from iobench.kernels.streaming import Streaming
    from iobench.kernels.team import Team
    from iobench.mempolicy import Policy
    from iobench.placement import Placement
    from iobench.timing.sampler import Sampler
    from iobench.topology.graph import Topology

_STREAMS = ("copy", "scale", "add", "triad", "read", "write")
_THREADS = tuple(range(1, 1025))
_SIZES = tuple(n << octave for octave in range(11, 33) for n in (2, 3))  # 4 KiB to 12 GiB, two per octave

AXES = {
    "kernel": Axis(
        ("copy", "scale", "add", "triad", "read", "write", "chase", "walk"),
        "copy b=a, scale b=s*a, add c=a+b, triad c=a+s*b, read sums, write fills, chase follows pointers, "
        "walk sums KV blocks by a table",
    ),
    "stores": Axis(("plain", "nt"), "plain or non-temporal (past the caches); read and chase store nothing"),
    "threads": Axis(_THREADS, "threads, each pinned to a CPU; unless given 1, 2, 4, ... all allowed CPUs", minimum=1),
    "pages": Axis(("base", "huge"), "base pages (4 KiB on most CPUs) or huge ones; streams use the first given"),
    "policy": Axis(
        ("interleave", "weighted"),
        "besides first touch: pages in turn over all memory nodes, or by the system's weights (Linux 6.9)",
    ),
    "block": Axis((2 * KIB, 32 * KIB), "bytes of a block of the walk, in multiples of 512", "bytes", minimum=512),
    "prefetch": Axis((0, 8, 32), "lines of 64 bytes that the walk asks for ahead of time; 0: none, a block at most"),
    "nbytes": Axis(
        _SIZES,
        "working set of all threads; unless given 4 last-level caches for streams and 4 KiB to there for the chase",
        unit="bytes",
        minimum=4 * KIB,
    ),
}
LAUNCHES = 4  # page placement and the shared cache differ between launches; three caught too little of that
POINT_SECONDS = 0.12
PLOTS = (
    Plot(
        "Memory bandwidth by kernel",
        x="kernel",
        y="bandwidth",
        series=("stores", "threads", "nbytes"),
        log_x=False,
        where={"kernel": _STREAMS},
    ),
    Plot(
        "Walk over KV blocks by prefetch distance",
        x="prefetch",
        y="bandwidth",
        series=("block", "threads"),
        where={"kernel": "walk"},
        log_x=False,
    ),
    Plot(
        "Latency of a load: random pointer chase",
        x="nbytes",
        y="latency",
        series=("pages",),
        where={"kernel": "chase"},
        caches=True,
    ),
)
MODELS = ({"kind": "levels", "where": {"kernel": "chase"}},)

_CACHES_OVER = 4  # working sets reach this many times the last-level cache
_UNKNOWN_CACHE = 32 * MIB
_PRIME = 1_000_003
_LINE, _CHUNK = 64, 512


def points(topology: "Topology", axes: Mapping[str, tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    cpus = sum(node.get("allowed") is not False for node in topology.of("cpu"))
    if not cpus:
        raise Unavailable("needs a CPU that this process may use: the topology names none")
    threads = _chosen(axes, "threads", _doubling(cpus), cpus)
    if not threads:
        raise Unavailable(f"needs {min(axes['threads'])} CPUs: this process may use {cpus}")
    yield from _stream_points(topology, axes, threads)
    if "walk" in axes["kernel"] and "plain" in axes["stores"]:
        yield from _walk_points(topology, axes, threads)
    if "chase" in axes["kernel"]:
        yield from _chase_points(topology, axes)


def _stream_points(
    topology: "Topology", axes: Mapping[str, tuple[Any, ...]], threads: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """The kernels of one thread count follow each other: they use the same pages."""
    sizes = _chosen(axes, "nbytes", [_above(_CACHES_OVER * _last_level(topology)[1])])
    kernels = [kernel for kernel in axes["kernel"] if kernel in _STREAMS]
    for nbytes, count, kernel, stores in itertools.product(sizes, threads, kernels, axes["stores"]):
        if kernel != "read" or stores == "plain":
            yield {"kernel": kernel, "stores": stores, "threads": count, "pages": axes["pages"][0], "nbytes": nbytes}
    if len(_memories(topology)) > 1:
        yield from _spread_points(axes, kernels, max(threads), sizes)


def _spread_points(
    axes: Mapping[str, tuple[Any, ...]], kernels: Sequence[str], threads: int, sizes: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """Reads by as many threads as there may be, of pages that a policy spreads over the memory nodes."""
    for nbytes, policy in itertools.product(sizes, axes["policy"]):
        if "read" in kernels and "plain" in axes["stores"]:
            yield {
                "kernel": "read", "stores": "plain", "threads": threads, "pages": axes["pages"][0], "nbytes": nbytes,
                "policy": policy,
            }  # fmt: skip


def _memories(topology: "Topology") -> list[int]:
    """Return the NUMA nodes with memory that this process may use."""
    nodes = [int(memory.id.partition(":")[2]) for memory in topology.of("mem")]
    numa = {n: topology.node(f"numa:{n}") for n in nodes}
    return [n for n, node in numa.items() if node is not None and node.get("allowed") is not False]


def _walk_points(
    topology: "Topology", axes: Mapping[str, tuple[Any, ...]], threads: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """One thread unless the user says: what prefetching gains is a thread's own affair."""
    sizes = _chosen(axes, "nbytes", [_above(_CACHES_OVER * _last_level(topology)[1])])
    counts = [1] if axes["threads"] == AXES["threads"].values else threads
    for nbytes, count, block, prefetch in itertools.product(sizes, counts, axes["block"], axes["prefetch"]):
        if prefetch * _LINE <= block and block % _CHUNK == 0 and 2 * block * count <= nbytes:
            yield {
                "kernel": "walk", "threads": count, "pages": axes["pages"][0], "nbytes": nbytes, "block": block,
                "prefetch": prefetch,
            }  # fmt: skip


def _chase_points(topology: "Topology", axes: Mapping[str, tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    """One thread loads and nothing is stored: other values of these axes leave the chase out."""
    if "plain" not in axes["stores"] or 1 not in axes["threads"]:
        return
    largest = _above(_CACHES_OVER * _last_level(topology)[0])
    default = [nbytes for nbytes in _SIZES if nbytes <= largest]
    for pages in axes["pages"]:
        # huge pages show the caches' edges; of small ones powers of two tell what the pages change
        sizes = default if pages == axes["pages"][-1] else [nbytes for nbytes in default if nbytes & (nbytes - 1) == 0]
        yield from ({"kernel": "chase", "pages": pages, "nbytes": n} for n in _chosen(axes, "nbytes", sizes))


def _chosen(
    axes: Mapping[str, tuple[Any, ...]], name: str, default: Sequence[int], most: int | None = None
) -> list[int]:
    """Return what the user asked for on the axis, as far as it goes here, else ``default``."""
    values = default if axes[name] == AXES[name].values else axes[name]
    return [value for value in values if most is None or value <= most]


def _last_level(topology: "Topology") -> tuple[int, int]:
    """Return the largest last-level cache and the sum of all in bytes; 32 MiB where unknown."""
    caches = [node for node in topology.of("cache") if node.get("level") and node.get("nbytes")]
    level = max((node.get("level") for node in caches), default=0)
    sizes = [int(node.get("nbytes")) for node in caches if node.get("level") == level] or [_UNKNOWN_CACHE]
    return max(sizes), sum(sizes)


def _doubling(most: int) -> list[int]:
    return sorted({1 << n for n in range(most.bit_length())} | {most})


def _above(nbytes: int) -> int:
    """Return the least power of two on the axis that is not below ``nbytes``, the largest where none is."""
    powers = [size for size in _SIZES if size & (size - 1) == 0]
    return next((size for size in powers if size >= nbytes), powers[-1])


def measure(point: dict[str, Any], sampler: "Sampler") -> Samples:
    return {"chase": _chase, "walk": _walk}.get(point["kernel"], _stream)(point, sampler)


def _stream(point: dict[str, Any], sampler: "Sampler") -> Samples:
    from iobench import hostmem, pageplaces
    from iobench.kernels import streaming
    from iobench.kernels.team import pinned

    kernel, nbytes = point["kernel"], point["nbytes"]
    sampler.shared("compiled", _once(streaming.compile_all))
    policy = _policy(point, sampler.topology) if "policy" in point else None
    area = sampler.shared("area", _areas).get(
        streaming.room(nbytes, point["threads"]), point["pages"], point["threads"], policy
    )
    with pinned(point["threads"]) as team:
        work = streaming.Streaming.over(area.data, kernel, point["stores"] == "nt", nbytes, team)
        work.fill()
        pages = hostmem.inspect(area)
        hostmem.require(area, pages)
        work.settle()
        timed = sampler.collect(lambda count: [work.take(count)], ops=work.repeats)
        work.check()
        places = [pageplaces.nodes(part.target) for part in work.parts]
        spread = _spread(policy, area) if policy else {}
        proof = _placement(sampler, team, pages, places, point["pages"])
        return Samples(
            timed=timed,
            nbytes=nbytes,
            moved=work.moved,
            moved_rule="bytes that the kernel reads and writes; lines that plain stores fetch are not counted",
            quantity="bandwidth",
            mode="pinned threads",
            verified=True,
            path=proof.path,
            proven=proof.proven,
            evidence={**proof.evidence, **_counted(work), **spread},
            legs=proof.legs(work.moved, work.moved),
        )


def _policy(point: Mapping[str, Any], topology: "Topology") -> "Policy":
    from iobench.mempolicy import Policy

    return Policy(tuple(_memories(topology)), point["policy"])


def _spread(policy: "Policy", area: "Buffer") -> dict[str, Any]:
    """Return the weights and where the pages lie; Unavailable where that is not as the policy says."""
    from iobench import mempolicy

    weights = mempolicy.weights(policy.nodes) if policy.mode == mempolicy.WEIGHTED else dict.fromkeys(policy.nodes, 1)
    wrong = mempolicy.astray(policy, mempolicy.placed(area.data), weights)
    if wrong:
        raise Unavailable(wrong)
    return {"policy": str(policy), "weights": {str(node): weight for node, weight in weights.items()}}


def _counted(work: "Streaming") -> dict[str, Any]:
    return {
        "bus_nbytes": work.bus_nbytes,
        "bus_rule": "with write-allocate: every line that a plain store fills is read first",
        "stored_nbytes": work.stored,
        "repeats": work.repeats,
    }


def _chase(point: dict[str, Any], sampler: "Sampler") -> Samples:
    from iobench import hostmem, pageplaces
    from iobench.kernels.chase import LINE
    from iobench.kernels.chasing import Chasing
    from iobench.kernels.team import pinned

    nbytes = point["nbytes"]
    sampler.shared("area", _areas).release()
    seed = sampler.launch * _PRIME + nbytes
    with pinned(1) as team, hostmem.buffer(nbytes, point["pages"]) as area:
        work = Chasing.over(area.data, seed, team)
        pages = hostmem.inspect(area)
        hostmem.require(area, pages)
        work.check()
        loads = work.settle()
        timed = sampler.collect(lambda count: [work.take(loads, count)], ops=loads)
        work.check()
        proof = _placement(sampler, team, pages, [pageplaces.nodes(area.data)], point["pages"])
        return Samples(
            timed=timed,
            nbytes=nbytes,
            moved=LINE,
            moved_rule="one 64-byte line per load",
            quantity="latency",
            mode="dependent loads",
            verified=True,
            path=proof.path,
            proven=proof.proven,
            evidence={**proof.evidence, "nodes_in_cycle": work.order.size, "seed": seed, "loads_per_sample": loads},
            legs=proof.legs(LINE, nbytes),
        )


def _walk(point: dict[str, Any], sampler: "Sampler") -> Samples:
    from iobench import hostmem, pageplaces
    from iobench.kernels.team import pinned
    from iobench.kernels.walking import Walking

    nbytes, seed = point["nbytes"], sampler.launch * _PRIME + point["nbytes"]
    area = sampler.shared("area", _areas).get(nbytes, point["pages"], -point["threads"])
    with pinned(point["threads"]) as team:
        work = Walking.over(area.data, point["block"], point["prefetch"], seed, team)
        pages = hostmem.inspect(area)
        hostmem.require(area, pages)
        work.settle()
        timed = sampler.collect(lambda count: [work.take(count)], ops=work.repeats)
        proof = _placement(sampler, team, pages, [pageplaces.nodes(part) for part in work.parts], point["pages"])
        return Samples(
            timed=timed,
            nbytes=nbytes,
            moved=work.moved,
            moved_rule="each byte of each block once per walk; the table is not counted",
            quantity="bandwidth",
            mode="pinned threads",
            verified=True,
            path=proof.path,
            proven=proof.proven,
            evidence={**proof.evidence, "blocks": work.moved // point["block"], "seed": seed, "repeats": work.repeats},
            legs=proof.legs(work.moved, work.moved),
        )


class _Areas:
    """The buffer of the last stream point, kept for the next one if that asks for the same."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._key: tuple[int, str, int, Policy | None] | None = None
        self._area: Buffer | None = None

    def get(self, nbytes: int, pages: str, threads: int, policy: "Policy | None" = None) -> "Buffer":
        """Return a buffer that only teams of ``threads`` have touched, so that each thread's pages are its own."""
        from iobench import hostmem

        if self._area is None or self._key != (nbytes, pages, threads, policy):
            self.release()
            self._area = self._stack.enter_context(hostmem.buffer(nbytes, pages, policy=policy))
            self._key = (nbytes, pages, threads, policy)
        return self._area

    def release(self) -> None:
        self._area = None
        self._stack.close()


@contextlib.contextmanager
def _areas() -> Iterator[_Areas]:
    with contextlib.ExitStack() as stack:
        yield _Areas(stack)


def _once(action: Any) -> Any:
    @contextlib.contextmanager
    def entered() -> Iterator[None]:
        action()
        yield

    return entered


def _placement(
    sampler: "Sampler", team: "Team", pages: "Pages", places: list[Counter[int] | None], wanted: str
) -> "Placement":
    from iobench.placement import Placement

    return Placement(sampler.topology, team.cpus, team.affinity(), pages, places, wanted)
