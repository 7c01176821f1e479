"""NUMA: copies between GPUs and the memory of every node, bound and unbound; without a GPU, from CPU nodes to memory.

Path: with GPUs, between pinned memory of node ``mem`` and a GPU (``gpus=0``) or all GPUs of a socket at once
(``gpus=socket0``), issued by a thread on the CPUs of node ``cpu``: ``h2d`` goes to the GPU, ``d2h`` comes from it. One
GPU alone often hides NUMA, because its link is narrower than what joins the sockets: hence all of a socket together,
and small messages, whose time shows the distance. Without a GPU, between the memory of node ``mem`` and the CPUs of
node ``cpu``: ``chase`` is the latency of dependent loads by one CPU, ``read``, ``write`` and ``copy`` are streams by
all of them. ``unbound`` leaves the thread where the scheduler puts it and the memory where that first touches it.

Clock: ``h2d`` and ``d2h`` up to 64 KiB: the host's clock from the call to the copy's completion (all GPUs of a socket:
from the first call until the last one's copy has arrived); larger ones: CUDA events around back-to-back copies that are
enqueued before the first may start. ``chase`` and streams: CLOCK_MONOTONIC inside the compiled loop, as in the memory
probe.

Placement: each buffer is a mapping of its own, bound by mbind before anything touches it, and pinned by
cudaHostRegister afterwards; no allocator's cache is in between. Where its pages lie is asked page by page
(move_pages) after they are pinned. Memory that came to lie elsewhere is no result; where nothing tells, the path is
unproven. Nodes that the control group or a seccomp filter forbids are skipped with that reason.

Not in the number: allocation, binding, pinning, filling, verification. Running it takes up to 2 GiB on a node, and with
GPUs as much of theirs. Every byte that was copied, every sum and every place where a chase stopped is verified.

Cross-checked: its kernels and copies are those of the memory and PCIe probes (``iobench crosscheck dram``, ``gpu``).
"""

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from iobench.errors import Unavailable
from iobench.probe import Axis, Matrix, Plot, Samples
from iobench.record import Leg
from iobench.units import KIB, MIB

if TYPE_CHECKING:
    from iobench.gpu.bound import Lane
    from iobench.kernels.team import Team
    from iobench.mempolicy import Placed
    from iobench.timing.sampler import Sampler, Timed
    from iobench.topology.graph import Topology

_UNBOUND = "unbound"
_NODES = (*range(1024), _UNBOUND)
_GPU_OPS, _HOST_OPS = ("h2d", "d2h"), ("chase", "read", "copy")
_SIZES = tuple(4 * KIB << n for n in range(20))  # 4 KiB to 2 GiB

