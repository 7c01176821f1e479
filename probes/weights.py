"""Model weights: how long until a checkpoint's files are in host or GPU memory, and by which way.

Path: block device -> memory (O_DIRECT), block device -> page cache -> memory (cold), page cache -> memory
(warm), and with target=gpu on to the first GPU: threads read into a ring of pinned buffers while what was read
before is copied (mmap: copied straight from the mapping). Every byte of every file goes there, headers too; or with
part=tensors every tensor to a place of its own, with part=slices what one of tp ranks keeps. On the host whole files
are read straight into one private destination in huge pages that was touched before, parts through the ring.
``kvikio`` is cuFile as kvikio finds it, ``kvikio-compat`` forced to POSIX reads; ``safetensors``,
``fastsafetensors`` and ``runai`` are the loaders people have, where installed. These run in a process of their own
that is ended at a deadline. It has run on a GPU without nvidia-fs, never with GPUDirect Storage.

Which way the bytes really went is proven by the sectors of the block device, by the reading process's own
counters, by nvidia-fs, kvikio and cuFile where they count, and by asking the page cache (cachestat, mincore) right
before each load. "gds" is said only of bytes that a counter saw go that way; kvikio that fell back is "compat".
Without proof the path is unproven; on tmpfs and overlay it is labelled "not a storage measurement".

The clock starts right before the files are opened and stops when the last byte is there. Not in the number: reading
headers, allocating and touching the destination, pinning the ring (unless register=each), throwing pages out,
checking the bytes (all of them, after each load; on a GPU by a kernel). "Cold" is data-cold: directory entries and
inodes stay cached unless cold=metadata drops them (needs root, the whole machine's), and so does what a disk, a
hypervisor or a file server caches below this machine. load=2 is the second load after the files were thrown out.

Running it writes a checkpoint of random bytes (a Llama 3 model's shapes) to the scratch folder and removes it,
needs that much memory once more for the destination, drops the files' own pages from the page cache and
nobody else's, and keeps the disk busy. Your own checkpoint (path) is only read. Cross-checked against fio
(psync, libaio, io_uring) by `make crosscheck-storage` and against loaders by `make crosscheck-weights`.
"""

import itertools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from iobench.errors import Unavailable, UserError
from iobench.probe import Axis, Plot, Samples
from iobench.record import Leg
from iobench.units import KIB, MIB, format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from contextlib import AbstractContextManager

    from iobench.storage.files import Files
    from iobench.storage.load import Loaded, Stage
    from iobench.storage.way import Way
    from iobench.storage.workspace import Workspace
    from iobench.timing.sampler import Sampler
    from iobench.topology.graph import Topology

NBYTES = 256 * MIB
DIRECT = "direct"
BUFFERED = ("buffered-cold", "buffered-warm", "mmap-cold", "mmap-warm")
LOADERS = tuple(
    f"{loader}-{state}" for loader in ("safetensors", "fastsafetensors", "runai") for state in ("cold", "warm")
)
KVIKIO = ("kvikio-cold", "kvikio-warm", "kvikio-compat-cold", "kvikio-compat-warm")
METHODS = {
    "host": (*BUFFERED, DIRECT),
    "gpu": (*BUFFERED, DIRECT, "kvikio-cold", "kvikio-compat-cold", *LOADERS),
}
SECTOR = 4 * KIB  # blocks are multiples of it, so that O_DIRECT takes them on every disk
MOST_OF_DISK = 0.1  # of the free space, for files of the size that nobody asked for
BEYOND_CACHES = 2  # times the last-level cache: less may come out of the cache, whose limit is another
MODEL = "llama-3-8b"

