"""GPU memory: bandwidth of read, write, copy, triad, memcpy and memset, latency by pointer chase.

Path: between a GPU's memory (or its L2 cache, where the working set fits) and its SMs, through CUDA C kernels
built by NVRTC; ``memcpy`` and ``memset`` are the runtime's own calls. ``chase`` follows a random single cycle with
one thread, one node per 128-byte line, each load waiting for the one before.

Clock: streams by CUDA events around launches that a gate holds back until all are enqueued (mode events), or around
the replays of a CUDA graph (mode graph); launch cost stays outside. Small working sets are walked many times in one
launch. The chase reads the SM's cycle counter and the GPU's nanosecond timer inside the kernel, before the first and
after the last load: both stand in the evidence, so their quotient is the SM clock of that very walk.

Bytes: ``nbytes`` is the working set, all arrays together; one pass reads or writes each byte of it once, so a copy
counts what it reads and what it writes. With ``buffers=one`` every pass uses the same buffer and the L2 cache serves
what fits; with ``rotating`` passes go round slots that cover more than 4 times the L2. The limit counts only the
bytes that the L2 cannot have served. Loads of the streams skip L1. Where the grid is not given (shape=auto), the
fastest of a few is searched for before the clock starts; the evidence names it.

Latency levels: up to the L1's size a chase with ``load=ca`` stays in L1; above it, up to about half of the L2, in the
near part of the L2 (the SM's own partition keeps a copy); up to the whole L2 in the far part; then in memory. The
model of the run holds one latency for each; a GPU whose L2 has no such halves shows the same twice. The histogram
of single loads in the evidence shows such levels where a mean hides them.

Not in the number: allocation, filling, verification. Running it takes up to ``nbytes`` of the GPU's memory. Every
element that a kernel writes is verified, every sum of ``read``, every place where the chase stopped.

Cross-checked against the device's own peak (2 * memory clock * bus width / 8) and nvbandwidth's local copy.
"""

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from iobench.errors import Unavailable
from iobench.probe import Axis, Plot, Samples
from iobench.record import Leg
from iobench.units import GIB, KIB, MIB, MS

if TYPE_CHECKING:
    from iobench.gpu import Buffer, Device, Watch
    from iobench.kernels.gpu.pointers import Chase
    from iobench.kernels.gpu.streams import Streams
    from iobench.timing.sampler import Sampler, Timed
    from iobench.topology.graph import Topology

_CACHED_SIZES = (8 * MIB, 32 * MIB, 64 * MIB, 128 * MIB)
_STREAM_SIZES = (256 * MIB, 2 * GIB, 16 * GIB)
_CHASE_SIZES = (
    16 * KIB, 64 * KIB, 128 * KIB, 192 * KIB, 512 * KIB, 2 * MIB, 8 * MIB, 16 * MIB, 24 * MIB, 40 * MIB,
    48 * MIB, 64 * MIB, 128 * MIB, 512 * MIB, 4 * GIB, 32 * GIB,
)  # fmt: skip
_MOST_SIZES = tuple(n * GIB for n in (3, 6, 12, 24, 48, 96, 128, 160))  # "most of the card" is one of these
_SIZES = tuple(sorted({*_CACHED_SIZES, *_STREAM_SIZES, *_CHASE_SIZES, *_MOST_SIZES}))

