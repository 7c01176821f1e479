"""All-reduce and its kin: NCCL between GPUs over NVLink, PCIe, shared memory, sockets, InfiniBand; gloo between CPUs.

Path: each rank's buffer to the other ranks and back, over the transport that the point names. NCCL is made to take
it by its own variables; its log of the channels must say that it did, the counters of the NVLinks must agree where
bytes enough have moved, and a point whose transport was not taken is failed, not renamed. With gloo: TCP on the
loopback interface, proven by what the connections between the ranks carried.

Engines: ``nccl`` is the library itself, ``torch`` is torch.distributed on NCCL, what its users get; one process per
GPU. Modes: ``graph`` replays a CUDA graph of many operations, an event after every few replays and one replay ahead,
so launching is outside the number; ``eager`` launches them one by one from Python; ``blocking`` waits for each. What
launching costs stands in the evidence. gloo is blocking: ranks meet at a barrier outside the clock, which runs from
the call to its return.

The sample is the slowest rank's time of each iteration; each rank's median and the slowest rank are kept.

Not in the number: filling the buffers, barriers, verification. GPU buffers rotate over more than twice the L2,
small messages, which stay in it, over 16 of their like.
Running it keeps a CPU per rank busy, and with GPUs all links of the transport. Every element of every result is
verified before sampling, and of those that the timed operations left after it (in place: of one more on fresh data).
Bandwidth is bus bandwidth (nccl-tests, doc/PERFORMANCE.md), comparable between numbers of ranks.

Cross-checked against nccl-tests, and gloo against a plain torch.distributed loop started by torchrun. Not run on
InfiniBand: that transport is tested with recorded logs only.
"""

import itertools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from iobench.errors import Unavailable, UserError
from iobench.probe import Axis, Plot, Samples

if TYPE_CHECKING:
    from iobench.timing.sampler import Sampler
    from iobench.topology.graph import Node, Topology

