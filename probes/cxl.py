"""CXL memory: latency, gathers of KV blocks, streams and read/write mixes, beside local memory.

Path: from memory behind CXL to the cores of the nearest NUMA node, in each form that Linux offers it: a NUMA
node without CPUs (``node``), pages of it in turn with local ones (``interleave``), a mapped device (``devdax``:
what the device holds is OVERWRITTEN, so it is measured only when asked for). ``local`` is the nearest node's own
memory, for comparison. ``stand-in`` is the memory of another socket: asked for only, labelled so, no CXL. A node
without CPUs that no CXL region is known to back is measured and labelled so. Where every page lies is read back
page by page (move_pages); for a mapped device, which move_pages does not know, from the process's own mappings.

Kernels: ``chase`` follows a random cycle, each load waiting for the one before. ``gather`` copies whole KV blocks
in the order of a random block table into local memory; 16 tokens x 8 heads x 128 x 2 bytes are 32 KiB of keys or
values of one layer, 18 KiB a block of latent attention (16 x 576 x 2). ``read``, ``triad`` (two reads to a write),
``copy`` (one to one) and ``write`` stream past the caches: CXL links are full duplex, so mixes should exceed
``read``; on DRAM, whose bus turns round, they don't.

``loaded`` is the chase while the node's other CPUs load the same memory at a set pace (``mix``, ``delay``); where it
has one CPU only, those of other nodes do, and the point says so.

Clock: CLOCK_MONOTONIC inside the compiled loop of each pinned thread, last end less first start, as in the
memory probe. Not in the number: mapping, first touch, verification. Bytes: ``gather`` counts what it reads from
the pool; what it writes goes to local memory. On to a GPU (``to=gpu``) the pool is pinned where it lies and
each block is one cudaMemcpyAsync; that clock is the host's, from the first call to the last block's arrival.

Running it takes the working set in the memory that is measured and as much locally, and the nearest node's CPUs.
It brings nothing online and changes no setting: what is there but not usable is named with the command for it.
Every word is verified. Cross-checked against C (gcc -O3 -march=native) on the same pages: ``iobench crosscheck
gather``.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from iobench.errors import Unavailable
from iobench.probe import Axis, Plot, Samples
from iobench.units import KIB, MIB

if TYPE_CHECKING:
    from iobench.cxl.forms import Form
    from iobench.cxl.memory import Proof
    from iobench.kernels.team import Team
    from iobench.timing.sampler import Sampler, Timed
    from iobench.topology.graph import Topology

_SIZES = tuple(1 << octave for octave in range(16, 35))
_STREAMS = ("read", "triad", "copy", "write")

AXES = {
    "form": Axis(
        ("local", "node", "interleave"),
        "local memory, a node without CPUs, both in turn; only when asked: devdax (overwritten!), stand-in",
        choices=("local", "node", "interleave", "devdax", "stand-in"),
    ),
    "kernel": Axis(
        ("chase", "gather", *_STREAMS, "loaded"),
        "chase: latency; gather: KV blocks; read, triad 2:1, copy 1:1, write: streams; loaded: a chase beside a load",
    ),
    "to": Axis(("cpu", "gpu"), "where the bytes go: the nearest CPUs; gather also on to a GPU, pinned where they lie"),
    "gpu": Axis(tuple(range(64)), "the GPU; unless given the first one"),
    "node": Axis(tuple(range(1024)), "NUMA node of the memory; unless given every one there is", choices=None),
    "device": Axis(("",), "devdax device, as in dax0.0; unless given every one there is", free=True),
    "turns": Axis(("equal", "weighted"), "interleave: page by page, or by the system's weights (Linux 6.9 and newer)"),
    "block": Axis((18 * KIB, 32 * KIB, 64 * KIB, 256 * KIB), "gather: bytes of a KV block", unit="bytes", minimum=64),
    "threads": Axis(tuple(range(1, 1025)), "threads on the nearest node; unless given 1 and all its CPUs", minimum=1),
    "mix": Axis(("read", "2:1", "1:1"), "loaded: reads to writes", choices=("read", "3:1", "2:1", "1:1", "write")),
    "delay": Axis((0, 64, 256, 1024, 65536), "loaded: dependent multiplications between two chunks of 512 bytes"),
    "loaders": Axis(("near", "far"), "loaded: CPUs of the nearest node; of other nodes only where that has one CPU"),
    "pages": Axis(("base", "huge"), "base pages or huge ones; unless given base, which every node can give"),
    "nbytes": Axis(_SIZES, "working set; unless given 4 last-level caches", unit="bytes", minimum=64 * KIB),
}
LAUNCHES = 3
POINT_SECONDS = 0.12
MODELS = ({"kind": "loaded", "where": {"kernel": "loaded"}, "size": "evidence.load_bytes_per_s", "over": ("delay",)},)
PLOTS = (
    Plot("KV blocks gathered from CXL memory", "block", "bandwidth",
         ("form", "node", "device", "turns", "to", "threads"), {"kernel": "gather"}),
    Plot("Streams and mixes on CXL memory", "kernel", "bandwidth", ("form", "node", "device", "turns", "threads"),
         log_x=False),
    Plot("Latency of a load from CXL memory beside a load on it", "delay", "latency",
         ("form", "node", "device", "turns", "mix", "threads"), {"kernel": "loaded"}),
    Plot("Latency of a load from CXL memory", "form", "latency", ("node", "device", "turns"), {"kernel": "chase"},
         log_x=False),
)  # fmt: skip

_CACHES_OVER = 4
_UNKNOWN_CACHE = 32 * MIB
_MOST_OF_MEMORY = 8  # the working set that nobody asked for takes at most an eighth of it
_PRIME = 1_000_003


def points(topology: "Topology", axes: Mapping[str, tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    found = [
        point
        for form, turns in itertools.product(_forms(topology, axes), axes["turns"])
        if form.kind == "interleave" or turns == axes["turns"][0]
        for point in _points_of(form, turns, topology, axes)
    ]
    if not found:
        raise Unavailable(_nothing(topology, axes))
    yield from found


def _points_of(
    form: "Form", turns: str, topology: "Topology", axes: Mapping[str, tuple[Any, ...]]
) -> Iterator[dict[str, Any]]:
    pages = axes["pages"][:1] if axes["pages"] == AXES["pages"].values else axes["pages"]
    sizes = [_footprint(form, topology)] if axes["nbytes"] == AXES["nbytes"].values else axes["nbytes"]
    for to, kernel, nbytes, page in itertools.product(axes["to"], axes["kernel"], sizes, pages):
        ways = _ways(kernel, nbytes, _threads(form, axes), axes) if to == "cpu" else _gpu_ways(kernel, topology, axes)
        if kernel == "loaded" and to == "cpu":
            ways = _loaded_ways(form, topology, axes)
        for more in ways:
            yield {**_where(form, turns), "kernel": kernel, "to": to, **more, "pages": page, "nbytes": nbytes}


def _ways(
    kernel: str, nbytes: int, threads: Sequence[int], axes: Mapping[str, tuple[Any, ...]]
) -> Iterator[dict[str, Any]]:
    """Yield the axes of one kernel: the chase has one thread, only the gather has blocks, one at least a thread."""
    if kernel == "chase":
        yield from [{}] if 1 in axes["threads"] else []
    elif kernel == "gather":
        pairs = itertools.product(axes["block"], threads)
        yield from ({"block": block, "threads": count} for block, count in pairs if count * block <= nbytes)
    else:
        yield from ({"threads": count} for count in threads)


def _loaded_ways(form: "Form", topology: "Topology", axes: Mapping[str, tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    """Yield the axes of a chase beside a load: one CPU chases, all that may load (or as many as asked) do."""
    from iobench.cxl.forms import loaders

    cpus, far = loaders(topology, form)
    threads = [len(cpus)] if axes["threads"] == AXES["threads"].values else axes["threads"]
    counts = [count for count in threads if 0 < count <= len(cpus)]
    if ("far" if far else "near") in axes["loaders"]:
        for count, mix, delay in itertools.product(counts, axes["mix"], axes["delay"]):
            yield {"threads": count, "mix": mix, "delay": delay, **({"loaders": "far"} if far else {})}


def _gpu_ways(kernel: str, topology: "Topology", axes: Mapping[str, tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    """Yield the axes of a gather on to a GPU: the first that is there, or those that were asked for."""
    there = [int(gpu.id.partition(":")[2]) for gpu in topology.of("gpu") if gpu.get("vendor") == "NVIDIA"]
    wanted = there[:1] if axes["gpu"] == AXES["gpu"].values else [number for number in there if number in axes["gpu"]]
    if kernel == "gather":
        blocks = [block for block in axes["block"] if block <= min(axes["nbytes"])]
        yield from ({"block": block, "gpu": number} for block, number in itertools.product(blocks, wanted))


def _forms(topology: "Topology", axes: Mapping[str, tuple[Any, ...]]) -> list["Form"]:
    from iobench.cxl import forms

    found = forms.forms(topology)
    if "stand-in" in axes["form"]:
        known = {(form.kind, form.node) for form in found}
        found += [form for form in forms.stand_ins(topology) if (form.kind, form.node) not in known]
    devices = set(axes["device"]) - {""}
    wanted = [form for form in found if form.kind in axes["form"]]
    wanted = [form for form in wanted if form.node is None or form.node in axes["node"]]
    wanted = [form for form in wanted if form.kind != "devdax" or not devices or form.device in devices]
    beyond = found if set(axes["form"]) == {"local"} else wanted
    return wanted if any(form.kind != "local" for form in beyond) else []


def _nothing(topology: "Topology", axes: Mapping[str, tuple[Any, ...]]) -> str:
    """Return why there is nothing to measure: what is there but not usable, each with its command."""
    from iobench.cxl.forms import forms, obstacles

    if "cpu" not in axes["to"] and _forms(topology, axes):
        return "needs an NVIDIA GPU and a gather: the topology shows no such GPU, or -a kernel leaves the gather out"
    kinds = sorted({form.kind for form in forms(topology)} - {"local"})
    if set(axes["form"]) <= {"stand-in", "local"} and "stand-in" in axes["form"]:
        return "needs a second NUMA node with CPUs and memory as a stand-in: the topology shows none"
    if known := "; ".join(obstacles(topology)):
        return f"no CXL memory that can be measured as asked: {known}"
    if kinds:
        return f"no such CXL memory: this machine offers it as {', '.join(kinds)}"
    return "needs CXL memory: the topology shows no NUMA node without CPUs, no CXL device and no dax device"


def _where(form: "Form", turns: str) -> dict[str, Any]:
    if form.kind == "devdax":
        return {"form": form.kind, "device": form.device}
    return {"form": form.kind, "node": form.node, **({"turns": turns} if form.kind == "interleave" else {})}


def _threads(form: "Form", axes: Mapping[str, tuple[Any, ...]]) -> list[int]:
    """Return the thread counts that the nearest node's CPUs allow."""
    most = len(form.cpus)
    if axes["threads"] == AXES["threads"].values:
        return sorted({1, most})
    return [count for count in axes["threads"] if count <= most]


