"""Host to GPU and back over PCIe: bandwidth by copy engine and by SM kernel, small copies, load latency.

Path: between host memory (on the GPU's own NUMA node where that is known) and the memory of a GPU, through every
PCIe hop between them. ``h2d`` goes to the GPU, ``d2h`` comes from it; with ``traffic=both`` the other direction is
busy all the while and outlasts it, so both directions together give both rates. ``engine=ce`` is cudaMemcpyAsync by
the copy engines, ``sm`` a kernel that reads and writes mapped host memory itself (zero-copy; both directions are one
kernel whose warps alternate). ``gpus=all`` copies to or from all GPUs at once; a sample then is the slowest GPU's. The
chase follows pointers in host memory with one GPU thread, each load waiting for the one before, on all SMs in turn.

Clock: ``events``: CUDA events around back-to-back copies in a stream that is held back until all of them are
enqueued, so that launch cost is outside; ``graph``: the same copies captured once and replayed; ``kernel-loop``: many
messages in one launch of the copy kernel; ``host-call``: the host's clock from the call to the copy's completion (the
only one for pageable memory, whose copies block the host). A sample of the chase is the mean over all SMs of the
time that 256 loads take by the GPU's own clock, read in the kernel.

Bytes: ``nbytes`` is one message. Messages go through slots that together are larger than twice the L2.

Not in the number: allocation, pinning, filling, verification. Running it takes up to 2 GiB of pinned host memory and
of GPU memory. Every byte of every slot that a copy reached is compared after the samples, and every node at which a
chase stopped. The state of each PCIe hop is read 20 times per second meanwhile; the limit is that of the narrowest.

Cross-checked against nvbandwidth, interleaved in one run: ``iobench crosscheck gpu``.
"""

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from iobench.errors import Unavailable
from iobench.probe import Axis, Plot, Samples
from iobench.record import Leg
from iobench.units import GB, GIB, KIB, MIB

if TYPE_CHECKING:
    from iobench.gpu import Buffer, Device, HostBuffer, Watch
    from iobench.gpu.copying import Arena, Copy, Layout, Memory
    from iobench.timing.sampler import Sampler, Timed
    from iobench.topology.graph import Topology

_SIZES = tuple(1 << n for n in range(2, 31))  # 4 B to 1 GiB
_FINE, _COARSE = _SIZES[::2], _SIZES[::4]
_PAGEABLE = (*_COARSE[:-1], 256 * MIB)  # 1 GiB is no faster and takes a sixth of a second
_MOST_GPUS = 64
_ALL = "all"

AXES = {
    "op": Axis(("copy", "chase"), "copy messages, or follow pointers in host memory with one GPU thread"),
    "gpus": Axis(
        (*map(str, range(_MOST_GPUS)), _ALL),
        "a GPU by its number in the topology, or all at once; unless given every GPU, those after the first in brief",
    ),
    "direction": Axis(("h2d", "d2h"), "host to device or device to host"),
    "traffic": Axis(("one", "both"), "this direction alone, or while the opposite one is busy"),
    "engine": Axis(("ce", "sm"), "copy engine, or a kernel of the SMs (zero-copy; pinned memory only)"),
    "memory": Axis(("pinned", "pageable"), "the host's memory: page-locked, or ordinary (host-call only)"),
    "mode": Axis(
        ("events", "graph", "kernel-loop", "host-call"),
        "what is between the clock's reads: gated copies, graph replays, messages in one kernel, or one whole call",
    ),
    "pattern": Axis(("random", "stride"), "order of the chase: lines at random, or one after the other"),
    "nbytes": Axis(_SIZES, "one message, or the chase's footprint; unless given some of each", "bytes", minimum=4),
}
LAUNCHES = 3
POINT_SECONDS = 0.07
_COPY = {"op": "copy"}
PLOTS = (
    Plot(
        "Host-GPU copies: bandwidth",
        x="nbytes",
        y="bandwidth",
        series=("direction", "traffic", "engine", "memory", "mode", "gpus"),
        where=_COPY,
    ),
    Plot(
        "Small host-GPU copies: time of one",
        x="nbytes",
        y="latency",
        series=("direction", "engine", "memory", "mode"),
        where={"op": "copy", "traffic": "one", "gpus": "0"},
    ),
    Plot(
        "Latency of a load from host memory", x="nbytes", y="latency", series=("pattern", "gpus"), where={"op": "chase"}
    ),
)
MODELS = ({"kind": "piecewise", "where": _COPY},)

