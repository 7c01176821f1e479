"""likwid-bench, mbw and MLC beside the memory kernels, in turn. Shown, not judged: they allocate their own memory."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iobench.crosscheck import peer as peer_tool
from iobench.units import GB, KIB, MB, MIB, NS, format_size

_LIKWID = {
    ("copy", "plain"): "copy",
    ("copy", "nt"): "copy_mem",
    ("triad", "plain"): "stream",
    ("triad", "nt"): "stream_mem",
    ("read", "plain"): "load",
    ("write", "plain"): "store",
    ("write", "nt"): "store_mem",
}
_TIMEOUT = 60.0
_PEER_SECONDS = 0.25
_EXPECTED_BYTES_PER_S = 10 * GB
_LEAST_MLC = 64 * MIB
_CHASE_SECONDS = 0.5
_WHERE = {
    "likwid-bench": "Debian: apt install likwid",
    "mbw": "Debian: apt install mbw",
    "mlc": "Intel's site has it; or give its path with --peer",
}


@dataclass(frozen=True)
class Peer:
    """One command of a peer tool that does what a point does, and how to read its bytes/s."""

    name: str
    command: list[str]
    parse: Callable[[str], float | None]
    known: str = ""
    latency: bool = False


def compare(points: Sequence[dict[str, Any]], rounds: int) -> Iterator[str]:
    """Yield a line per peer command: both figures, their ratio with its interval, and what is known to differ."""
    for tool, make in (("likwid-bench", likwid), ("mbw", mbw), ("mlc", mlc)):
        program = peer_tool.find(tool)
        if program is None:
            yield f"{tool}: not installed, left out ({_WHERE[tool]})"
            continue
        yield peer_tool.heading(tool)
        for point in points:
            if peer := make(point):
                peer.command[0] = program
                yield _row(point, peer, rounds).text()


def likwid(point: dict[str, Any]) -> Peer | None:
    """Return likwid-bench's twin of a stream point; its volume counts loads and stores, as ours does."""
    test = _LIKWID.get((point["kernel"], point.get("stores", "")))
    if test is None:
        return None
    nbytes, threads = point["nbytes"], point["threads"]
    passes = max(2, round(_PEER_SECONDS * _EXPECTED_BYTES_PER_S / nbytes))
    name = f"{test}_{_vectors()}"
    command = ["likwid-bench", "-t", name, "-i", str(passes), "-w", f"S0:{nbytes // 1000}kB:{threads}"]
    return Peer(f"likwid-bench {name}", command, likwid_rate, "both count loads and stores; its pages are small ones")


def mbw(point: dict[str, Any]) -> Peer | None:
    """Return mbw's twin of a copy by one thread; mbw counts what is copied once, the kernels twice."""
    if point["kernel"] != "copy" or point["threads"] != 1:
        return None
    # its plain loop is what the compiler made of b[i] = a[i]; memcpy streams past the caches when large
    test, name = ("1", "DUMB") if point["stores"] == "plain" else ("0", "MEMCPY")
    each = max(1, point["nbytes"] // 2 // MIB)
    command = ["mbw", "-q", "-n", "5", f"-t{test}", str(each)]
    return Peer(f"mbw {name}", command, mbw_rate, "mbw counts a copy once: its figure is doubled here")


def likwid_rate(text: str) -> float | None:
    """Return bytes/s from likwid-bench's "MByte/s:" (decimal)."""
    found = re.search(r"^MByte/s:\s+([0-9.]+)", text, re.MULTILINE)
    return float(found[1]) * MB if found and float(found[1]) > 0 else None


def mbw_rate(text: str) -> float | None:
    """Return bytes/s read and written: twice the median of mbw's "Copy: ... MiB/s"."""
    rates = sorted(float(rate) for rate in re.findall(r"^\d+\tMethod:.*Copy: ([0-9.]+) MiB/s", text, re.MULTILINE))
    return 2 * rates[len(rates) // 2] * MIB if rates else None


def _vectors() -> str:
    try:
        flags = set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    except OSError:
        return "sse"
    return "avx512" if "avx512f" in flags else "avx" if "avx" in flags else "sse"


def mlc(point: dict[str, Any]) -> Peer | None:
    """Return MLC's idle latency beside the largest chases: random accesses by one thread in a buffer of that size."""
    if point["kernel"] != "chase" or point["nbytes"] < _LEAST_MLC:
        return None
    command = ["mlc", "--idle_latency", "-r", f"-b{point['nbytes'] // KIB}", "-t2"]
    known = "MLC: a mean; on huge pages where it may have them, prefetchers off where it may switch them"
    return Peer("mlc --idle_latency", command, mlc_seconds, known, latency=True)


def mlc_seconds(text: str) -> float | None:
    """Return the seconds of one load out of MLC's "Each iteration took ... clocks ( 80.5 ns)"."""
    found = re.search(r"Each iteration took [\d.]+ ?[\w ]+ clocks \(\s*([\d.]+)\s*ns\)", text)
    return float(found[1]) * NS if found and float(found[1]) > 0 else None


def _row(point: dict[str, Any], peer: Peer, rounds: int) -> peer_tool.Row:
    about = format_size(point["nbytes"]) if peer.latency else f"{point['threads']} threads"
    row = peer_tool.Row(f"{peer.name}, {about}", latency=peer.latency, known=peer.known)
    with _latencies(point) if peer.latency else _rates(point) as ours:
        peer_tool.in_turns(row, ours, lambda: _run(peer), rounds)
    return row


@contextlib.contextmanager
def _rates(point: dict[str, Any]) -> Iterator[Callable[[], float]]:
    import numpy as np

    from iobench import hostmem
    from iobench.kernels import streaming
    from iobench.kernels.team import pinned

    room = streaming.room(point["nbytes"], point["threads"])
    with pinned(point["threads"]) as team, hostmem.buffer(room, point["pages"]) as area:
        work = streaming.Streaming.over(area.data, point["kernel"], point["stores"] == "nt", point["nbytes"], team)
        work.fill()
        work.settle()
        yield lambda: work.moved * work.repeats / float(np.median(work.take(15)))


@contextlib.contextmanager
def _latencies(point: dict[str, Any]) -> Iterator[Callable[[], float]]:
    """Yield the chase of the point, as the probe itself runs it."""
    from iobench import probe
    from iobench.timing.sampler import Sampler

    dram = probe.load("dram")
    sampler = Sampler(budget=_CHASE_SECONDS)
    with contextlib.closing(sampler):

        def once() -> float:
            timed = dram.measure(point, sampler).timed
            return sum(timed.seconds[0]) / len(timed.seconds[0]) / timed.ops

        yield once


def _run(peer: Peer) -> float | None:
    try:
        done = subprocess.run(peer.command, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return peer.parse(done.stdout) if done.returncode == 0 else None
