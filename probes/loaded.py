"""Memory under load: the latency of a pointer chase against the bandwidth that other cores achieve meanwhile.

Path: between the memory of one NUMA node and its cores. One thread chases pointers, as in the memory probe; the
others, all on CPUs of the same node, go through slices of their own and read (``read``), read and modify in
place (``3:1``, ``2:1``, ``1:1``: reads to writes on the bus) or store past the caches (``write``). Between two
chunks of 512 bytes each of them does ``delay`` multiplications that wait for each other: 0 is all the load they
can make, the longest delay is an idle memory. The curve's x axis is what they achieved, not what was asked.
A node with a single CPU is loaded from the CPUs of other nodes (``loaders=far``, and the path says so): all memory is
bound to the node of the chase then, so what they move crosses the links between nodes as well.

Clock: CLOCK_MONOTONIC in the chasing thread, before and after each sample. ``sample=mean``: a sample is many
loads. ``sample=one``: each load by itself, for the tail (a refresh, an ECC scrub, a neighbour on the machine);
it then holds one reading of the clock, whose own time is in the evidence.

Bytes: what the load threads moved is counted by themselves, in the same stretch of time as the samples:
``load_nbytes`` in ``load_seconds``, both in the evidence beside ``load_bytes_per_s``. A chunk modified in place
counts twice, as it crosses the bus twice; no line is fetched only to be overwritten.

Not in the number: allocation, first touch, compilation, verification. Running it takes twice the memory of
``nbytes`` and all CPUs of a NUMA node for some milliseconds at a time. Every word and every sum of the load threads is
verified after the samples, and every place where the chase stopped.

Cross-checked in one run with the memory probe: the idle end against its chase, the bandwidth at delay 0
against its ``read`` with as many threads (``iobench crosscheck loaded``).
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from iobench.errors import Unavailable
from iobench.probe import Axis, Plot, Samples
from iobench.units import KIB, MIB

if TYPE_CHECKING:
    from iobench.kernels.loading import Loading, Stage
    from iobench.timing.sampler import Sampler, Timed
    from iobench.topology.graph import Topology

_SIZES = tuple(4 * KIB << n for n in range(22))  # 4 KiB to 8 GiB
_IDLE = 65536  # some 90 us between two chunks
_NEAR, _FAR = "near", "far"

AXES = {
    "mix": Axis(
        ("read", "2:1", "write"),
        "reads to writes on the bus: reads alone, lines modified in place, or stores past the caches alone",
        choices=("read", "3:1", "2:1", "1:1", "write"),
    ),
    "delay": Axis((0, 16, 64, 128, 256, 1024, _IDLE), "dependent multiplications between two chunks of 512 bytes"),
    "sample": Axis(("mean", "one"), "time many loads together, or each by itself for the tail (idle and full load)"),
    "threads": Axis(
        tuple(range(1, 1024)), "threads that make the load; unless given all other CPUs of their nodes", minimum=1
    ),
    "loaders": Axis(
        (_NEAR, _FAR),
        "where the load's threads run: on the chase's NUMA node, or on other nodes; unless given far only where there "
        "is one CPU",
    ),
    "pages": Axis(("huge",), "huge pages or base pages", choices=("base", "huge")),
    "nbytes": Axis(
        _SIZES,
        "the chase's footprint, and that of all load threads; unless given 4 last-level caches",
        "bytes",
        minimum=4 * KIB,
    ),
}
MODELS = ({"kind": "loaded", "where": {"sample": "mean"}, "size": "evidence.load_bytes_per_s", "over": ("delay",)},)
LAUNCHES = 3
POINT_SECONDS = 0.05
PLOTS = (
    Plot(
        "Latency of a load against the bandwidth that others achieve",
        x="evidence.load_bytes_per_s",
        y="latency",
        series=("mix", "loaders"),
        where={"sample": "mean"},
        log_x=False,
        over=("delay",),
        x_name="bandwidth of the other cores",
    ),
    Plot("A single load: idle and under load", "delay", "latency", where={"sample": "one"}, log_x=False),
)


_CACHES_OVER = 4
_UNKNOWN_CACHE = 32 * MIB
_TAIL_SAMPLES = 2000  # P99.9 needs a thousand
_PRIME = 1_000_003


def points(topology: "Topology", axes: Mapping[str, tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    sizes = [_footprint(topology)] if axes["nbytes"] == AXES["nbytes"].values else axes["nbytes"]
    ends = {min(axes["delay"]), max(axes["delay"])}
    for nbytes, pages, (loaders, count) in itertools.product(sizes, axes["pages"], _threads(topology, axes)):
        for mix, sample, delay in itertools.product(axes["mix"], axes["sample"], axes["delay"]):
            if sample == "mean" or (mix == axes["mix"][0] and delay in ends):
                yield {
                    "mix": mix, "delay": delay, "sample": sample, "threads": count, "pages": pages, "nbytes": nbytes,
                    **loaders,
                }  # fmt: skip


def _threads(topology: "Topology", axes: Mapping[str, tuple[Any, ...]]) -> list[tuple[dict[str, str], int]]:
    """Return where the load may come from (only ``far`` is a point's own word) and by how many threads."""
    near, far = _cpus(topology)
    if near + far < 2:
        raise Unavailable(f"needs two CPUs, one to chase and one to load: this process may use {near + far}")
    wanted = axes["loaders"]
    if wanted == AXES["loaders"].values:
        wanted = (_NEAR,) if near > 1 else (_FAR,)
    most = {_NEAR: near - 1, _FAR: far}
    given = axes["threads"] != AXES["threads"].values
    found = [
        ({"loaders": _FAR} if where == _FAR else {}, count)
        for where in wanted
        for count in (axes["threads"] if given else [most[where]])
        if 0 < count <= most[where]
    ]
    if not found:
        counts = f"{min(axes['threads'])} " if given else ""
        raise Unavailable(
            f"needs {counts}CPUs for the load beside that of the chase: this process may use {near - 1} of the same "
            f"NUMA node and {far} of others"
        )
    return found


def _cpus(topology: "Topology") -> tuple[int, int]:
    """Return how many CPUs this process may use in the NUMA node of the first of them, and in other nodes."""
    cpus = [node for node in topology.of("cpu") if node.get("allowed") is not False]
    near = sum(node.get("numa") == cpus[0].get("numa") for node in cpus)
    return near, len(cpus) - near


def _footprint(topology: "Topology") -> int:
    """Return the least power of two that is not below four last-level caches, within the axis."""
    caches = [node for node in topology.of("cache") if node.get("level") and node.get("nbytes")]
    level = max((node.get("level") for node in caches), default=0)
    last = max((int(node.get("nbytes")) for node in caches if node.get("level") == level), default=_UNKNOWN_CACHE)
    return next((nbytes for nbytes in _SIZES if nbytes >= _CACHES_OVER * last), _SIZES[-1])


def measure(point: dict[str, Any], sampler: "Sampler") -> Samples:
    from iobench.kernels.loading import Loading

    stage = _staged(point, sampler)
    work = Loading.over(stage.area.data, point["mix"], point["delay"], stage.chase, stage.team)
    loads = 1 if point["sample"] == "one" else stage.loads
    timed = _patient(sampler, point).collect(lambda count: [work.take(loads, count)], ops=loads)
    work.check()
    nbytes, seconds = work.moved_during(len(timed.seconds[0]))
    about = {"load_nbytes": nbytes, "load_seconds": seconds, "load_bytes_per_s": nbytes / seconds}
    about["loads_per_sample"] = loads
    if point["sample"] == "one":
        about["clock_seconds"] = stage.clock_seconds
    return _samples(point, timed, work, stage, about, sampler.topology)


def _samples(
    point: Mapping[str, Any],
    timed: "Timed",
    work: "Loading",
    stage: "Stage",
    about: Mapping[str, Any],
    topology: "Topology",
) -> Samples:
    from statistics import median

    from iobench import pageplaces
    from iobench.kernels.chase import LINE
    from iobench.placement import Placement

    cpus = (*stage.chase.team.cpus, *stage.team.cpus)
    affinity = [*stage.chase.team.affinity(), *stage.team.affinity()]
    places = [pageplaces.nodes(words) for words in (stage.chase.words, *work.parts)]
    proof = Placement(topology, cpus, affinity, stage.pages, places, point["pages"])
    far = f", the load from CPUs of other nodes than CPU {cpus[0]}'s" if "loaders" in point else ""
    beside = about["load_bytes_per_s"] * median(timed.seconds[0]) / timed.ops
    return Samples(
        timed=timed,
        nbytes=point["nbytes"],
        moved=LINE,
        moved_rule="one 64-byte line per load; what the load threads moved meanwhile: load_nbytes in load_seconds",
        quantity="latency",
        mode="dependent loads" if point["sample"] == "mean" else "single loads",
        verified=True,
        path=proof.path + far,
        proven=proof.proven,
        evidence={**proof.evidence, **about},
        legs=proof.legs(LINE + round(beside), 2 * point["nbytes"]),
        notes=[]
        if about["load_nbytes"]
        else ["the load's threads got no CPU meanwhile: this is no point of the curve"],
    )


def _staged(point: Mapping[str, Any], sampler: "Sampler") -> "Stage":
    """Return the threads, the chase and the load's memory of the last point if they suit this one too."""
    from iobench import keep
    from iobench.kernels import loading
    from iobench.kernels.team import neighbours, strangers

    numa = {int(cpu.id.partition(":")[2]): cpu.get("numa") for cpu in sampler.topology.of("cpu")}
    cpus = (strangers if "loaders" in point else neighbours)(point["threads"] + 1, numa)
    node = numa[cpus[0]] if "loaders" in point else None
    stages: keep.Kept[Stage] = sampler.shared("stages", keep.kept)
    seed = sampler.launch * _PRIME + point["nbytes"]
    key = (point["nbytes"], point["pages"], tuple(cpus), node)
    return stages.get(key, lambda: loading.stage(point["nbytes"], point["pages"], cpus, seed, node))


def _patient(sampler: "Sampler", point: Mapping[str, Any]) -> "Sampler":
    """Return the sampler; for single loads one that takes as many as a tail needs."""
    if point["sample"] == "mean":
        return sampler
    return dataclasses.replace(sampler, min_samples=_TAIL_SAMPLES, max_samples=_TAIL_SAMPLES)