def _footprint(form: "Form", topology: "Topology") -> int:
    """Return four last-level caches, or less where the memory is small."""
    caches = [node for node in topology.of("cache") if node.get("level") and node.get("nbytes")]
    level = max((node.get("level") for node in caches), default=0)
    last = max((int(node.get("nbytes")) for node in caches if node.get("level") == level), default=_UNKNOWN_CACHE)
    most = (form.nbytes or _SIZES[-1] * _MOST_OF_MEMORY) // _MOST_OF_MEMORY
    wanted = next((size for size in _SIZES if size >= _CACHES_OVER * last), _SIZES[-1])
    return max((size for size in _SIZES if size <= min(wanted, most)), default=_SIZES[0])


def measure(point: dict[str, Any], sampler: "Sampler") -> Samples:
    form = _form(point, sampler.topology)
    kernel = point["kernel"]
    if point["to"] == "gpu":
        return _to_gpu(point, form, sampler)
    if kernel == "loaded":
        return _loaded(point, form, sampler)
    with _team(form, point.get("threads", 1)) as team:
        if kernel == "chase":
            return _chase(point, form, team, sampler)
        return _gather(point, form, team, sampler) if kernel == "gather" else _stream(point, form, team, sampler)


def _form(point: Mapping[str, Any], topology: "Topology") -> "Form":
    from iobench.cxl import forms

    every = [*forms.forms(topology), *forms.stand_ins(topology)]
    for form in every:
        if form.kind == point["form"] and (form.device or form.node) == (point.get("device") or point.get("node")):
            return form
    raise Unavailable(f"{point['form']} {point.get('device', point.get('node'))} is no longer there: list it anew")