# What is measured unless the user asks for something else: traffic, engine, memory, mode -> sizes
_PLAN: dict[tuple[str, str, str, str], tuple[int, ...]] = {
    ("one", "ce", "pinned", "events"): _FINE,
    ("both", "ce", "pinned", "events"): (256 * KIB, 4 * MIB, 64 * MIB),
    ("one", "sm", "pinned", "events"): _COARSE,
    ("one", "sm", "pinned", "kernel-loop"): (MIB, 64 * MIB),
    ("both", "sm", "pinned", "kernel-loop"): (64 * MIB,),
    ("one", "ce", "pageable", "host-call"): _PAGEABLE,
    ("one", "ce", "pinned", "host-call"): (4, 64, KIB, 4 * KIB, 16 * KIB, 64 * KIB),
    ("one", "ce", "pinned", "graph"): (4, KIB, 64 * KIB, MIB),
}
_BRIEF = {("one", "ce", "pinned", "events"): (64 * MIB,), ("both", "ce", "pinned", "events"): (64 * MIB,)}
_ALL_SIZES = (4 * MIB, 64 * MIB)
_CHASES = {"random": (64 * KIB, 2 * MIB, 64 * MIB, GIB), "stride": (2 * MIB,)}
_BRIEF_CHASE = {"random": (2 * MIB,)}
_SMALL = 64 * KIB  # up to here a host call's headline is its time, not a rate
_LEAST_LOOP = 256 * KIB
_LOOP_SECONDS, _LOOP_RATE = 4e-3, 50 * GB
_LEAST_CHASE = 4 * KIB
_LARGE, _LARGE_SAMPLES = 256 * MIB, 3  # in each launch; so for a chase, which takes 50 ms
_BOTH_SAMPLES = 40  # two directions disturb each other unevenly: a few samples agree by chance