_SIZES = tuple(1 << n for n in range(3, 34))  # 8 B to 8 GiB
AXES = {
    "engine": Axis(
        ("nccl", "torch", "gloo"), "nccl: the library; torch: torch.distributed on it; gloo: on CPUs, over TCP"
    ),
    "transport": Axis(
        ("nvlink", "pcie", "shm", "socket", "ib"), "the way between ranks; unless given, all that the machine has"
    ),
    "op": Axis(
        ("all_reduce",),
        "the collective, a sum where it reduces",
        choices=("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "sendrecv"),
    ),
    "ranks": Axis((2, 4, 8, 16), "processes; unless given, as many as there are GPUs or CPUs (2 at least)", minimum=2),
    "nodes": Axis((1,), "hosts that share the ranks; unless given, all of the job (torchrun, srun, mpirun)", minimum=1),
    "dtype": Axis(("float32",), "of the elements", choices=("float32", "float16", "bfloat16", "float8")),
    "inplace": Axis(("no", "yes"), "result in the input's buffer; torch's all_reduce always is"),
    "algo": Axis(("auto",), "NCCL_ALGO: ring, tree, nvls ...", free=True),
    "proto": Axis(("auto",), "NCCL_PROTO: LL, LL128, Simple", free=True),
    "gdr": Axis(("auto",), "ib: GPUDirect RDMA", choices=("auto", "on", "off")),
    "mode": Axis(("graph", "eager", "blocking"), "how GPU operations are launched and timed"),
    "placement": Axis(
        ("apart",),
        "gloo: its event loop on another CPU than its rank's other threads, or as the scheduler likes (free)",
        choices=("apart", "free"),
    ),
    "nbytes": Axis(
        _SIZES, "S of the algorithm bandwidth; unless given, up to 64 MiB or 512 MiB", unit="bytes", minimum=1
    ),
}
LAUNCHES = 3
POINT_SECONDS = 0.15
_SERIES = ("transport", "engine", "ranks", "inplace")
PLOTS = (
    Plot("All-reduce: time", x="nbytes", y="latency", series=_SERIES, where={"op": "all_reduce"}),
    Plot("All-reduce: bus bandwidth", x="nbytes", y="bandwidth", series=_SERIES, where={"op": "all_reduce"}),
)
MODELS = ({"kind": "piecewise", "where": {}},)

_HOST_MOST, _HOST_MOST_RANKS = 64 << 20, 8
_GPU_MOST = {"nvlink": 512 << 20, "pcie": 512 << 20, "shm": 512 << 20, "socket": 64 << 20, "ib": 512 << 20}
_COARSE = tuple(8 << n for n in range(0, 28, 3))  # 8 B, 64 B ... 1 GiB
# What is measured unless the user asks for something else: engine, mode, in place -> every size or some
_PLAN = {
    ("nccl", "graph", "no"): True,
    ("nccl", "graph", "yes"): False,
    ("nccl", "eager", "no"): False,
    ("nccl", "blocking", "no"): False,
    ("torch", "graph", "yes"): False,
    ("torch", "eager", "yes"): False,
}
_FREE = ("algo", "proto", "gdr")
_START_SECONDS = {"nccl": 2.5, "torch": 6.5, "gloo": 3.0}  # imports, contexts, communicators
_EACH_SECONDS = 0.05


def points(topology: "Topology", axes: Mapping[str, tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    gpus = [node for node in topology.of("gpu") if node.get("vendor") == "NVIDIA"]
    asked = axes["engine"] != AXES["engine"].values
    on_gpus = [name for name in axes["engine"] if name != "gloo"]
    found = list(_on_gpus(topology, axes, gpus, on_gpus)) if on_gpus and len(gpus) > 1 else []
    yield from found
    if "gloo" in axes["engine"] and "socket" in axes["transport"] and (asked or len(gpus) < 2):
        yield from _on_cpus(topology, axes)
    elif not found:
        raise Unavailable(_why_not(axes, gpus))


def measure(point: dict[str, Any], sampler: "Sampler") -> Samples:
    if point["engine"] == "gloo":
        from iobench.collectives import hosts

        return hosts.measure(point, sampler)
    from iobench.collectives import gpus

    return gpus.measure(point, sampler, _gpu_names(sampler.topology)[: point["ranks"] // point["nodes"]])


def setup_seconds(points: list[dict[str, Any]]) -> float:
    """Return roughly what one launch takes beside measuring: groups of processes, buffers and checks of each point."""
    names = ("engine", "transport", "ranks", "nodes", *_FREE)
    groups = itertools.groupby(points, key=lambda point: [point.get(name) for name in names])
    started = sum(_START_SECONDS[engine] + 0.1 * ranks for (engine, _, ranks, *_), _ in groups)
    return float(started + _EACH_SECONDS * len(points))


def _on_cpus(topology: "Topology", axes: Mapping[str, tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    from iobench.collectives.gloo import ITEM_NBYTES, MOST_RANKS

    if any(axes[name] != AXES[name].values for name in ("op", "dtype", "inplace", "mode", *_FREE)):
        return  # gloo has one way to do it, and the user asks for others
    cpus = sum(1 for cpu in topology.of("cpu") if cpu.get("allowed", True))
    chosen = axes["ranks"] != AXES["ranks"].values
    counts = [(nodes, ranks) for nodes in _nodes(topology, axes) for ranks in axes["ranks"] if ranks % nodes == 0]
    sizes = axes["nbytes"] if axes["nbytes"] != _SIZES else [n for n in _SIZES if n <= _HOST_MOST]
    for (nodes, ranks), placement, nbytes in itertools.product(counts, axes["placement"], sizes):
        if ranks > MOST_RANKS:
            raise UserError(f"-a ranks={ranks}: at most {MOST_RANKS} ranks keep the sums exact; choose fewer")
        if nbytes % ITEM_NBYTES:
            raise UserError(f"-a nbytes={nbytes} is no whole number of float32: choose a multiple of {ITEM_NBYTES}")
        if chosen or ranks <= min(max(cpus, 2) * nodes, _HOST_MOST_RANKS):
            yield {
                "engine": "gloo", "transport": "socket", "op": "all_reduce", "ranks": ranks, "nodes": nodes,
                "dtype": "float32", "inplace": "yes", "placement": placement, "nbytes": nbytes,
            }  # fmt: skip


def _on_gpus(
    topology: "Topology", axes: Mapping[str, tuple[Any, ...]], gpus: "list[Node]", engines: list[str]
) -> Iterator[dict[str, Any]]:
    """Yield points group by group: what differs in transport, engine or the like needs new processes."""
    transports = [name for name in axes["transport"] if name in _transports(topology, gpus)]
    counts = [(nodes, n) for nodes in _nodes(topology, axes) for n in _counts(axes["ranks"], len(gpus), nodes)]
    free = itertools.product(*(axes[name] for name in _FREE))
    for transport, (nodes, ranks), (algo, proto, gdr) in itertools.product(transports, counts, list(free)):
        if (gdr != "auto" and transport != "ib") or (nodes > 1 and transport not in ("socket", "ib")):
            continue
        for engine, mode, inplace in _ways(axes, engines):
            about = {"engine": engine, "transport": transport, "ranks": ranks, "nodes": nodes}
            about |= {"inplace": inplace, "mode": mode}
            about |= {"algo": algo, "proto": proto} | ({"gdr": gdr} if transport == "ib" else {})
            for op, dtype in itertools.product(axes["op"], axes["dtype"]):
                yield from _sizes({**about, "op": op, "dtype": dtype}, axes)


def _sizes(about: dict[str, Any], axes: Mapping[str, tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    from iobench.collectives import torch
    from iobench.collectives.ops import OPS, Work

    op, ranks, dtype, inplace = about["op"], about["ranks"], about["dtype"], about["inplace"] == "yes"
    if inplace and not OPS[op].inplace:
        return
    if about["engine"] == "torch" and not torch.supports(op, dtype, inplace):
        return
    given = axes["nbytes"] != _SIZES
    whole = given or _PLAN.get((about["engine"], about["mode"], about["inplace"]), True)
    for nbytes in axes["nbytes"] if whole else _COARSE:
        if given:
            Work.of(op, nbytes, dtype, ranks, inplace)  # a size the user chose is refused, not left out
        elif nbytes > _GPU_MOST[about["transport"]] or not OPS[op].whole(nbytes, ranks, dtype):
            continue
        yield {**about, "nbytes": nbytes}


def _ways(axes: Mapping[str, tuple[Any, ...]], engines: list[str]) -> list[tuple[str, str, str]]:
    """Return engine, mode and in place as the plan has them; all combinations where the user asks for none of those."""
    asked = list(itertools.product(engines, axes["mode"], axes["inplace"]))
    planned = [way for way in _PLAN if way in asked]
    return planned or asked


def _transports(topology: "Topology", gpus: "list[Node]") -> list[str]:
    """Return the ways that this machine has between its GPUs."""
    linked = any(link.kind == "nvlink" for gpu in gpus for link in topology.links if gpu.id in (link.a, link.b))
    peers = any(state for gpu in gpus for state in (gpu.get("peers") or {}).values())
    ports = any(port.get("state") == "ACTIVE" and not port.get("software") for port in topology.of("port"))
    found = ["nvlink"] if linked else ["pcie"] if peers else []
    return [*found, "shm", "socket", *(["ib"] if ports else [])]


def _nodes(topology: "Topology", axes: Mapping[str, tuple[Any, ...]]) -> tuple[int, ...]:
    job = int(topology.facts.get("nodes", 1))
    return axes["nodes"] if axes["nodes"] != AXES["nodes"].values else (job,)


def _counts(asked: tuple[int, ...], gpus: int, nodes: int) -> list[int]:
    """Return numbers of ranks: equal parts for all nodes, one per GPU at most."""
    if asked != AXES["ranks"].values:
        return [count for count in asked if count <= gpus * nodes and count % nodes == 0]
    each = {count for count in (2, 4, 8, 16) if count <= gpus} | {gpus}
    return sorted(nodes * count for count in (each if nodes == 1 else {gpus}))


def _gpu_names(topology: "Topology") -> list[str]:
    return [node.id for node in topology.of("gpu") if node.get("vendor") == "NVIDIA"]


def _why_not(axes: Mapping[str, tuple[Any, ...]], gpus: "list[Node]") -> str:
    if len(gpus) < 2:
        return f"needs two NVIDIA GPUs: the topology shows {len(gpus) or 'none'}"
    if axes["transport"] != AXES["transport"].values:
        return f"needs the transport {' or '.join(axes['transport'])} between GPUs: the topology shows none"
    return f"needs at least {min(axes['ranks'])} GPUs and a form that the engine offers: the topology has {len(gpus)}"