def _team(form: "Form", threads: int) -> "Team":
    from iobench.kernels.team import Team, spread

    return Team(spread(form.cpus)[:threads])


def _chase(point: dict[str, Any], form: "Form", team: "Team", sampler: "Sampler") -> Samples:
    from iobench.cxl.memory import opened
    from iobench.kernels.chase import LINE
    from iobench.kernels.chasing import Chasing

    seed = sampler.launch * _PRIME + point["nbytes"]
    with opened(form, point["nbytes"], point["pages"], point.get("turns", "equal")) as memory:
        work = Chasing.over(memory.data, seed, team)
        proof = memory.prove()
        work.check()
        loads = work.settle()
        timed = sampler.collect(lambda count: [work.take(loads, count)], ops=loads)
        work.check()
        made = _samples(point, form, team, proof, timed, sampler, (LINE, 0), "latency", "dependent loads")
        made.moved, made.moved_rule = LINE, "one 64-byte line per load"
        made.evidence |= {"nodes_in_cycle": work.order.size, "seed": seed, "loads_per_sample": loads}
        return made


def _gather(point: dict[str, Any], form: "Form", team: "Team", sampler: "Sampler") -> Samples:
    from iobench import hostmem
    from iobench.cxl.memory import opened
    from iobench.kernels.gathering import Gathering
    from iobench.mempolicy import Policy

    nbytes, seed = point["nbytes"], sampler.launch * _PRIME + point["block"]
    local = Policy((form.near,)) if sampler.topology.node(f"mem:{form.near}") else None
    with (
        opened(form, nbytes, point["pages"], point.get("turns", "equal")) as memory,
        hostmem.buffer(nbytes, policy=local) as target,
    ):
        work = Gathering.over(memory.data, target.data, point["block"], seed, team)
        proof = memory.prove()
        work.settle()
        work.poison()
        timed = sampler.collect(lambda count: [work.take(count)], ops=work.repeats)
        work.check()
        made = _samples(point, form, team, proof, timed, sampler, (work.moved, 0), "bandwidth", "pinned threads")
        made.moved, made.moved_rule = work.moved, "every block of the pool once, as read from it"
        made.evidence |= {"blocks": work.moved // work.block, "repeats": work.repeats, "seed": seed}
        return made


def _loaded(point: dict[str, Any], form: "Form", sampler: "Sampler") -> Samples:
    from iobench.cxl.forms import loaders
    from iobench.cxl.memory import opened
    from iobench.kernels.chase import LINE
    from iobench.kernels.chasing import Chasing
    from iobench.kernels.loading import Loading
    from iobench.kernels.team import Team, spread

    nbytes, chaser = point["nbytes"], spread(form.cpus)[0]
    cpus = [cpu for cpu in spread(loaders(sampler.topology, form)[0]) if cpu != chaser]
    space = (form, 2 * nbytes, point["pages"], point.get("turns", "equal"))
    with Team([chaser]) as first, Team(cpus[: point["threads"]]) as others, opened(*space) as memory:
        chase = Chasing.over(memory.data[:nbytes], sampler.launch * _PRIME + nbytes, first)
        work = Loading.over(memory.data[nbytes : 2 * nbytes], point["mix"], point["delay"], chase, others)
        memory.data[-1:] = 0  # the load's slices are whole chunks: the last page may hold none
        proof = memory.prove()
        chase.check()
        loads = chase.settle()
        timed = sampler.collect(lambda count: [work.take(loads, count)], ops=loads)
        work.check()
        moved, seconds = work.moved_during(len(timed.seconds[0]))
        made = _samples(point, form, first, proof, timed, sampler, (LINE, 0), "latency", "dependent loads under load")
        made.moved, made.moved_rule = LINE, "one 64-byte line per load; the load moved load_nbytes in load_seconds"
        made.evidence |= {
            "load_nbytes": moved,
            "load_seconds": seconds,
            "load_bytes_per_s": moved / seconds,
            "load_threads": point["threads"],
            "load_cpus": list(others.cpus),
            "loads_per_sample": loads,
        }
        if "loaders" in point:
            made.path += ", the load from CPUs of other nodes"
        return made


def _to_gpu(point: dict[str, Any], form: "Form", sampler: "Sampler") -> Samples:
    from iobench import gpu
    from iobench.cxl.memory import opened
    from iobench.cxl.to_gpu import loading
    from iobench.record import Leg

    gpu.require()
    device, seed = gpu.at(f"gpu:{point['gpu']}"), sampler.launch * _PRIME + point["block"]
    with (
        opened(form, point["nbytes"], point["pages"], point.get("turns", "equal")) as memory,
        loading(memory, point["block"], seed, device) as (work, proof),
        gpu.watch([device]) as watch,
    ):
        timed = sampler.collect(lambda count: [work.take(count)])
        work.check()
    ways = [Leg(source, str(device.vram), 1, int(part * work.moved)) for source, part in proof.shares.items()]
    return Samples(
        timed=timed,
        nbytes=point["nbytes"],
        moved=work.moved,
        moved_rule="every block of the pool once, copied by the GPU's copy engine",
        quantity="bandwidth",
        mode="host calls",
        verified=True,
        path=f"{proof.path}, to {device.node}",
        proven=proof.proven,
        evidence={
            **proof.evidence,
            "form": form.label,
            "blocks": work.table.size,
            "seed": seed,
            "gpus": watch.evidence(),
        },
        legs=ways if device.vram else [],
        notes=list(form.notes),
    )


def _stream(point: dict[str, Any], form: "Form", team: "Team", sampler: "Sampler") -> Samples:
    from iobench.cxl.memory import opened
    from iobench.kernels import streaming

    kernel, nbytes, threads = point["kernel"], point["nbytes"], point["threads"]
    with opened(form, streaming.room(nbytes, threads), point["pages"], point.get("turns", "equal")) as memory:
        work = streaming.Streaming.over(memory.data, kernel, kernel != "read", nbytes, team)
        work.fill()
        memory.data[-1:] = 0  # the last page may hold no array: it is touched so that every page can be asked for
        proof = memory.prove()
        work.settle()
        timed = sampler.collect(lambda count: [work.take(count)], ops=work.repeats)
        work.check()
        ways = (work.moved - work.stored, work.stored)
        made = _samples(point, form, team, proof, timed, sampler, ways, "bandwidth", "pinned threads")
        made.moved, made.moved_rule = work.moved, "bytes that the kernel reads and writes, past the caches"
        made.evidence |= {"read_nbytes": ways[0], "written_nbytes": ways[1], "repeats": work.repeats}
        return made


def _samples(
    point: Mapping[str, Any],
    form: "Form",
    team: "Team",
    proof: "Proof",
    timed: "Timed",
    sampler: "Sampler",
    ways: tuple[int, int],
    quantity: str,
    mode: str,
) -> Samples:
    """Return what all kernels share; ``ways`` are the bytes read from the memory and written to it."""
    from iobench.cxl.legs import legs

    pinned = team.affinity() == [[cpu] for cpu in team.cpus]
    told = {"form": form.label, "declared": form.declared, "cpus": list(team.cpus), "pinned": pinned}
    return Samples(
        timed=timed,
        nbytes=point["nbytes"],
        moved=sum(ways),
        moved_rule="",
        quantity=quantity,
        mode=mode,
        verified=True,
        path=f"{proof.path}, CPU {','.join(map(str, team.cpus))}",
        proven=proof.proven and pinned,
        evidence={**proof.evidence, **told},
        legs=legs(sampler.topology, proof.shares, team.cpus, *ways, working_set=point["nbytes"]),
        notes=list(form.notes),
    )
