"""KV-cache reads of a decode step: contiguous, paged through a block table, INT8 and FP8 with scales per block.

Path: a GPU's memory to its SMs, as the attention of one decode step reads it: one launch per layer, thread blocks
per sequence, KV head, keys or values, and part of the tokens. Contiguous is [layer, sequence, token, head, dim] for
keys and for values; paged is a pool of blocks [block, token, head, dim] per layer, given to the sequences at random.
INT8 and FP8 (E4M3) are multiplied by a float32 scale per block and head as they are read.

Clock: CUDA graph replays of whole steps between two events (mode graph), or launches behind a gate (mode events);
the gaps between a step's launches are part of it, as they are in decoding. An operation is one step.

Bytes: what a step reads: keys and values, scales, and the table once per layer. ``payload_nbytes`` in the evidence is
keys and values alone. Steps rotate over caches that cover more than 4 times the L2; the limit counts only the bytes
that the L2 cannot have served. Compare rows of one model, batch and token count for the cost of a layout.

Not in the number: the query's load, softmax, the output, allocation and filling. Running it takes the cache's size of
GPU memory. Each read ends in a dot product with fixed weights; the sums per layer, sequence and head are exact in
every format and verified against sums computed without the cache.

Cross-checked against ``hbm``'s read kernel, the same memory with the simplest walk: a long FP16 context comes near it.
"""

import itertools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from iobench.errors import Unavailable
from iobench.probe import Axis, Plot, Samples
from iobench.record import Leg
from iobench.units import GIB

if TYPE_CHECKING:
    from iobench.gpu import Device, Watch
    from iobench.kernels.gpu.kvcache import Cache, Layout
    from iobench.timing.sampler import Sampler, Timed
    from iobench.topology.graph import Topology

AXES = {
    "model": Axis(("llama-3-8b", "llama-3-70b"), "layers x KV heads x dim: 32 x 8 x 128 and 80 x 8 x 128"),
    "gpu": Axis(tuple(range(64)), "number of the GPU in the topology; unless given, the first"),
    "layout": Axis(("contiguous", "paged"), "tokens in order, or in blocks through a table"),
    "dtype": Axis(("fp16", "int8", "fp8"), "of keys and values; int8 and fp8 have a scale per block and head"),
    "block": Axis(
        (16, 8, 32, 64),
        "tokens per block; unless given, others than 16 at one length only",
        choices=(8, 16, 32, 64, 128),
    ),
    "tokens": Axis((1024, 8192, 32768, 131072), "context of each sequence", minimum=1),
    "batch": Axis((1, 8), "sequences decoded together", minimum=1),
    "walk": Axis(
        ("head",),
        "head: a thread block reads one head's rows; token: all heads of its tokens",
        choices=("head", "token"),
    ),
    "mode": Axis(("graph",), "how steps are timed", choices=("graph", "events")),
}
LAUNCHES = 3
POINT_SECONDS = 0.2
_SERIES = ("layout", "dtype", "model", "batch")
PLOTS = (
    Plot("KV-cache reads: bandwidth", x="tokens", y="bandwidth", series=_SERIES, where={"block": 16}),
    Plot("KV-cache reads: time of a decode step", x="tokens", y="latency", series=_SERIES, where={"block": 16}),
    Plot("Paged KV cache: block size", x="block", y="bandwidth", series=("dtype", "model"), where={"layout": "paged"}),
)

_MOST_FRACTION = 0.85
_PRIME = 1_000_003
_USUAL_BLOCK = 16
_REFERENCE = {"model": "llama-3-8b", "tokens": 32768, "batch": 1}  # where block sizes and formats are compared
_MOST_LAUNCHES = 512  # enqueued behind the gate at once


