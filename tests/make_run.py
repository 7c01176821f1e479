"""Fabricate runs for tests: no device, no clock, the same numbers every time.

``demo_run()`` holds one of everything that check, fit, compare and report must cope with. Build your own
from ``lines`` / ``hockney`` / ``chase`` and ``run_of``; ``save`` writes it as a real file in ``tmp_path``.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from iobench.record import Header, Leg, Line, Run, merge
from iobench.topology.graph import Topology
from iobench.units import GB, KIB, MIB, NS, US
from iobench.writer import Writer

SOURCE = "sha256:0123456789abcdef"
CACHES = {"L1d": 32 * KIB, "L2": 1 * MIB, "L3": 32 * MIB}
CACHE_NS = {"L1d": 1.2, "L2": 4.0, "L3": 20.0, "memory": 95.0}
MEMORY_LIMIT = 51.2 * GB  # of the memory of testbox, both directions together
DISK_LIMIT = 3.94 * GB

PLOTS: dict[str, list[dict[str, Any]]] = {
    "dram": [
        {"title": "Bandwidth", "x": "threads", "y": "bandwidth", "series": ["kernel"], "where": {"nbytes": 268435456}},
        {"title": "Pointer chase", "x": "nbytes", "y": "latency", "where": {"kernel": "chase"}, "caches": True},
    ],
    "allreduce": [
        {"title": "Time", "x": "nbytes", "y": "latency", "series": ["ranks"]},
        {"title": "Bandwidth", "x": "nbytes", "y": "bandwidth", "series": ["ranks"]},
    ],
    "weights": [{"title": "Reading", "x": "nbytes", "y": "bandwidth", "series": ["method"], "log_x": True}],
}
MODELS: dict[str, list[dict[str, Any]]] = {
    "dram": [{"kind": "levels", "where": {"kernel": "chase"}}],
    "allreduce": [{"kind": "hockney"}],
    "weights": [],
}


def make_testbox(cpus: int = 2) -> Topology:
    """Return a small machine: one socket, one NUMA node, three cache levels, one disk."""
    graph = Topology("testbox")
    graph.add("machine", "machine")
    graph.add("socket:0", "socket", vendor="GenuineIntel", model_name="Some CPU")
    graph.add("numa:0", "numa", cpus=list(range(cpus)), has_cpu=True, has_memory=True, memory_bytes=8 * 1024**3)
    graph.add("mem:0", "mem")
    graph.add("block:vda", "block", mounts=["/"])
    limit: dict[str, Any] = {"duplex": False, "source": "limits.toml: DDR4-3200, 2 channels"}
    for cpu in range(cpus):
        graph.add(f"cpu:{cpu}", "cpu", numa=0, socket=0, allowed=True)
        for level, nbytes in CACHES.items():
            shared = level == "L3"
            node = f"cache:{level}:{0 if shared else cpu}"
            kind = "Data" if level == "L1d" else "Unified"
            graph.add(
                node,
                "cache",
                level=int(level[1]),
                type=kind,
                nbytes=nbytes,
                line_nbytes=64,
                cpus=list(range(cpus)) if shared else [cpu],
            )
            graph.link(node, f"cpu:{cpu}", "cache", 200 * GB if level == "L1d" else None, source="64 B per cycle")
        graph.link(f"cpu:{cpu}", "numa:0", "core", None)
    graph.link("numa:0", "mem:0", "dram", MEMORY_LIMIT, **limit)
    graph.link("block:vda", "mem:0", "pcie", DISK_LIMIT, source="sysfs: PCIe gen3 x4")
    return graph


def samples(median: float, *, n: int = 20, noise: float = 0.01, seed: str = "") -> list[float]:
    """Return ``n`` positive times scattered by ``noise`` (relative, log-normal) about ``median``."""
    rng = np.random.default_rng(zlib.crc32(f"{seed}{median!r}".encode()))
    return list(median * np.exp(rng.normal(0.0, noise, n)))


def lines(
    probe: str,
    point: dict[str, Any],
    seconds: float | Sequence[float] | None,
    *,
    launches: int = 3,
    n: int = 20,
    noise: float = 0.01,
    ranks: int = 1,
    seed: str = "",
    **fields: Any,
) -> list[Line]:
    """Return one line per launch of a point whose operation takes about ``seconds`` (None: no samples).

    A sequence gives the median of each launch. ``fields`` are fields of Line (moved, status, legs ...);
    ``nbytes`` and ``moved`` are the point's nbytes unless said.
    """
    medians = [seconds] * launches if seconds is None or isinstance(seconds, (int, float)) else list(seconds)
    nbytes = int(fields.pop("nbytes", point.get("nbytes", 0)))
    base: dict[str, Any] = {"mode": "eager", "verified": True, "path": "as asked", "proven": True, "stop": "converged"}
    base |= {"nbytes": nbytes, "moved": nbytes, "moved_rule": "nbytes once"} | fields
    out = []
    for launch, median in enumerate(medians):
        rows = (
            []
            if median is None
            else [
                samples(median, n=n, noise=noise, seed=f"{seed}{probe}{point}{launch}{rank}") for rank in range(ranks)
            ]
        )
        out.append(Line(probe, SOURCE, dict(point), launch=launch, seconds=rows, **base))
    return out


def hockney(
    probe: str, sizes: Iterable[int], a: float, rate: float, *, point: dict[str, Any] | None = None, **fields: Any
) -> list[Line]:
    """Return a message-size series that follows T = a + S/rate."""
    out: list[Line] = []
    for nbytes in sizes:
        out += lines(probe, {**(point or {}), "nbytes": nbytes}, a + nbytes / rate, **fields)
    return out


def chase_ns(nbytes: int) -> float:
    """Return testbox's latency at one working set: the level it fits in, blended near the level's edge."""
    names = [*CACHES, "memory"]
    value = CACHE_NS[names[0]]
    for upper, name in zip(CACHES.values(), names[1:], strict=True):
        missing = max(0.0, 1.0 - (0.9 * upper / nbytes) ** 3)  # share of accesses that miss this level
        value += missing * (CACHE_NS[name] - value)
    return value


def chase(sizes: Iterable[int], *, probe: str = "dram", pages: str = "4k", **fields: Any) -> list[Line]:
    """Return a pointer chase of testbox over working sets."""
    out: list[Line] = []
    for nbytes in sizes:
        point = {"kernel": "chase", "nbytes": nbytes, "threads": 1, "pages": pages}
        home = next((f"cache:{name}:0" for name, size in CACHES.items() if nbytes <= size), "mem:0")
        more = {"quantity": "latency", "moved": 64, "moved_rule": "one cache line", "legs": [Leg(home, "cpu:0")]}
        out += lines(probe, point, chase_ns(nbytes) * NS, **(more | fields))
    return out


def run_of(
    all_lines: Iterable[Line],
    *,
    topology: Topology | dict[str, Any] | None = None,
    name: str = "testbox",
    probes: dict[str, dict[str, Any]] | None = None,
    path: Path = Path("reports/testbox/records.jsonl"),
    models: dict[str, list[dict[str, Any]]] | None = None,
) -> Run:
    """Return a Run in memory; ``probes`` (header) is made from PLOTS and MODELS unless given."""
    kept = list(all_lines)
    graph = make_testbox() if topology is None else topology
    chosen = MODELS if models is None else models
    names = dict.fromkeys(line.probe for line in kept)
    if probes is None:
        probes = {
            probe: {
                "source": SOURCE,
                "title": f"The {probe} probe",
                "plots": PLOTS.get(probe, []),
                "models": chosen.get(probe, []),
            }
            for probe in names
        }
    header = Header(
        run_id="2026-01-02T03:04:05Z-abcd",
        created="2026-01-02T03:04:05Z",
        version="0.1.0",
        machine={"name": name, "cpus": 2},
        topology=graph.to_dict() if isinstance(graph, Topology) else graph,
        request={"probes": list(names)},
        probes=probes,
    )
    return Run(path, header, merge(kept))


def save(run: Run, folder: Path) -> Path:
    """Write ``run`` as a records file in ``folder`` and return the file."""
    writer = Writer.create(folder, run.header)
    for record in run.records:
        for line in record.lines:
            writer.append(line.to_json())
    writer.close()
    return writer.path


def demo_lines() -> list[Line]:
    """Return one of everything: good series of three probes and every odd status."""
    mem, disk = [Leg("mem:0", "cpu:0", 1)], [Leg("block:vda", "mem:0")]
    out = chase([4 * KIB << step for step in range(16)])
    for threads, rate in ((1, 14 * GB), (2, 24 * GB)):
        for kernel, factor in (("read", 1.0), ("copy", 1.5)):
            point = {"kernel": kernel, "nbytes": 256 * MIB, "threads": threads, "pages": "4k"}
            moved = round(256 * MIB * factor)
            out += lines("dram", point, moved / rate, moved=moved, legs=mem, moved_rule=f"{kernel}, write-allocate")
    big = {"kernel": "triad", "nbytes": 256 * MIB, "threads": 2, "pages": "4k"}
    out += lines("dram", big, 256 * MIB / (60 * GB), legs=mem)  # above the limit
    out += lines("dram", {**big, "pages": "huge"}, None, status="skipped", reason="no huge pages are free", launches=1)
    out += hockney("allreduce", [8 << step for step in range(0, 24, 2)], 200 * US, 1.2 * GB, point={"ranks": 2})
    out += hockney(
        "allreduce", [8 << step for step in range(0, 24, 2)], 400 * US, 0.8 * GB, point={"ranks": 4}, status="suspect",
        reason="others used 37 % of the CPUs",
    )  # fmt: skip
    for method, rate, more in (
        ("direct", 1.9 * GB, {"path": "O_DIRECT: all sectors came from block:vda"}),
        ("mmap", 1.1 * GB, {"proven": False, "path": "block device unknown"}),
        ("warm", 7.0 * GB, {"legs": [Leg("mem:0", "cpu:0")], "path": "page cache"}),
    ):
        out += lines("weights", {"method": method, "nbytes": 64 * MIB}, 64 * MIB / rate, **({"legs": disk} | more))
    out += lines("weights", {"method": "wrong", "nbytes": 64 * MIB}, 0.05, legs=disk, verified=False, status="failed",
                 reason="checksum of shard 2 differs")  # fmt: skip
    out += lines("weights", {"method": "uring", "nbytes": 64 * MIB}, None, status="failed", reason="EPERM", launches=1)
    return out


def demo_run(**more: Any) -> Run:
    """Return a Run of ``demo_lines``."""
    return run_of(demo_lines(), **more)