AXES = {
    "kernel": Axis(
        ("read", "write", "copy", "triad", "memcpy", "memset", "chase"),
        "read sums, write fills, copy b=a, triad a=b+s*c; memcpy and memset of the runtime; chase follows pointers",
    ),
    "gpu": Axis(tuple(range(64)), "number of the GPU in the topology; unless given, all"),
    "buffers": Axis(
        ("rotating", "one"), "rotating: passes over more than 4 times the L2; one: the same working set again and again"
    ),
    "load": Axis(("ca",), "chase: ca through L1 and L2, cg past L1", choices=("ca", "cg")),
    "shape": Axis(("auto",), "threads x unroll x blocks per SM, as in 512x4x4; auto: the fastest of a few", free=True),
    "mode": Axis(("events",), "how streams are timed", choices=("events", "graph")),
    "nbytes": Axis(
        _SIZES,
        "working set; unless given from L2-sized sets to most of the GPU's memory",
        unit="bytes",
        minimum=4 * KIB,
    ),
}
LAUNCHES = 3
POINT_SECONDS = 0.1
PLOTS = (
    Plot("GPU memory: bandwidth", x="nbytes", y="bandwidth", series=("kernel", "gpu"), where={"buffers": "rotating"}),
    Plot(
        "GPU memory and L2: the same working set again and again", x="nbytes", y="bandwidth", series=("kernel", "gpu"),
        where={"buffers": "one"},
    ),
    Plot(
        "Latency of a load: random pointer chase", x="nbytes", y="latency", series=("gpu", "load"),
        where={"kernel": "chase"},
    ),
)  # fmt: skip

MODELS = ({"kind": "levels", "where": {"kernel": "chase"}},)

_CALLS = ("memcpy", "memset")
_MOST_FRACTION = 0.85  # of the GPU's memory: the rest is the context's and other processes'
_PRIME = 1_000_003
_TRIALS = 3
_GRAPH_OPS = 4
_LARGE_NBYTES, _LARGE_SAMPLES = 64 * GIB, 3  # a pass takes 20 ms: so many in each launch