def points(topology: "Topology", axes: Mapping[str, tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    there = [node.id.partition(":")[2] for node in topology.of("gpu") if node.get("vendor") == "NVIDIA"]
    if not there:
        raise Unavailable("needs an NVIDIA GPU: the topology shows none")
    chosen = axes["gpus"] != AXES["gpus"].values
    gpus = [gpu for gpu in axes["gpus"] if gpu in there or (gpu == _ALL and len(there) > 1)]
    if not gpus:
        raise Unavailable(f"needs GPU {' or '.join(axes['gpus'])}: the topology shows {', '.join(there)}")
    for gpu in gpus:
        whole = chosen or gpu == gpus[0]
        if "copy" in axes["op"]:
            yield from _copies(gpu, axes, whole)
        if "chase" in axes["op"] and gpu != _ALL:
            yield from _chases(gpu, axes, whole)


def _copies(gpu: str, axes: Mapping[str, tuple[Any, ...]], whole: bool) -> Iterator[dict[str, Any]]:
    if axes["pattern"] != AXES["pattern"].values:
        return  # the user asks for chases
    for traffic, engine, memory, mode in _ways(gpu, axes, whole):
        sizes = axes["nbytes"]
        if sizes == AXES["nbytes"].values:
            sizes = _default_sizes(gpu, (traffic, engine, memory, mode), whole)
        for nbytes, direction in itertools.product(sizes, axes["direction"]):
            if mode != "kernel-loop" or nbytes >= _LEAST_LOOP:
                yield {
                    "op": "copy", "gpus": gpu, "direction": direction, "traffic": traffic, "engine": engine,
                    "memory": memory, "mode": mode, "nbytes": nbytes,
                }  # fmt: skip


def _ways(gpu: str, axes: Mapping[str, tuple[Any, ...]], whole: bool) -> list[tuple[str, str, str, str]]:
    """Return the ways of the plan that the axes allow; where there is none, all that are possible."""
    asked = list(itertools.product(*(axes[name] for name in ("traffic", "engine", "memory", "mode"))))
    plan = _PLAN if whole else _BRIEF
    if gpu == _ALL:
        plan = _BRIEF
    planned = [way for way in plan if way in asked]
    return planned or [way for way in asked if whole and _possible(gpu, *way)]


def _default_sizes(gpu: str, way: tuple[str, str, str, str], whole: bool) -> tuple[int, ...]:
    if gpu == _ALL:
        return _ALL_SIZES
    return (_PLAN if whole else _BRIEF).get(way, _COARSE)


def _possible(gpu: str, traffic: str, engine: str, memory: str, mode: str) -> bool:
    """Pageable copies block the host, so neither a gate nor a second stream goes with them.

    Two copy kernels do not fit on the SMs at once: one kernel does both directions, of one GPU.
    """
    if memory == "pageable":
        return gpu != _ALL and traffic == "one" and engine == "ce" and mode == "host-call"
    if gpu == _ALL and engine == "sm":
        return False
    if mode == "kernel-loop":
        return engine == "sm"
    return mode == "events" or (traffic == "one" and gpu != _ALL)


def _chases(gpu: str, axes: Mapping[str, tuple[Any, ...]], whole: bool) -> Iterator[dict[str, Any]]:
    """One way only: other values of the copy's axes leave the chase out."""
    if not all(axes[name] == AXES[name].values for name in ("direction", "traffic", "engine", "memory", "mode")):
        return
    for pattern in axes["pattern"]:
        sizes = axes["nbytes"]
        if sizes == AXES["nbytes"].values:
            sizes = (_CHASES if whole else _BRIEF_CHASE).get(pattern, ())
        for nbytes in sizes:
            if nbytes >= _LEAST_CHASE:
                yield {"op": "chase", "gpus": gpu, "pattern": pattern, "nbytes": nbytes}


def measure(point: dict[str, Any], sampler: "Sampler") -> Samples:
    from iobench import gpu

    gpu.require()
    if point["op"] == "chase":
        return _chase(point, sampler)
    devices = gpu.devices() if point["gpus"] == _ALL else [gpu.at(f"gpu:{point['gpus']}")]
    return _copy(point, sampler, devices)


def setup_seconds(points: list[dict[str, Any]]) -> float:
    """Return roughly what one launch takes beside measuring: its start, then filling and verifying (on an H200)."""
    return 2.5 + 0.04 * len(points)


def _copy(point: dict[str, Any], sampler: "Sampler", devices: "Sequence[Device]") -> Samples:
    from iobench import gpu

    with contextlib.ExitStack() as stack:
        prepared = [_prepared(point, sampler, device, stack) for device in devices]
        copies, hosts = [copy for copy, _ in prepared], [host for _, host in prepared]
        busy = devices if point["traffic"] == "both" else []
        others = [_prepared(_opposite(point), sampler, device, stack)[0] for device in busy]
        with gpu.watch(devices) as watch:
            timed, extra = _timed(point, _patient(sampler, point), copies, others)
        for copy in (*copies, *others):
            copy.verify(f"{point['direction']} copy of {point['nbytes']} bytes")
        return _samples(point, timed, copies, hosts, watch, extra)


def _opposite(point: Mapping[str, Any]) -> dict[str, Any]:
    return {**point, "direction": "d2h" if point["direction"] == "h2d" else "h2d", "opposite": True}


def _prepared(
    point: Mapping[str, Any], sampler: "Sampler", device: "Device", stack: contextlib.ExitStack
) -> "tuple[Copy, HostBuffer]":
    """Return the copy of one GPU with a stream of its own, and its host buffer; buffers stay for the launch."""
    from iobench import gpu
    from iobench.gpu import copying

    layout = copying.layout(point["nbytes"], device.l2_nbytes)
    host, there = _buffers(sampler, device, layout, point["memory"], bool(point.get("opposite")))
    seen = point["memory"] == "pinned"
    looping = point["mode"] == "kernel-loop"
    ends: tuple[Memory, Memory] = (host, there) if point["direction"] == "h2d" else (there, host)
    copy = copying.Copy(
        src=ends[0],
        dst=ends[1],
        layout=layout,
        device=device,
        engine=point["engine"],
        stream=stack.enter_context(gpu.stream(device)),
        repeats=copying.repeats(layout.nbytes, _LOOP_RATE, _LOOP_SECONDS) if looping else 1,
        src_seen=seen or point["direction"] == "d2h",
        dst_seen=seen or point["direction"] == "h2d",
    )
    copy.prepare()
    return copy, host


def _buffers(
    sampler: "Sampler", device: "Device", layout: "Layout", memory: str, opposite: bool
) -> "tuple[HostBuffer, Buffer]":
    from iobench import gpu
    from iobench.gpu import copying

    arena: Arena = sampler.shared("arena", copying.arena)
    return (
        arena.get((memory, device.index, opposite), layout.region_nbytes, lambda n: _host(n, memory, device)),
        arena.get(("device", device.index, opposite), layout.region_nbytes, lambda n: gpu.buffer(n, device)),
    )


def _host(nbytes: int, memory: str, device: "Device") -> "contextlib.AbstractContextManager[HostBuffer]":
    from iobench import gpu

    if memory == "pageable":
        return gpu.pageable(nbytes)
    return gpu.pinned(nbytes, node=int(device.mem.partition(":")[2]) if device.mem else None)


def _patient(sampler: "Sampler", point: Mapping[str, Any]) -> "Sampler":
    """Return the sampler with a least number of samples that suits the point."""
    least = sampler.min_samples
    if point.get("traffic") == "both":
        least = max(least, _BOTH_SAMPLES)
    elif point["op"] == "chase" or point["nbytes"] >= _LARGE:
        least = min(least, _LARGE_SAMPLES)
    return dataclasses.replace(sampler, min_samples=least)


def _timed(
    point: Mapping[str, Any], sampler: "Sampler", copies: "Sequence[Copy]", others: "Sequence[Copy]"
) -> "tuple[Timed, dict[str, Any]]":
    """Return the times of ``copies``, one row each, while ``others`` are busy too, and what there is to say of it."""
    from iobench.timing import cuda

    copy = copies[0]
    extra: dict[str, Any] = {}
    if point["mode"] == "host-call":
        timed = cuda.host_call(sampler, copy.call())
    elif point["mode"] == "graph":
        timed = cuda.graph(sampler, copy.enqueue, copy.stream, copy.layout.graph_ops)
    elif len(copies) == 1 and not others:
        timed = cuda.events(sampler, copy.enqueue, copy.stream)
    else:
        timed, extra = _together(sampler, copies, others)
    timed.ops *= copy.repeats
    return timed, extra


def _together(sampler: "Sampler", copies: "Sequence[Copy]", others: "Sequence[Copy]") -> "tuple[Timed, dict[str, Any]]":
    """Time copies that run at the same time, each while all the rest are busy."""
    from iobench.gpu import copying
    from iobench.timing import cuda, cuda_group

    if len(copies) == 1:
        copy, other = copies[0], others[0]
        if copy.engine == "sm":
            timed = cuda.events(sampler, copying.exchange(copy, other), copy.stream)
            return timed, {"method": "one kernel whose warps alternate between the directions: both take its time"}
        pair = cuda.events_pair(sampler, copy.enqueue, copy.stream, other.enqueue, other.stream)
        mine, opposite = pair.timed.seconds
        pair.timed.seconds = [mine]
        pair.timed.warmup = pair.timed.warmup[:1]
        seconds = median(opposite) / pair.timed.ops / other.repeats
        about = {"overlapped": pair.overlapped, "method": pair.method, "opposite_seconds": seconds}
        return pair.timed, about
    lanes = [(copy.enqueue, copy.stream) for copy in (*copies, *others)]
    timed = cuda_group.events_together(sampler, lanes)
    about = {"method": cuda_group.METHOD, "gpu_seconds": [median(row) / timed.ops for row in timed.seconds]}
    timed.seconds, timed.warmup = timed.seconds[: len(copies)], timed.warmup[: len(copies)]
    return timed, about


def _samples(
    point: Mapping[str, Any],
    timed: "Timed",
    copies: "Sequence[Copy]",
    hosts: "Sequence[HostBuffer]",
    watch: "Watch",
    extra: Mapping[str, Any],
) -> Samples:
    nbytes, mode = point["nbytes"], point["mode"]
    layout = copies[0].layout
    legs = [leg for copy, host in zip(copies, hosts, strict=True) for leg in _legs(point, copy.device, host, watch)]
    about = {"slots": layout.count, "slot_stride": layout.stride, "messages_enqueued": [copy.turns for copy in copies]}
    about |= {"repeats_per_launch": copies[0].repeats} if mode == "kernel-loop" else {}
    return Samples(
        timed=timed,
        nbytes=nbytes,
        moved=nbytes * len(copies),
        moved_rule="each byte of a message once per GPU, in the one direction; what goes the other way is not counted",
        quantity="latency" if mode == "host-call" and nbytes <= _SMALL else "bandwidth",
        mode=mode,
        verified=True,
        path=_path(point["direction"], [copy.device for copy in copies], hosts, point["memory"]),
        proven=len(legs) == len(copies) and all(host.nodes for host in hosts),
        evidence={**about, **extra, "host_pages": [host.nodes for host in hosts], "gpus": watch.evidence()},
        legs=legs,
        notes=watch.limit_notes,
        suspect=watch.suspect,
    )


def _legs(point: Mapping[str, Any], device: "Device", host: "HostBuffer", watch: "Watch") -> list[Leg]:
    """Return the way of one GPU's bytes; none where the topology does not know the one end or the other."""
    memory = _memory(device, host)
    if memory is None or device.vram is None:
        return []
    ends = (memory, device.vram) if point.get("direction", "h2d") == "h2d" else (device.vram, memory)
    return [Leg(*ends, moved=point.get("moved", point["nbytes"]), bytes_per_s=watch.link_bytes_per_s(device))]


def _memory(device: "Device", host: "HostBuffer") -> str | None:
    """Return the node that holds most of the host buffer's pages, the GPU's nearest where that is unknown."""
    return f"mem:{max(host.nodes, key=host.nodes.__getitem__)}" if host.nodes else device.mem


def _path(direction: str, devices: "Sequence[Device]", hosts: "Sequence[HostBuffer]", memory: str) -> str:
    ways = []
    for device, host in zip(devices, hosts, strict=True):
        ends = (f"{memory} {_memory(device, host) or 'host memory'}", device.node or device.name)
        ways.append(" to ".join(ends if direction == "h2d" else ends[::-1]))
    return ", ".join(ways) + " over PCIe"


def _chase(point: dict[str, Any], sampler: "Sampler") -> Samples:
    from iobench import gpu
    from iobench.gpu import chasing, copying

    device = gpu.at(f"gpu:{point['gpus']}")
    arena: Arena = sampler.shared("arena", copying.arena)
    nbytes = point["nbytes"]
    host = arena.get(("pinned", device.index, False), nbytes, lambda n: _host(n, "pinned", device))
    with gpu.watch([device]) as watch:
        timed, about = chasing.measure(_patient(sampler, point), host.ptr, nbytes, point["pattern"], device)
    legs = _legs({"nbytes": nbytes, "moved": chasing.LINE, "direction": "h2d"}, device, host, watch)
    return Samples(
        timed=timed,
        nbytes=nbytes,
        moved=chasing.LINE,
        moved_rule="one 128-byte line per load at most",
        quantity="latency",
        mode="dependent loads",
        verified=True,
        path=_path("h2d", [device], [host], "pinned"),
        proven=bool(legs) and bool(host.nodes),
        evidence={**about, "host_pages": host.nodes, "gpus": watch.evidence()},
        legs=legs,
        notes=watch.limit_notes,
        suspect=watch.suspect,
    )
