"""GPU to GPU: reads and writes of every ordered pair over NVLink or PCIe, copy engine and SMs, load latency.

Path: between the memories of two GPUs. ``gpu`` issues the copy: ``read`` brings bytes from the ``peer``'s memory,
``write`` takes them there; with ``traffic=both`` the peer does the same to ``gpu`` all the while and outlasts it, so
the points of both orders of a pair together give both rates. ``engine=ce`` is cudaMemcpyAsync on a stream of
``gpu``, ``sm`` a kernel whose loads or stores reach the peer's memory themselves. The chase follows pointers in the
peer's memory with one thread, each load waiting for the one before, on one SM after the other.

Clock: ``events``: CUDA events around back-to-back copies in a stream that is held back until all of them are
enqueued, so that launch cost is outside; ``graph``: the same copies captured once and replayed; ``kernel-loop``: many
messages in one launch of the copy kernel; ``host-call``: the host's clock from the call to the copy's completion. A
sample of the chase is the mean over all SMs of the time that 256 loads take by the GPU's own clock, read in the kernel.

A read by the copy engine that is enqueued on a stream costs about 11 us more than a write, in a graph it does not
(seen on 2 x H200: 13.3 against 2.2 us at 4 B; nvbandwidth shows the same, and so does cuMemcpyAsync).

Bytes: ``nbytes`` is one message. Messages go through slots that together are larger than twice the L2.

Not in the number: allocation, peer access, filling, verification. Running it takes up to 2 GiB of memory on each GPU.
Every byte of every slot that a copy reached is compared after the samples, and every node at which a chase stopped.
The path is proven by NVML's counters of the NVLinks, which must have carried the bytes on both GPUs; what is too
little for them to show is proven by a larger copy between the same GPUs.

Cross-checked against nvbandwidth, interleaved in one run: ``iobench crosscheck gpu``.
"""

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from iobench.errors import Unavailable
from iobench.probe import Axis, Matrix, Plot, Samples
from iobench.record import Leg
from iobench.units import GB, KIB, MIB

if TYPE_CHECKING:
    from iobench.gpu import Buffer, Device
    from iobench.gpu.copying import Arena, Copy
    from iobench.gpu.nvlink import Carried, Proof
    from iobench.timing.sampler import Sampler, Timed
    from iobench.topology.graph import Topology

_SIZES = tuple(1 << n for n in range(2, 31))  # 4 B to 1 GiB
_FINE, _COARSE = _SIZES[::2], _SIZES[::4]
_GPUS = tuple(range(64))

AXES = {
    "op": Axis(("copy", "chase"), "copy messages, or follow pointers in the peer's memory with one thread"),
    "gpu": Axis(_GPUS, "the GPU that issues the copy, by its number in the topology"),
    "peer": Axis(_GPUS, "the GPU whose memory is read or written; unless given, pairs after the first in brief"),
    "direction": Axis(("read", "write"), "read from the peer's memory or write to it"),
    "traffic": Axis(("one", "both"), "this GPU alone, or while the peer does the same in the opposite direction"),
    "engine": Axis(("ce", "sm"), "copy engine, or a kernel of the SMs"),
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
        "GPU to GPU: bandwidth",
        x="nbytes",
        y="bandwidth",
        series=("gpu", "peer", "direction", "traffic", "engine", "mode"),
        where=_COPY,
    ),
    Plot(
        "GPU to GPU: time of one copy",
        x="nbytes",
        y="latency",
        series=("gpu", "peer", "direction", "engine", "mode"),
        where={"op": "copy", "traffic": "one"},
    ),
    Plot(
        "Latency of a load from a peer's memory",
        x="nbytes",
        y="latency",
        series=("gpu", "peer", "pattern"),
        where={"op": "chase"},
    ),
)
MATRICES = (
    Matrix("GPU to GPU, bandwidth", "gpu", "peer", "bandwidth", {"op": "copy", "nbytes": 64 * MIB}),
    Matrix("Load from a peer's memory", "gpu", "peer", "latency", {"op": "chase", "nbytes": 2 * MIB}),
)
MODELS = ({"kind": "piecewise", "where": _COPY},)