def points(topology: "Topology", axes: Mapping[str, tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    found = {int(node.id.split(":")[1]): node for node in topology.of("gpu") if node.get("vendor") == "NVIDIA"}
    if not found:
        raise Unavailable("needs an NVIDIA GPU: the topology shows none")
    gpus = [number for number in axes["gpu"] if number in found]
    if not gpus:
        raise Unavailable(f"needs gpu:{axes['gpu'][0]}: the topology has {', '.join(f'gpu:{n}' for n in found)}")
    for gpu in gpus:
        room = int((found[gpu].get("memory_bytes") or 16 * GIB) * _MOST_FRACTION)
        yield from _stream_points(gpu, room, axes)
        yield from _chase_points(gpu, room, axes)


def _stream_points(gpu: int, room: int, axes: Mapping[str, tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    """Sizes are the outer axis: neighbouring points use the same allocation."""
    kernels = [kernel for kernel in axes["kernel"] if kernel != "chase"]
    for buffers, nbytes in itertools.product(axes["buffers"], axes["nbytes"]):
        if not _chosen(axes, "nbytes", nbytes, _CACHED_SIZES if buffers == "one" else _large(room)):
            continue
        for kernel, shape, mode in itertools.product(kernels, axes["shape"], axes["mode"]):
            # calls have a launch each: on cached working sets that is what they would measure
            if (kernel in _CALLS and (shape != axes["shape"][0] or buffers == "one")) or (
                buffers == "one" and kernel == "triad" and axes["kernel"] == AXES["kernel"].values
            ):
                continue
            point = {"kernel": kernel, "gpu": gpu, "buffers": buffers, "mode": mode, "nbytes": nbytes}
            yield point if kernel in _CALLS else {**point, "shape": shape}


def _chase_points(gpu: int, room: int, axes: Mapping[str, tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    if "chase" not in axes["kernel"]:
        return
    sizes = (*_CHASE_SIZES, _largest(room))
    for load, nbytes in itertools.product(axes["load"], axes["nbytes"]):
        if _chosen(axes, "nbytes", nbytes, [size for size in sizes if size <= room]):
            yield {"kernel": "chase", "gpu": gpu, "load": load, "nbytes": nbytes}


def _chosen(axes: Mapping[str, tuple[Any, ...]], name: str, value: Any, default: Any) -> bool:
    """Whether the user asked for the value, or nothing and it is one of the defaults."""
    return value in default if axes[name] == AXES[name].values else True


def _large(room: int) -> list[int]:
    return [size for size in (*_STREAM_SIZES, _largest(room)) if size <= room]


def _largest(room: int) -> int:
    return max((size for size in _MOST_SIZES if size <= room), default=_MOST_SIZES[0])


def measure(point: dict[str, Any], sampler: "Sampler") -> Samples:
    from iobench import gpu

    device = gpu.at(f"gpu:{point['gpu']}")
    with gpu.using(device):
        stream = sampler.shared(("stream", device.index), lambda: gpu.stream(device))
        area = sampler.shared(("area", device.index), lambda: _areas(device))
        with stream:
            return (_chase if point["kernel"] == "chase" else _stream)(point, sampler, device, stream, area)


def setup_seconds(points: list[dict[str, Any]]) -> float:
    """Return roughly what one launch takes beside measuring: its start, then filling and verifying (on an H200)."""
    return 2.0 + 0.03 * len(points)


def _stream(point: dict[str, Any], sampler: "Sampler", device: "Device", stream: Any, area: "_Area") -> Samples:
    from iobench import gpu
    from iobench.kernels.gpu.streams import Layout, Shape, Streams
    from iobench.timing import cuda

    layout = Layout.of(point["kernel"], point["nbytes"], device.l2_nbytes, point["buffers"] == "rotating")
    work = Streams(point["kernel"], area.get(layout.room).ptr, layout, device, stream)
    work.prepare()
    shape = point.get("shape", "auto")
    if point["kernel"] not in _CALLS:
        work.use(work.search(_trial(stream)) if shape == "auto" else Shape.parse(shape))
    work.begin()
    if layout.moved >= _LARGE_NBYTES:
        sampler = dataclasses.replace(sampler, min_samples=min(sampler.min_samples, _LARGE_SAMPLES))
    with gpu.watch([device]) as seen:
        if point["mode"] == "graph":
            timed = cuda.graph(sampler, work.enqueue, stream, ops=max(layout.slots, _GRAPH_OPS))
        else:
            timed = cuda.events(sampler, work.enqueue, stream)
    work.check()
    timed.ops *= work.passes
    return _stream_samples(point, work, timed, seen)


def _trial(stream: Any) -> Callable[[Callable[[int], None]], float]:
    """Return a function that times one launch of the search after another, warm, in seconds."""
    import cupy

    def seconds_of(enqueue: Callable[[int], None]) -> float:
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        taken = []
        for turn in range(_TRIALS + 1):
            start.record(stream)
            enqueue(turn)
            end.record(stream)
            end.synchronize()
            taken.append(float(cupy.cuda.get_elapsed_time(start, end)) * MS)
        return min(taken[1:])

    return seconds_of


def _stream_samples(point: dict[str, Any], work: "Streams", timed: "Timed", seen: "Watch") -> Samples:
    layout, device = work.layout, work.device
    crossed = layout.from_memory(device.l2_nbytes)
    shape = {} if work.kernel in _CALLS else {"shape": str(work.shape), "searched": point["shape"] == "auto"}
    return Samples(
        timed=timed,
        nbytes=point["nbytes"],
        moved=layout.moved,
        moved_rule="bytes of all arrays, each read or written once per pass",
        quantity="bandwidth",
        mode=point["mode"],
        verified=True,
        path=f"{device.name}'s memory through its L2 to its SMs" if crossed else f"{device.name}'s L2 to its SMs",
        proven=True,
        evidence={
            "arrays": layout.arrays, "slots": layout.slots, "passes_per_launch": work.passes,
            "memory_nbytes_at_least": crossed, **shape, **_facts(device), "watch": seen.evidence(),
        },
        legs=_legs(device, crossed),
        suspect=seen.suspect,
    )  # fmt: skip


def _facts(device: "Device") -> dict[str, Any]:
    """Return the device's own readings that the peak and the levels rest on."""
    names = ("name", "mig", "sm_count", "l2_nbytes", "bus_width_bits", "memory_hz", "peak_bytes_per_s")
    return {name: getattr(device, name) for name in names}


def _legs(device: "Device", moved: int) -> list[Leg]:
    """Return the way between memory and GPU; the device's own peak counts where the graph's is higher (a MIG slice)."""
    if not moved or device.vram is None or device.node is None:
        return []
    return [Leg(device.vram, device.node, moved=moved, bytes_per_s=device.peak_bytes_per_s)]


def _chase(point: dict[str, Any], sampler: "Sampler", device: "Device", stream: Any, area: "_Area") -> Samples:
    from iobench import gpu
    from iobench.kernels.gpu.pointers import Chase

    seed = sampler.launch * _PRIME + point["nbytes"]
    work = Chase(area.get(point["nbytes"]).ptr, point["nbytes"], point["load"], seed)
    work.settle()
    singles = work.singles()
    with gpu.watch([device]) as seen:
        timed = sampler.collect(lambda count: [work.take(count)], ops=work.loads)
    return _chase_samples(point, work, timed, device, {"seed": seed, "singles": singles}, seen)


def _chase_samples(
    point: dict[str, Any], work: "Chase", timed: "Timed", device: "Device", more: dict[str, Any], seen: "Watch"
) -> Samples:
    from iobench.kernels.gpu.pointers import SECTOR

    sectors = work.nodes * SECTOR
    return Samples(
        timed=timed,
        nbytes=point["nbytes"],
        moved=SECTOR,
        moved_rule="one 32-byte sector per load",
        quantity="latency",
        mode="dependent loads",
        verified=True,
        path=f"one thread of {device.name} through {'L1 and L2' if point['load'] == 'ca' else 'L2'}",
        proven=True,
        evidence={
            "nodes_in_cycle": work.nodes, "loads_per_sample": work.loads, "warm_loads_per_sample": work.warm,
            "cycles": work.cycles, "nanoseconds": work.nanoseconds, "sm": sorted(work.sms),
            "single_load_cycles": more["singles"], "seed": more["seed"], "levels": _levels(device, point["load"]),
            **_facts(device), "watch": seen.evidence(),
        },
        legs=_legs(device, SECTOR if sectors > 2 * device.l2_nbytes else 0),
        suspect=seen.suspect,
    )  # fmt: skip


def _levels(device: "Device", load: str) -> list[list[Any]]:
    """Return [name, least, most] of the working sets that lie well inside each level; 0: no end.

    Near is the half of the L2 on the SM's own side, which keeps copies of what lies in the other half.
    """
    l1, l2 = device.shared_nbytes, device.l2_nbytes
    if not l2 or (load == "ca" and not l1):
        return []
    first = [["L1", 0, l1 * 7 // 10]] if load == "ca" and l1 else []
    return [
        *first,
        ["L2 near", 2 * (l1 or 0), l2 // 2 * 7 // 10],
        ["L2 far", l2 * 6 // 10, l2 * 9 // 10],
        ["memory", 4 * l2, 0],
    ]


class _Area:
    """One buffer on a device that grows with the points of a launch."""

    def __init__(self, device: "Device", stack: contextlib.ExitStack) -> None:
        self._device, self._stack = device, stack
        self._buffer: Buffer | None = None

    def get(self, nbytes: int) -> "Buffer":
        """Return a buffer of ``nbytes`` at least; what the last one held is lost."""
        from iobench import gpu

        if self._buffer is None or self._buffer.nbytes < nbytes:
            self._stack.close()
            self._buffer = None
            self._buffer = self._stack.enter_context(gpu.buffer(nbytes, self._device))
        return self._buffer


@contextlib.contextmanager
def _areas(device: "Device") -> Iterator[_Area]:
    with contextlib.ExitStack() as stack:
        yield _Area(device, stack)