AXES = {
    "op": Axis(
        (*_GPU_OPS, *_HOST_OPS),
        "copies to and from GPUs; without one, latency and bandwidth between CPU nodes and memory nodes",
        choices=(*_GPU_OPS, *_HOST_OPS, "write"),
    ),
    "mem": Axis(_NODES, "NUMA node whose memory is used, or unbound: where the first touch puts it"),
    "cpu": Axis(_NODES, "NUMA node whose CPUs do it or issue the copies, or unbound: where the scheduler puts them"),
    "gpus": Axis(
        (*map(str, range(64)), *(f"socket{n}" for n in range(16))),
        "a GPU by its number in the topology, or all GPUs of a socket together",
    ),
    "pages": Axis(("huge",), "pages of the host's matrix: huge or base ones", choices=("base", "huge")),
    "nbytes": Axis(
        _SIZES,
        "a message, or the working set; unless given 4 KiB and 64 MiB, or 4 last-level caches",
        "bytes",
        minimum=4 * KIB,
    ),
}
LAUNCHES = 3
POINT_SECONDS = 0.06
_WAYS = (("h2d", "From a memory node to a GPU"), ("d2h", "From a GPU to a memory node"))
_GPU_SERIES, _HOST_SERIES = ("op", "cpu", "gpus"), ("op", "cpu")
PLOTS = (
    *(Plot(f"{title}: bandwidth", "mem", "bandwidth", _GPU_SERIES, {"op": op}, log_x=False) for op, title in _WAYS),
    Plot("Reads by a CPU node from a memory node", "mem", "bandwidth", _HOST_SERIES, {"op": "read"}, log_x=False),
    Plot("Copies by a CPU node within a memory node", "mem", "bandwidth", _HOST_SERIES, {"op": "copy"}, log_x=False),
    Plot("Latency of a load by a CPU node", "mem", "latency", _HOST_SERIES, {"op": "chase"}, log_x=False),
)
_LARGE, _LITTLE = {"nbytes": 64 * MIB}, {"nbytes": 4 * KIB}
MATRICES = (
    *(Matrix(f"{title}: bandwidth", "mem", "gpus", "bandwidth", {"op": op, **_LARGE}) for op, title in _WAYS),
    *(Matrix(f"{title}: a small copy's time", "mem", "gpus", "latency", {"op": op, **_LITTLE}) for op, title in _WAYS),
    Matrix("Latency of a load by a CPU node from a memory node", "cpu", "mem", "latency", {"op": "chase"}),
    Matrix("Bandwidth of reads by a CPU node from a memory node", "cpu", "mem", "bandwidth", {"op": "read"}),
    Matrix("Bandwidth of copies by a CPU node within a memory node", "cpu", "mem", "bandwidth", {"op": "copy"}),
)

_MESSAGES = (4 * KIB, 64 * MIB)
_SMALL = 64 * KIB  # up to here the headline is a call's time, not a rate
_CACHES_OVER = 4
_UNKNOWN_CACHE = 32 * MIB
_SAMPLES = 34  # in each of three launches: P99 of all together needs a hundred
_SMALL_SAMPLES = 334
_PRIME = 1_000_003
_ONE_NODE = "one NUMA node proves nothing about NUMA, only that binding changes nothing: run it where there are more"


@dataclasses.dataclass(frozen=True)
class _Nodes:
    """Memory nodes and nodes with CPUs that this process may use, and those of each that it may not."""

    memory: list[int]
    cpus: list[int]
    memory_forbidden: list[int]
    cpus_forbidden: list[int]
    bindable: bool

    @property
    def single(self) -> bool:
        return len({*self.memory, *self.memory_forbidden}) <= 1