AXES = {
    "method": Axis(
        (*BUFFERED, DIRECT),
        "how the bytes are read; with target=gpu also by other loaders",
        choices=(*BUFFERED, DIRECT, *LOADERS, *KVIKIO),
    ),
    "target": Axis(("host",), "where the weights go: the host's memory, or the first GPU's", choices=("host", "gpu")),
    "threads": Axis((1, 4, 16), "threads that read; all but direct by 1 unless you name them", minimum=1),
    "block": Axis(
        (256 * KIB, MIB, 4 * MIB),
        "bytes of one read; all but direct by 1 MiB (to a GPU 4 MiB) unless you name them",
        unit="bytes",
        minimum=SECTOR,
    ),
    "depth": Axis(
        (2,), "buffers of the ring per thread: 1 reads and copies in turn (io_uring, aio: reads in flight)", minimum=1
    ),
    "engine": Axis(
        ("preadv",),
        "how O_DIRECT reads are submitted: by blocking threads, or depth of them in flight per thread",
        choices=("preadv", "io_uring", "aio"),
    ),
    "align": Axis((0,), "bytes that O_DIRECT reads are aligned to; 0: what the filesystem asks for", unit="bytes"),
    "register": Axis(
        ("once",),
        "pin the ring (kvikio: register its buffer) once before the clock, in each load, or never (kvikio)",
        choices=("once", "each", "never"),
    ),
    "cold": Axis(
        ("data",), "what goes before a cold load: the files' pages, or metadata too", choices=("data", "metadata")
    ),
    "load": Axis((1,), "which load after the files were thrown out is timed, as in 1,2,3", minimum=1),
    "part": Axis(
        ("files",), "whole files, tensor by tensor, or one rank's slices", choices=("files", "tensors", "slices")
    ),
    "tp": Axis((8,), "ranks that share the model, for part=slices", minimum=1),
    "rank": Axis((0,), "whose slices, for part=slices"),
    "model": Axis((MODEL,), "whose tensor shapes the checkpoint has", choices=(MODEL, "llama-3-70b")),
    "nbytes": Axis((NBYTES,), "bytes of the checkpoint that the probe makes", unit="bytes", minimum=MIB),
    "shards": Axis((2,), "files of that checkpoint", minimum=1),
    "path": Axis(("",), "your own checkpoint: a safetensors file or a folder of them", free=True),
}
LAUNCHES = 3
POINT_SECONDS = 0.6
PLOTS = (
    Plot(
        "A checkpoint into memory, 1 MiB reads",
        x="threads",
        y="bandwidth",
        series=("method",),
        where={"block": MIB, "target": "host"},
    ),
    Plot(
        "A checkpoint into GPU memory, 4 MiB reads",
        x="threads",
        y="bandwidth",
        series=("method",),
        where={"block": 4 * MIB, "target": "gpu"},
    ),
    Plot(
        "O_DIRECT reads of a checkpoint",
        x="threads",
        y="bandwidth",
        series=("target", "block"),
        where={"method": DIRECT},
    ),
    Plot(
        "First, second, third load of a checkpoint",
        x="load",
        y="latency",
        series=("target", "method"),
        log_x=False,
        x_name="load after the files were thrown out",
    ),
    Plot(
        "One rank's slices of a checkpoint", x="tp", y="latency", series=("target", "method"), where={"part": "slices"}
    ),
)
MODELS = ({"kind": "weights", "where": {}, "extras": {"files": "shards"}},)


