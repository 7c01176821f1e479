"""Model weights: how long until a checkpoint's files are in host memory, and by which way.

Path: block device -> memory (O_DIRECT), block device -> page cache -> memory (cold), page cache -> memory
(warm). Every method puts every byte of every file, the headers too, into one private destination in huge
pages that was touched before; tensors are not moved or aligned afterwards. ``mmap`` maps the files, copies
out of the mapping and unmaps. Which way the bytes really went is proven by the sectors of the block device
and by this process's own read counter; "cold" by asking the page cache (cachestat, mincore) right before
each load, "warm" likewise. Without such a proof the path is unproven; on tmpfs and overlay it is labelled
"not a storage measurement".

The clock starts right before the first read (or mmap) and stops when the last thread has its last byte.
Not in the number: opening files, reading headers, allocating and touching the destination, throwing pages
out, checking the bytes (all of them, after each load). "Cold" is data-cold: directory entries and inodes
stay cached, and so does what a disk, a hypervisor or a file server caches below this machine.

Running it writes a checkpoint of random bytes (Llama-3-8B's shapes) to the scratch folder and removes it,
needs that much memory once more for the destination, drops the files' own pages from the page cache and
nobody else's, and keeps the disk busy. Your own checkpoint (path) is only read. Cross-checked against fio
(psync, libaio, io_uring) by `make crosscheck-storage`.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from iobench.errors import Unavailable, UserError
from iobench.probe import Axis, Plot, Samples
from iobench.record import Leg
from iobench.units import KIB, MIB, format_size

if TYPE_CHECKING:
    from iobench.storage.load import Stage, Workspace
    from iobench.timing.sampler import Sampler
    from iobench.topology.graph import Topology

NBYTES = 256 * MIB
DIRECT = "direct"
BUFFERED = ("buffered-cold", "buffered-warm", "mmap-cold", "mmap-warm")
SECTOR = 4 * KIB  # blocks are multiples of it, so that O_DIRECT takes them on every disk
MOST_OF_DISK = 0.1  # of the free space, for files of the size that nobody asked for
BEYOND_CACHES = 2  # times the last-level cache: less may come out of the cache, whose limit is another

AXES = {
    "method": Axis((*BUFFERED, DIRECT), "how the bytes are read"),
    "target": Axis(("host",), "where the weights go: the host's memory"),
    "threads": Axis((1, 4, 16), "threads that read; buffered and mmap by 1 unless you name them", minimum=1),
    "block": Axis(
        (256 * KIB, MIB, 4 * MIB),
        "bytes of one read; buffered and mmap by 1 MiB unless you name them",
        unit="bytes",
        minimum=SECTOR,
    ),
    "nbytes": Axis((NBYTES,), "bytes of the checkpoint that the probe makes", unit="bytes", minimum=MIB),
    "shards": Axis((2,), "files of that checkpoint", minimum=1),
    "path": Axis(("",), "your own checkpoint: a safetensors file or a folder of them", free=True),
}
LAUNCHES = 3
POINT_SECONDS = 0.6
PLOTS = (
    Plot("A checkpoint into memory, 1 MiB reads", x="threads", y="bandwidth", series=("method",), where={"block": MIB}),
    Plot("O_DIRECT reads of a checkpoint", x="threads", y="bandwidth", series=("block",), where={"method": DIRECT}),
)
MODELS = ({"kind": "weights", "where": {}, "extras": {"files": "shards"}},)


def points(topology: "Topology", axes: Mapping[str, tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    _check(axes)
    for source in _sources(axes):
        for method in axes["method"]:
            for target in axes["target"]:
                for block, threads in _ways(method, axes):
                    yield {"method": method, "target": target, "threads": threads, "block": block, **source}


def measure(point: dict[str, Any], sampler: "Sampler") -> Samples:
    from iobench.storage import load

    space = sampler.shared("weights", load.workspace)
    stage = _stage(space, point, sampler)
    loaded = load.load(stage, point["method"], point["threads"], point["block"], sampler)
    return Samples(
        timed=loaded.timed,
        nbytes=stage.nbytes,
        moved=stage.nbytes,
        moved_rule="every byte of every file, headers included, once",
        quantity="bandwidth",
        mode="whole-checkpoint",
        verified=True,
        path=loaded.verdict.path,
        proven=loaded.verdict.proven,
        evidence=loaded.evidence(),
        legs=_legs(point["method"], stage, sampler.topology),
        notes=[*loaded.verdict.notes, *loaded.notes],
    )


def _check(axes: Mapping[str, tuple[Any, ...]]) -> None:
    odd = [block for block in axes["block"] if block % SECTOR]
    if odd:
        raise UserError(f"-a block={odd[0]}: O_DIRECT needs multiples of {SECTOR} bytes, as in 256K, 1M, 4M")
    least = MIB // 16 * max(axes["shards"])
    if min(axes["nbytes"]) < least:
        raise UserError(f"-a nbytes={min(axes['nbytes'])}: {max(axes['shards'])} shards need {least} bytes at least")


def _sources(axes: Mapping[str, tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    """Yield what tells the checkpoints apart: the user's own are validated here, before anything is measured."""
    for path in axes["path"]:
        if path:
            from iobench.storage.checkpoint import open_checkpoint

            yield {"path": str(open_checkpoint(path).path)}
        else:
            yield from ({"nbytes": nbytes, "shards": shards} for nbytes in axes["nbytes"] for shards in axes["shards"])


def _ways(method: str, axes: Mapping[str, tuple[Any, ...]]) -> Iterator[tuple[int, int]]:
    """Yield block and threads: the grid for O_DIRECT, one of each for the others unless the user named some."""
    blocks, threads = axes["block"], axes["threads"]
    if method != DIRECT:
        blocks = (MIB,) if blocks == AXES["block"].values else blocks
        threads = (1,) if threads == AXES["threads"].values else threads
    return ((block, count) for block in blocks for count in threads)


def _stage(space: "Workspace", point: dict[str, Any], sampler: "Sampler") -> "Stage":
    from iobench.storage import load

    if "path" in point:
        return space.stage(point["path"], lambda: load.users_stage(point["path"]))
    nbytes, shards = point["nbytes"], point["shards"]
    if nbytes == NBYTES:
        _leave_room(sampler.scratch, nbytes)
    return space.stage((nbytes, shards), lambda: load.own_stage(sampler.scratch, nbytes, shards))


def _leave_room(scratch: str, nbytes: int) -> None:
    """Raise Unavailable where the size that nobody asked for would crowd the disk."""
    import shutil

    free = shutil.disk_usage(scratch).free
    if nbytes > free * MOST_OF_DISK:
        raise Unavailable(
            f"{format_size(nbytes)} of files would take more than {MOST_OF_DISK:.0%} of the {format_size(free)} free "
            f"in {scratch}: choose another folder with --scratch or a smaller -a nbytes"
        )


def _legs(method: str, stage: "Stage", topology: "Topology") -> list[Leg]:
    device = f"block:{stage.device.name}" if stage.device else ""
    legs = [Leg(device, "mem:0")] if device and not method.endswith("-warm") else []
    cache = _last_level_cache(topology)
    if method != DIRECT and cache and stage.nbytes >= BEYOND_CACHES * cache:
        legs.append(Leg("mem:0", "cpu:0"))
    return legs


def _last_level_cache(topology: "Topology") -> int:
    """Return the bytes of the largest cache, 0 where unknown."""
    return max((int(cache.get("nbytes", 0)) for cache in topology.of("cache")), default=0)