def points(topology: "Topology", axes: Mapping[str, tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    nodes = _nodes(topology)
    if not nodes.cpus:
        raise Unavailable("needs a NUMA node with CPUs that this process may use: the topology shows none")
    pairs = _pairs(nodes, axes)
    if not pairs:
        raise Unavailable(
            f"needs other nodes: memory is on {nodes.memory}, CPUs are on {nodes.cpus}, as it stands here"
        )
    groups = _groups(topology, axes)
    asked = set(axes["op"]) != {*_GPU_OPS, *_HOST_OPS}
    if set(axes["op"]) <= set(_GPU_OPS) and not groups:
        raise Unavailable("needs an NVIDIA GPU: the topology shows none of those that are asked for")
    for (mem, cpu), op in itertools.product(pairs, axes["op"]):
        if op in _GPU_OPS:
            yield from _gpu_points(op, mem, cpu, groups, axes)
        elif asked or not groups:
            for nbytes, pages in itertools.product(_footprints(op, topology, axes), axes["pages"]):
                yield {"op": op, "mem": mem, "cpu": cpu, "pages": pages, "nbytes": nbytes}


def _gpu_points(
    op: str, mem: Any, cpu: Any, groups: Sequence[str], axes: Mapping[str, tuple[Any, ...]]
) -> Iterator[dict[str, Any]]:
    sizes = _MESSAGES if axes["nbytes"] == AXES["nbytes"].values else axes["nbytes"]
    for gpus, nbytes in itertools.product(groups, sizes):
        yield {"op": op, "mem": mem, "cpu": cpu, "gpus": gpus, "nbytes": nbytes}


def _nodes(topology: "Topology") -> _Nodes:
    allowed = {cpu.id for cpu in topology.of("cpu") if cpu.get("allowed") is not False}
    numa = {int(node.id.partition(":")[2]): node for node in topology.of("numa")}
    memory = [n for n in numa if topology.node(f"mem:{n}") and numa[n].get("has_memory") is not False]
    cpus = [n for n, node in numa.items() if node.get("cpus")]
    mine = [n for n in cpus if any(f"cpu:{cpu}" in allowed for cpu in numa[n].get("cpus"))]
    may = [n for n in memory if numa[n].get("allowed") is not False]
    return _Nodes(
        memory=may,
        cpus=mine,
        memory_forbidden=[n for n in memory if n not in may],
        cpus_forbidden=[n for n in cpus if n not in mine],
        bindable=not any(node.get("assumed") for node in numa.values()),
    )


def _pairs(nodes: _Nodes, axes: Mapping[str, tuple[Any, ...]]) -> list[tuple[Any, Any]]:
    """Return (memory node, CPU node): all bound pairs, one for each node that is forbidden, and the unbound one."""
    bound = list(itertools.product(nodes.memory, nodes.cpus)) if nodes.bindable else []
    if bound:
        bound += [(mem, nodes.cpus[0]) for mem in nodes.memory_forbidden]
        bound += [(nodes.memory[0], cpu) for cpu in nodes.cpus_forbidden]
    wanted = [pair for pair in (*bound, (_UNBOUND, _UNBOUND)) if pair[0] in axes["mem"] and pair[1] in axes["cpu"]]
    if wanted or _UNBOUND not in (*axes["mem"], *axes["cpu"]):
        return wanted
    # the user asks for one end bound and the other not
    ends = [*((mem, _UNBOUND) for mem in nodes.memory), *((_UNBOUND, cpu) for cpu in nodes.cpus)]
    return [(mem, cpu) for mem, cpu in ends if mem in axes["mem"] and cpu in axes["cpu"] and nodes.bindable]


def _groups(topology: "Topology", axes: Mapping[str, tuple[Any, ...]]) -> list[str]:
    """Return each GPU, and each socket that is known to have more than one of them."""
    gpus = [node for node in topology.of("gpu") if node.get("vendor") == "NVIDIA"]
    found = [node.id.partition(":")[2] for node in gpus]
    sockets = [_socket(topology, node.get("numa")) for node in gpus]
    found += [f"socket{n}" for n in sorted({n for n in sockets if n is not None}) if sockets.count(n) > 1]
    return [gpus for gpus in found if gpus in axes["gpus"]]


def _socket(topology: "Topology", numa: int | None) -> int | None:
    node = topology.node(f"numa:{numa}")
    sockets = node.get("sockets") if node else None
    return int(sockets[0]) if sockets and len(sockets) == 1 else None


def _footprints(op: str, topology: "Topology", axes: Mapping[str, tuple[Any, ...]]) -> Sequence[int]:
    """Return the working sets: more than the caches that the op's CPUs share, unless the user says."""
    if axes["nbytes"] != AXES["nbytes"].values:
        return axes["nbytes"]
    caches = [node for node in topology.of("cache") if node.get("level") and node.get("nbytes")]
    level = max((node.get("level") for node in caches), default=0)
    last = [int(node.get("nbytes")) for node in caches if node.get("level") == level] or [_UNKNOWN_CACHE]
    nodes = max(sum(bool(node.get("cpus")) for node in topology.of("numa")), 1)
    wanted = _CACHES_OVER * (max(last) if op == "chase" else max(sum(last) // nodes, max(last)))
    return [next((size for size in _SIZES if size >= wanted), _SIZES[-1])]


def measure(point: dict[str, Any], sampler: "Sampler") -> Samples:
    cpus = _cpus(sampler.topology, point["cpu"])
    if point["op"] in _GPU_OPS:
        result = _gpu_copy(point, sampler, cpus)
    elif point["op"] == "chase":
        result = _chase(point, sampler, cpus)
    else:
        result = _stream(point, sampler, cpus)
    nodes = _nodes(sampler.topology)
    if nodes.single:
        result.notes.append(_ONE_NODE)
    if not nodes.bindable:
        result.notes.append("the kernel shows no NUMA nodes: nothing was bound")
    result.evidence |= {"one_node": nodes.single}
    return result


def _cpus(topology: "Topology", node: Any) -> list[int]:
    """Return the CPUs of the node that this process may use, one hardware thread of each core first."""
    from iobench.kernels.team import spread
    from iobench.numabound import cpus_of

    return spread(cpus_of(topology, None if node == _UNBOUND else node))


def _node(value: Any) -> int | None:
    return None if value == _UNBOUND else int(value)


def _chase(point: dict[str, Any], sampler: "Sampler", cpus: Sequence[int]) -> Samples:
    from iobench import keep, numabound
    from iobench.kernels.chase import LINE
    from iobench.kernels.chasing import Chasing
    from iobench.kernels.team import Team

    node, nbytes = _node(point["mem"]), point["nbytes"]
    places: keep.Kept[Any] = sampler.shared("memory", keep.kept)
    seed = sampler.launch * _PRIME + nbytes
    with Team(cpus[:1], pin=point["cpu"] != _UNBOUND) as team:
        key = ("chase", node, nbytes, point["pages"])
        chain = places.get(key, lambda: numabound.chain(nbytes, point["pages"], node, seed, team))
        work = Chasing(chain.words, chain.order, team)
        loads = work.settle()
        timed = _patient(sampler).collect(lambda count: [work.take(loads, count)], ops=loads)
        about = {"loads_per_sample": loads, "seed": seed}
        return _host_samples(point, sampler, team, timed, chain, (LINE, "one 64-byte line per load"), about)


def _stream(point: dict[str, Any], sampler: "Sampler", cpus: Sequence[int]) -> Samples:
    from iobench import keep, numabound
    from iobench.kernels.streaming import Streaming
    from iobench.kernels.team import Team

    node, nbytes, op = _node(point["mem"]), point["nbytes"], point["op"]
    places: keep.Kept[Any] = sampler.shared("memory", keep.kept)
    with Team(cpus, pin=point["cpu"] != _UNBOUND) as team:
        # the threads of the widest node need the most room
        key = ("stream", node, nbytes, point["pages"], len(cpus))
        area = places.get(key, lambda: numabound.streamed(nbytes, point["pages"], node, team))
        work = Streaming.over(area.buffer.data, op, op != "read", nbytes, team)
        work.fill()
        work.settle()
        timed = _patient(sampler).collect(lambda count: [work.take(count)], ops=work.repeats)
        work.check()
        about = {"repeats": work.repeats, "bus_nbytes": work.bus_nbytes}
        rule = "bytes that the kernel reads and writes; stores go past the caches"
        return _host_samples(point, sampler, team, timed, area, (work.moved, rule), about)


def _host_samples(
    point: Mapping[str, Any],
    sampler: "Sampler",
    team: "Team",
    timed: "Timed",
    area: Any,
    moved: tuple[int, str],
    about: Mapping[str, Any],
) -> Samples:
    from iobench import hostmem, mempolicy
    from iobench.placement import Placement

    latency, bound = point["op"] == "chase", point["cpu"] != _UNBOUND
    placed: Placed = mempolicy.placed(area.buffer.data)
    _require(point["mem"], placed)
    pages = hostmem.inspect(area.buffer)
    proof = Placement(sampler.topology, team.cpus, team.affinity(), pages, [placed.pages or None] * len(team.cpus), "")
    pinned = proof.pinned if bound else True
    return Samples(
        timed=timed,
        nbytes=point["nbytes"],
        moved=moved[0],
        moved_rule=moved[1],
        quantity="latency" if latency else "bandwidth",
        mode="dependent loads" if latency else "streams",
        verified=True,
        path=f"memory of {placed.text()} ({_asked(point['mem'])}), CPUs {_asked(point['cpu'])}",
        proven=placed.known and pinned and pages.kind() == point["pages"],
        evidence={
            **about,
            **_shown(placed),
            "cpus": list(team.cpus),
            "pinned": proof.pinned,
            "pages": pages.evidence(),
        },
        legs=_legs(proof.legs(moved[0], point["nbytes"]), bound),
    )


def _legs(legs: Sequence[Leg], bound: bool) -> list[Leg]:
    """Return the bytes' ways; of threads that run anywhere only the one out of the memory, whoever reads it."""
    if bound:
        return list(legs)
    memory = [leg for leg in legs if leg.src.startswith("mem:")]
    return [dataclasses.replace(leg, dst=f"numa:{leg.src.partition(':')[2]}") for leg in memory]


def _require(mem: Any, placed: "Placed") -> None:
    """Raise Unavailable where memory that was bound is known to lie elsewhere: its number would be another node's."""
    if mem != _UNBOUND and placed.known and not placed.on((mem,)):
        raise Unavailable(f"memory was bound to NUMA node {mem} and came to lie elsewhere ({placed.text()}): no result")


def _shown(placed: "Placed") -> dict[str, Any]:
    pages = {str(node): count for node, count in sorted(placed.pages.items())}
    return {"pages_on_node": pages, "pages_unknown": placed.unknown, "placement_by": placed.method}


def _asked(node: Any) -> str:
    return _UNBOUND if node == _UNBOUND else f"bound to node {node}"


def _patient(sampler: "Sampler", least: int = _SAMPLES) -> "Sampler":
    """Return the sampler with as many samples as the tails of three launches need."""
    return dataclasses.replace(sampler, min_samples=max(sampler.min_samples, least))


def _gpu_copy(point: dict[str, Any], sampler: "Sampler", cpus: Sequence[int]) -> Samples:
    from iobench import gpu, numabound
    from iobench.gpu import bound

    gpu.require()
    numbers = _members(sampler.topology, point["gpus"])
    with numabound.running_on(cpus), contextlib.ExitStack() as stack:
        lanes = [
            stack.enter_context(bound.lane(gpu.at(f"gpu:{n}"), point["op"], point["nbytes"], _node(point["mem"])))
            for n in numbers
        ]
        small = point["nbytes"] <= _SMALL
        with gpu.watch([lane.device for lane in lanes]) as watch:
            timed = bound.timed(_patient(sampler, _SMALL_SAMPLES if small else _SAMPLES), lanes, small)
        for lane in lanes:
            lane.copy.verify(f"{point['op']} copy of {point['nbytes']} bytes")
            _require(point["mem"], lane.placed)
        return _gpu_samples(point, timed, lanes, watch, small)


def _members(topology: "Topology", gpus: str) -> list[str]:
    if gpus.isdigit():
        return [gpus]
    found = [node for node in topology.of("gpu") if f"socket{_socket(topology, node.get('numa'))}" == gpus]
    return [node.id.partition(":")[2] for node in found]


def _gpu_samples(point: Mapping[str, Any], timed: "Timed", lanes: "Sequence[Lane]", watch: Any, small: bool) -> Samples:
    legs = [leg for lane in lanes for leg in lane.legs(point["op"], watch)]
    return Samples(
        timed=timed,
        nbytes=point["nbytes"],
        moved=point["nbytes"] * len(lanes),
        moved_rule="each byte of a message once per GPU, in the one direction",
        quantity="latency" if small else "bandwidth",
        mode="host-call" if small else "events",
        verified=True,
        path=", ".join(
            f"{lane.placed.text()} ({_asked(point['mem'])}) and {lane.device.node or lane.device.name}"
            for lane in lanes
        )
        + f" over PCIe, issued by a thread {_asked(point['cpu'])}",
        proven=len(legs) == len(lanes) and all(lane.placed.known for lane in lanes),
        evidence={"host_pages": [_shown(lane.placed) for lane in lanes], "gpus": watch.evidence()},
        legs=legs,
        notes=watch.limit_notes,
        suspect=watch.suspect,
    )