def points(topology: "Topology", axes: Mapping[str, tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    _check(axes)
    targets = _targets(topology, axes)
    for source in _sources(axes):
        for target in targets:
            for method in _methods(target, axes):
                for more in _more(method, target, axes):
                    for block, threads in _ways(method, target, axes):
                        yield {
                            "method": method, "target": target, "threads": threads, "block": block, **more, **source,
                        }  # fmt: skip


def measure(point: dict[str, Any], sampler: "Sampler") -> Samples:
    from iobench.storage import load, workspace
    from iobench.storage.way import OWN

    space = sampler.shared("weights", workspace.workspace)
    way = _way(point)
    if way.how in OWN:
        stage = _stage(space, point, sampler)
        return _samples(point, stage.nbytes, load.load(stage, way, sampler), sampler)
    from iobench.storage import through

    files = space.files(*_files(point, sampler))
    loaded = through.load(files, way, point["target"], sampler)
    return _samples(point, loaded.facts["bytes_asked"], loaded, sampler)


def _samples(point: dict[str, Any], nbytes: int, loaded: "Loaded", sampler: "Sampler") -> Samples:
    return Samples(
        timed=loaded.timed,
        nbytes=nbytes,
        moved=nbytes,
        moved_rule="every byte that arrives in the target, once",
        quantity="bandwidth",
        mode="whole-checkpoint" if point.get("part", "files") == "files" else point["part"],
        verified=True,
        path=loaded.verdict.path,
        proven=loaded.verdict.proven,
        evidence=loaded.evidence(),
        legs=_legs(point, nbytes, loaded, sampler.topology),
        notes=[note for note in dict.fromkeys(loaded.notes) if note],
    )


def _check(axes: Mapping[str, tuple[Any, ...]]) -> None:
    odd = [block for block in axes["block"] if block % SECTOR]
    if odd:
        raise UserError(f"-a block={odd[0]}: O_DIRECT needs multiples of {SECTOR} bytes, as in 256K, 1M, 4M")
    least = MIB // 16 * max(axes["shards"])
    if min(axes["nbytes"]) < least:
        raise UserError(f"-a nbytes={min(axes['nbytes'])}: {max(axes['shards'])} shards need {least} bytes at least")
    uneven = [align for align in axes["align"] for block in axes["block"] if align and block % align]
    if uneven:
        raise UserError(f"-a align={uneven[0]}: every block has to be a multiple of it, as in -a align=4K -a block=1M")
    if "slices" in axes["part"] and max(axes["rank"]) >= min(axes["tp"]):
        raise UserError(f"-a rank={max(axes['rank'])}: ranks count from 0, and -a tp={min(axes['tp'])} has no such one")


def _targets(topology: "Topology", axes: Mapping[str, tuple[Any, ...]]) -> list[str]:
    """Return the targets that are here; Unavailable where nothing that was asked for can be had."""
    here = ["host", *("gpu" for node in topology.of("gpu")[:1] if node.get("vendor") == "NVIDIA")]
    targets = [target for target in axes["target"] if target in here]
    if not targets:
        raise Unavailable("needs an NVIDIA GPU for target=gpu: the topology shows none")
    if targets == ["host"] and all(method in KVIKIO for method in axes["method"]):
        raise Unavailable("kvikio reads into GPU memory here: it needs an NVIDIA GPU and -a target=gpu")
    return targets


def _sources(axes: Mapping[str, tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    """Yield what tells the checkpoints apart: the user's own are validated here, before anything is measured."""
    for path in axes["path"]:
        if path:
            from iobench.storage.checkpoint import open_checkpoint

            found = open_checkpoint(path)
            if axes["part"] != ("files",) and not any(
                span.end > span.begin for shard in found.shards for span in shard.spans
            ):
                raise UserError(f"{path} holds no tensor of any size: leave out -a part={','.join(axes['part'])}")
            yield {"path": str(found.path)}
            continue
        for nbytes in axes["nbytes"]:
            for shards in axes["shards"]:
                for model in axes["model"]:
                    named = {} if axes["model"] == AXES["model"].values else {"model": model}
                    yield {"nbytes": nbytes, "shards": shards, **named}


def _methods(target: str, axes: Mapping[str, tuple[Any, ...]]) -> Iterator[str]:
    methods = METHODS[target] if axes["method"] == AXES["method"].values else axes["method"]
    return (method for method in methods if target == "gpu" or method not in KVIKIO)


def _more(method: str, target: str, axes: Mapping[str, tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    """Yield what differs from the usual way, where it means something for the method.

    An axis that nobody named stands in no point: points of older records keep their names.
    """
    for part in axes["part"] if method in (*BUFFERED, DIRECT) else AXES["part"].values:
        engines = axes["engine"] if method == DIRECT else AXES["engine"].values
        for engine in engines:
            named = {} if engines == AXES["engine"].values else {"engine": engine}
            names = [name for name in _meant(method, target, part, engine) if axes[name] != AXES[name].values]
            for values in itertools.product(*(axes[name] for name in names)):
                found = named | dict(zip(names, values, strict=True))
                yield {**found, **({} if axes["part"] == AXES["part"].values else {"part": part})}


def _meant(method: str, target: str, part: str, engine: str) -> Iterator[str]:
    """Yield the axes that mean something for a method."""
    own = method in (*BUFFERED, DIRECT)
    ring = own and not method.startswith("mmap") and (target == "gpu" or part != "files")
    if ring or engine != "preadv":
        yield "depth"
    if ring or method in KVIKIO:
        yield "register"
    if method.endswith("-cold"):
        yield "cold"
    if not method.endswith("-warm"):
        yield "load"
    if method == DIRECT:
        yield "align"
    if part == "slices":
        yield from ("tp", "rank")


def _ways(method: str, target: str, axes: Mapping[str, tuple[Any, ...]]) -> Iterator[tuple[int, int]]:
    """Yield block and threads: the grid for O_DIRECT, few of each for the others unless the user named some."""
    blocks, threads = axes["block"], axes["threads"]
    if method != DIRECT:
        usual = (MIB,) if target == "host" else (4 * MIB,)
        blocks = usual if blocks == AXES["block"].values else blocks
        alone = target == "host" or method in BUFFERED[2:] or method.startswith("safetensors")  # it has no threads
        few = (1,) if alone else (1, 8)
        threads = few if threads == AXES["threads"].values else threads
    return ((block, count) for block in blocks for count in threads)


def _way(point: Mapping[str, Any]) -> "Way":
    from iobench.storage.way import Way

    more = {name: point[name] for name in ("depth", "align", "register", "cold", "load", "engine") if name in point}
    return Way(point["method"], point["threads"], point["block"], **more)


def _stage(space: "Workspace", point: Mapping[str, Any], sampler: "Sampler") -> "Stage":
    part, tp, rank = point.get("part", "files"), point.get("tp", 8), point.get("rank", 0)
    return space.stage(*_files(point, sampler), point["target"], part, rank, tp)


def _files(
    point: Mapping[str, Any], sampler: "Sampler"
) -> "tuple[Hashable, Callable[[], AbstractContextManager[Files]]]":
    """Return what the files are called in the launch, and what makes them."""
    from iobench.storage import workspace

    target = point["target"]
    if "path" in point:
        return point["path"], lambda: workspace.users_files(point["path"], target)
    nbytes, shards, model = point["nbytes"], point["shards"], point.get("model", MODEL)
    if nbytes == NBYTES:
        _leave_room(sampler.scratch, nbytes)
    return (nbytes, shards, model), lambda: workspace.own_files(sampler.scratch, nbytes, shards, model, target)


def _leave_room(scratch: str, nbytes: int) -> None:
    """Raise Unavailable where the size that nobody asked for would crowd the disk."""
    import shutil

    free = shutil.disk_usage(scratch).free
    if nbytes > free * MOST_OF_DISK:
        raise Unavailable(
            f"{format_size(nbytes)} of files would take more than {MOST_OF_DISK:.0%} of the {format_size(free)} free "
            f"in {scratch}: choose another folder with --scratch or a smaller -a nbytes"
        )


def _legs(point: Mapping[str, Any], nbytes: int, loaded: "Loaded", topology: "Topology") -> list[Leg]:
    method, disk = point["method"], loaded.facts.get("device")
    from_cache = method.endswith("-warm") or (point.get("load", 1) > 1 and method != DIRECT)
    answered = from_cache and not loaded.verdict.path.startswith("device")
    legs = [Leg(f"block:{disk}", "mem:0")] if disk and not answered else []
    if point["target"] == "gpu":
        return [*legs, *_to_gpu(topology)]
    cache = _last_level_cache(topology)
    if method != DIRECT and cache and nbytes >= BEYOND_CACHES * cache:
        legs.append(Leg("mem:0", "cpu:0"))
    return legs


def _to_gpu(topology: "Topology") -> list[Leg]:
    """Return the leg to the first GPU's memory; none where the topology doesn't know both ends."""
    from iobench import gpu

    device = gpu.device(0)
    return [Leg(device.mem, device.vram)] if device.mem and device.vram else []


def _last_level_cache(topology: "Topology") -> int:
    """Return the bytes of the largest cache, 0 where unknown."""
    return max((int(cache.get("nbytes", 0)) for cache in topology.of("cache")), default=0)
