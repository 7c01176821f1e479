"""likwid-bench and mbw beside the stream kernels, in turn. Shown, not judged: they allocate their own memory."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iobench.units import GB, MB, MIB, format_rate

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


@dataclass(frozen=True)
class Peer:
    """One command of a peer tool that does what a point does, and how to read its bytes/s."""

    name: str
    command: list[str]
    parse: Callable[[str], float | None]


def compare(points: Sequence[dict[str, Any]], rounds: int) -> Iterator[str]:
    """Yield a line per peer command: both rates and their ratio; or that the tool is not installed."""
    for tool, make in (("likwid-bench", likwid), ("mbw", mbw)):
        if shutil.which(tool) is None:
            yield f"{tool}: not installed, left out (Debian: apt install {tool.partition('-')[0]})"
            continue
        for point in points:
            if peer := make(point):
                yield _line(point, peer, rounds)


def likwid(point: dict[str, Any]) -> Peer | None:
    """Return likwid-bench's twin of a stream point; its volume counts loads and stores, as ours does."""
    test = _LIKWID.get((point["kernel"], point.get("stores", "")))
    if test is None:
        return None
    nbytes, threads = point["nbytes"], point["threads"]
    passes = max(2, round(_PEER_SECONDS * _EXPECTED_BYTES_PER_S / nbytes))
    name = f"{test}_{_vectors()}"
    command = ["likwid-bench", "-t", name, "-i", str(passes), "-w", f"S0:{nbytes // 1000}kB:{threads}"]
    return Peer(f"likwid-bench {name}", command, likwid_rate)


def mbw(point: dict[str, Any]) -> Peer | None:
    """Return mbw's twin of a copy by one thread; mbw counts what is copied once, the kernels twice."""
    if point["kernel"] != "copy" or point["threads"] != 1:
        return None
    # its plain loop is what the compiler made of b[i] = a[i]; memcpy streams past the caches when large
    test, name = ("1", "DUMB") if point["stores"] == "plain" else ("0", "MEMCPY")
    each = max(1, point["nbytes"] // 2 // MIB)
    return Peer(f"mbw {name}", ["mbw", "-q", "-n", "5", f"-t{test}", str(each)], mbw_rate)


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


def _line(point: dict[str, Any], peer: Peer, rounds: int) -> str:
    name = f"{peer.name}, {point['threads']} threads"
    pairs = [pair for pair in _pairs(point, peer, rounds) if pair[1] is not None]
    if not pairs:
        return f"{name}: gave no figure"
    ours, theirs = (sorted(side)[len(pairs) // 2] for side in zip(*pairs, strict=True))
    return f"{name:40} {format_rate(ours):>11} {format_rate(theirs):>11}  {ours / theirs:.3f}   (not judged)"


def _pairs(point: dict[str, Any], peer: Peer, rounds: int) -> Iterator[tuple[float, float | None]]:
    import numpy as np

    from iobench import hostmem
    from iobench.kernels import streaming
    from iobench.kernels.team import pinned

    room = streaming.room(point["nbytes"], point["threads"])
    with pinned(point["threads"]) as team, hostmem.buffer(room, point["pages"]) as area:
        work = streaming.Streaming.over(area.data, point["kernel"], point["stores"] == "nt", point["nbytes"], team)
        work.fill()
        work.settle()
        for _ in range(rounds):
            ours = work.moved * work.repeats / float(np.median(work.take(15)))
            yield ours, _run(peer)


def _run(peer: Peer) -> float | None:
    try:
        done = subprocess.run(peer.command, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return peer.parse(done.stdout) if done.returncode == 0 else None