def points(topology: "Topology", axes: Mapping[str, tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    found = {int(node.id.split(":")[1]): node for node in topology.of("gpu") if node.get("vendor") == "NVIDIA"}
    if not found:
        raise Unavailable("needs an NVIDIA GPU: the topology shows none")
    chosen = [number for number in axes["gpu"] if number in found]
    if not chosen:
        raise Unavailable(f"needs gpu:{axes['gpu'][0]}: the topology has {', '.join(f'gpu:{n}' for n in found)}")
    for gpu in chosen[:1] if axes["gpu"] == AXES["gpu"].values else chosen:
        room = int((found[gpu].get("memory_bytes") or 16 * GIB) * _MOST_FRACTION)
        names = ("model", "batch", "tokens", "layout", "dtype", "block", "walk", "mode")
        for values in itertools.product(*(axes[name] for name in names)):
            point = {"gpu": gpu, **dict(zip(names, values, strict=True))}
            if _wanted(point, axes) and _layout(point).room <= room:
                yield point


def _wanted(point: dict[str, Any], axes: Mapping[str, tuple[Any, ...]]) -> bool:
    """Whether the user asked for such a point, or it is one of the defaults.

    The block of a contiguous FP16 cache means nothing: one value stands for all.
    """
    if point["layout"] == "contiguous" and point["dtype"] == "fp16" and point["block"] != axes["block"][0]:
        return False
    if all(point[name] == value for name, value in _REFERENCE.items()):
        return True
    if axes["block"] == AXES["block"].values and point["block"] != _USUAL_BLOCK:
        return False
    everything = axes["layout"] == AXES["layout"].values and axes["dtype"] == AXES["dtype"].values
    return not (everything and point["layout"] == "contiguous" and point["dtype"] != "fp16")


def _layout(point: dict[str, Any]) -> "Layout":
    from iobench.kernels.gpu.kvcache import MODELS, Layout

    model = MODELS[point["model"]]
    return Layout(
        layers=model.layers,
        heads=model.heads,
        sequences=point["batch"],
        tokens=point["tokens"],
        dtype=point["dtype"],
        paged=point["layout"] == "paged",
        block=point["block"],
    )


def measure(point: dict[str, Any], sampler: "Sampler") -> Samples:
    from iobench import gpu
    from iobench.kernels.gpu.kvcache import Cache

    device, layout = gpu.at(f"gpu:{point['gpu']}"), _layout(point)
    if point["dtype"] == "fp8" and device.compute_capability < (8, 9):
        raise Unavailable(f"needs a GPU that converts FP8 (compute capability 8.9 or more): {device.name} does not")
    slots = layout.slots(device.l2_nbytes)
    group = layout.heads if point["walk"] == "token" else 1
    with gpu.using(device), gpu.buffer(slots * layout.room, device) as area:
        stream = sampler.shared(("stream", device.index), lambda: gpu.stream(device))
        with stream:
            cache = Cache(layout, area.ptr, slots, group, device, sampler.launch * _PRIME + point["tokens"])
            cache.prepare()
            cache.begin()
            with gpu.watch([device]) as seen:
                timed = _time(point["mode"], sampler, cache, stream)
            steps = cache.check()
        return _samples(point, cache, timed, steps, seen)


def _time(mode: str, sampler: "Sampler", cache: "Cache", stream: Any) -> "Timed":
    from iobench.timing import cuda

    if mode == "graph":
        return cuda.graph(sampler, cache.enqueue, stream, ops=cache.slots)
    return cuda.events(sampler, cache.enqueue, stream, ops=max(_MOST_LAUNCHES // cache.layout.layers, 1))


def _samples(point: dict[str, Any], cache: "Cache", timed: "Timed", steps: int, seen: "Watch") -> Samples:
    layout, device = cache.layout, cache.device
    return Samples(
        timed=timed,
        nbytes=layout.payload,
        moved=layout.moved,
        moved_rule="keys and values, scales, and the block table once per layer",
        quantity="bandwidth",
        mode=point["mode"],
        verified=True,
        path=f"{device.name}'s memory through its L2 to its SMs",
        proven=True,
        evidence={
            "payload_nbytes": layout.payload, "scales_nbytes": layout.read_scales, "table_nbytes": layout.read_table,
            "allocated_nbytes": layout.room, "slots": cache.slots, "splits": cache.splits, "steps_verified": steps,
            "memory_nbytes_at_least": layout.from_memory(device.l2_nbytes),
            "peak_bytes_per_s": device.peak_bytes_per_s, "l2_nbytes": device.l2_nbytes, "watch": seen.evidence(),
        },
        legs=_legs(device, layout.from_memory(device.l2_nbytes)),
        suspect=seen.suspect,
    )  # fmt: skip


def _legs(device: "Device", moved: int) -> list[Leg]:
    if device.vram is None or device.node is None:
        return []
    return [Leg(device.vram, device.node, moved=moved, bytes_per_s=device.peak_bytes_per_s)]