# What is measured unless the user asks for something else: traffic, engine, mode -> sizes
_PLAN: dict[tuple[str, str, str], tuple[int, ...]] = {
    ("one", "ce", "events"): _FINE,
    ("both", "ce", "events"): (MIB, 64 * MIB, 256 * MIB),
    ("one", "sm", "events"): _COARSE,
    ("one", "sm", "kernel-loop"): (4 * MIB, 64 * MIB, 256 * MIB),
    ("both", "sm", "kernel-loop"): (64 * MIB,),
    ("one", "ce", "host-call"): (4, 4 * KIB, 64 * KIB),
    ("one", "ce", "graph"): (4, 4 * KIB, 64 * KIB),
}
# The matrix: pairs after the first, unless the user asks for one of them
_BRIEF = {
    ("one", "ce", "events"): (64 * MIB,),
    ("both", "ce", "events"): (64 * MIB,),
    ("one", "sm", "kernel-loop"): (64 * MIB,),
}
_CHASES = {"random": (64 * KIB, 2 * MIB, 256 * MIB), "stride": (2 * MIB,)}
_BRIEF_CHASES = {"random": (2 * MIB,)}
_SMALL = 64 * KIB  # up to here a host call's headline is its time, not a rate
_LEAST_LOOP = 256 * KIB
_LOOP_SECONDS, _LOOP_RATE = 4e-3, 400 * GB
_LEAST_CHASE = 4 * KIB


def points(topology: "Topology", axes: Mapping[str, tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    pairs = _pairs(topology)
    if not pairs:
        raise Unavailable("needs two NVIDIA GPUs with peer access: the topology shows none")
    chosen = any(axes[name] != _GPUS for name in ("gpu", "peer"))
    asked = [pair for pair in pairs if pair[0] in axes["gpu"] and pair[1] in axes["peer"]]
    if not asked:
        raise Unavailable("needs a pair of GPUs with peer access among those asked for: the topology shows none")
    for pair in asked:
        whole = chosen or set(pair) == set(asked[0])
        if "copy" in axes["op"]:
            yield from _copies(pair, axes, whole)
        if "chase" in axes["op"]:
            yield from _chases(pair, axes, whole)


def _pairs(topology: "Topology") -> list[tuple[int, int]]:
    """Return the ordered pairs that can reach each other; where the topology does not tell, all of them."""
    gpus = [node for node in topology.of("gpu") if node.get("vendor") == "NVIDIA"]
    return [
        (_number(gpu.id), _number(peer.id))
        for gpu, peer in itertools.permutations(gpus, 2)
        if gpu.get("peers", {}).get(peer.get("pci"), True)
    ]


def _number(node: str) -> int:
    return int(node.partition(":")[2])


def _copies(pair: tuple[int, int], axes: Mapping[str, tuple[Any, ...]], whole: bool) -> Iterator[dict[str, Any]]:
    if axes["pattern"] != AXES["pattern"].values:
        return  # the user asks for chases
    for way in _ways(axes, whole):
        traffic, engine, mode = way
        sizes = axes["nbytes"]
        if sizes == AXES["nbytes"].values:
            sizes = (_PLAN if whole else _BRIEF).get(way, _COARSE)
        for nbytes, direction in itertools.product(sizes, axes["direction"]):
            if mode != "kernel-loop" or nbytes >= _LEAST_LOOP:
                yield {
                    "op": "copy", "gpu": pair[0], "peer": pair[1], "direction": direction, "traffic": traffic,
                    "engine": engine, "mode": mode, "nbytes": nbytes,
                }  # fmt: skip


def _ways(axes: Mapping[str, tuple[Any, ...]], whole: bool) -> list[tuple[str, str, str]]:
    """Return the ways of the plan that the axes allow; where there is none, all that are possible."""
    asked = list(itertools.product(*(axes[name] for name in ("traffic", "engine", "mode"))))
    planned = [way for way in (_PLAN if whole else _BRIEF) if way in asked]
    return planned or [way for way in asked if whole and _possible(*way)]


def _possible(traffic: str, engine: str, mode: str) -> bool:
    if mode == "kernel-loop":
        return engine == "sm"
    return mode == "events" or traffic == "one"


def _chases(pair: tuple[int, int], axes: Mapping[str, tuple[Any, ...]], whole: bool) -> Iterator[dict[str, Any]]:
    """One way only: other values of the copy's axes leave the chase out."""
    if not all(axes[name] == AXES[name].values for name in ("direction", "traffic", "engine", "mode")):
        return
    for pattern in axes["pattern"]:
        sizes = axes["nbytes"]
        if sizes == AXES["nbytes"].values:
            sizes = (_CHASES if whole else _BRIEF_CHASES).get(pattern, ())
        for nbytes in sizes:
            if nbytes >= _LEAST_CHASE:
                yield {"op": "chase", "gpu": pair[0], "peer": pair[1], "pattern": pattern, "nbytes": nbytes}


def measure(point: dict[str, Any], sampler: "Sampler") -> Samples:
    from iobench import gpu

    gpu.require(2)
    device, peer = (gpu.at(f"gpu:{point[end]}") for end in ("gpu", "peer"))
    sampler.shared(("access", device.index, peer.index), lambda: _access(device, peer))
    sampler.shared(("access", peer.index, device.index), lambda: _access(peer, device))
    return (_chase if point["op"] == "chase" else _copy)(point, sampler, device, peer)


def setup_seconds(points: list[dict[str, Any]]) -> float:
    """Return roughly what one launch takes beside measuring: its start, then filling and verifying (on two H200)."""
    return 3.0 + 0.05 * len(points)


@contextlib.contextmanager
def _access(device: "Device", peer: "Device") -> Iterator[None]:
    """Let ``device`` reach the memory of ``peer``; Unavailable where it cannot."""
    from iobench import gpu

    api = gpu.require().cuda.runtime
    if not api.deviceCanAccessPeer(device.index, peer.index):
        raise Unavailable(f"{device.node or device.index} has no peer access to {peer.node or peer.index}")
    with gpu.using(device):
        try:
            api.deviceEnablePeerAccess(peer.index)
        except api.CUDARuntimeError as error:
            if "PeerAccessAlreadyEnabled" not in str(error):
                raise
    yield


def _copy(point: dict[str, Any], sampler: "Sampler", device: "Device", peer: "Device") -> Samples:
    from iobench import gpu
    from iobench.gpu import nvlink

    with contextlib.ExitStack() as stack:
        copies = [_prepared(point, sampler, device, peer, "mine", stack)]
        if point["traffic"] == "both":
            copies.append(_prepared(point, sampler, peer, device, "opposite", stack))
        with gpu.watch([device, peer]) as watch, nvlink.counted(_way(point, device, peer)) as carried:
            timed, extra = _timed(point, sampler, copies)
        for copy in copies:
            copy.verify(f"{point['direction']} of {point['nbytes']} bytes by {copy.device.node or copy.device.name}")
    # Replays of a graph are not counted in turns: the samples are a lower bound of what moved.
    moved = max(copies[0].turns, _operations(timed)) * point["nbytes"]
    samples = _samples(point, timed, _proof(carried, moved, sampler, *_way(point, device, peer)), device, peer)
    samples.evidence |= {"slots": copies[0].layout.count, "messages_enqueued": [copy.turns for copy in copies], **extra}
    samples.evidence["gpus"], samples.suspect = watch.evidence(), watch.suspect
    return samples


def _way(point: Mapping[str, Any], device: "Device", peer: "Device") -> "tuple[Device, Device]":
    """Return the GPU that sends and the one that receives."""
    return (device, peer) if point.get("direction") == "write" else (peer, device)


def _operations(timed: "Timed") -> int:
    return (len(timed.seconds[0]) + len(timed.warmup[0])) * timed.ops


def _prepared(
    point: Mapping[str, Any],
    sampler: "Sampler",
    device: "Device",
    peer: "Device",
    whose: str,
    stack: contextlib.ExitStack,
) -> "Copy":
    """Return the copy that ``device`` issues, with buffers that stay for the launch and a stream of its own."""
    from iobench import gpu
    from iobench.gpu import copying

    layout = copying.layout(point["nbytes"], max(device.l2_nbytes, peer.l2_nbytes))
    here, there = (_buffer(sampler, end, whose, layout.region_nbytes) for end in (device, peer))
    looping = point["mode"] == "kernel-loop"
    src, dst = (there, here) if point["direction"] == "read" else (here, there)
    copy = copying.Copy(
        src=src,
        dst=dst,
        layout=layout,
        device=device,
        engine=point["engine"],
        stream=stack.enter_context(gpu.stream(device)),
        repeats=copying.repeats(layout.nbytes, _LOOP_RATE, _LOOP_SECONDS) if looping else 1,
    )
    copy.prepare()
    return copy


def _buffer(sampler: "Sampler", device: "Device", whose: str, nbytes: int) -> "Buffer":
    from iobench import gpu
    from iobench.gpu import copying

    arena: Arena = sampler.shared("arena", copying.arena)
    buffer: Buffer = arena.get((device.index, whose), nbytes, lambda n: gpu.buffer(n, device))
    return buffer


def _timed(point: Mapping[str, Any], sampler: "Sampler", copies: "Sequence[Copy]") -> "tuple[Timed, dict[str, Any]]":
    """Return the times of the first copy, while the second one is busy where there is one."""
    from iobench.timing import cuda

    copy = copies[0]
    extra: dict[str, Any] = {}
    if point["mode"] == "host-call":
        timed = cuda.host_call(sampler, copy.call())
    elif point["mode"] == "graph":
        timed = cuda.graph(sampler, copy.enqueue, copy.stream, copy.layout.graph_ops)
    elif len(copies) == 1:
        timed = cuda.events(sampler, copy.enqueue, copy.stream)
    else:
        other = copies[1]
        pair = cuda.events_pair(sampler, copy.enqueue, copy.stream, other.enqueue, other.stream)
        timed = pair.timed
        opposite = median(timed.seconds[1]) / timed.ops / other.repeats
        extra = {"overlapped": pair.overlapped, "method": pair.method, "opposite_seconds": opposite}
        timed.seconds, timed.warmup = timed.seconds[:1], timed.warmup[:1]
    timed.ops *= copy.repeats
    return timed, extra


def _samples(point: Mapping[str, Any], timed: "Timed", proof: "Proof", device: "Device", peer: "Device") -> Samples:
    """Return what copies and chases have in common: ends, legs, and what the links' counters say."""
    chasing = point["op"] == "chase"
    source, target = _way(point, device, peer)
    small = point.get("mode") == "host-call" and point["nbytes"] <= _SMALL
    each = 128 if chasing else point["nbytes"]
    legs = [Leg(source.vram, target.vram, moved=each)] if source.vram and target.vram else []
    return Samples(
        timed=timed,
        nbytes=point["nbytes"],
        moved=each,
        moved_rule="one 128-byte line per load at most" if chasing else "each byte of a message once, one direction",
        quantity="latency" if chasing or small else "bandwidth",
        mode="dependent loads" if chasing else point["mode"],
        verified=True,
        path=f"{source.node or source.name} to {target.node or target.name}: {proof.words}",
        proven=proof.proven and bool(legs),
        evidence={"nvlink": proof.evidence},
        legs=legs,
        notes=proof.notes,
    )


def _proof(carried: "Carried", moved: int, sampler: "Sampler", source: "Device", target: "Device") -> "Proof":
    """Return what the counters prove; for a few bytes what a larger copy between the same GPUs has proven."""
    from iobench.gpu import nvlink

    if moved >= nvlink.LEAST_PROVABLE:
        return carried.proof(moved)
    witness: Proof = sampler.shared(("way", source.index, target.index), lambda: nvlink.witness(source, target))
    return witness


def _chase(point: dict[str, Any], sampler: "Sampler", device: "Device", peer: "Device") -> Samples:
    from iobench import gpu
    from iobench.gpu import chasing, nvlink

    memory = _buffer(sampler, peer, "mine", point["nbytes"])
    with gpu.watch([device, peer]) as watch, nvlink.counted(_way(point, device, peer)) as carried:
        timed, about = chasing.measure(sampler, memory.ptr, point["nbytes"], point["pattern"], device)
    # One sector of 32 bytes per load is the least that comes over a link.
    moved = 32 * _operations(timed)
    samples = _samples(point, timed, _proof(carried, moved, sampler, *_way(point, device, peer)), device, peer)
    samples.evidence |= {**about, "gpus": watch.evidence()}
    samples.suspect = watch.suspect
    return samples
