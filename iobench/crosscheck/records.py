"""How long many records take: a million points read, judged, fitted and reported, and the outliers of 10,000 runs.

The runs are made up (that is outside the clock). Each bar is one process of its own, so that its time and its
memory are those a user sees: seconds from start to end, and the peak of resident memory of it and its children.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from iobench.errors import EXIT_FAILED, EXIT_OK
from iobench.paths import source_root
from iobench.record import FILE_NAME, Header, Line
from iobench.topology.graph import Topology
from iobench.units import GB, GIB, US

POINTS, QUICK_POINTS = 1_000_000, 30_000
RUNS, QUICK_RUNS = 10_000, 300
BAR_SECONDS = 60.0
BAR_NBYTES = 4 * GIB
_SIZES = 30
_SAMPLES = 5
_GPUS = 8
_LOOK_SECONDS = 0.05
_START_SECONDS = 5.0

_WHOLE = """
import pathlib, sys
import iobench
from iobench import check, report
from iobench.fit import save
from iobench.report.models import models_of
run = iobench.load(sys.argv[1])
found = check.assess(run)
save(models_of(run), pathlib.Path(sys.argv[1]) / "models.json")
report.write(run, pathlib.Path(sys.argv[1]))
print("\\n".join(found.summary))
"""
_FLEET = """
import pathlib, sys
from iobench.cli import main
sys.argv = ["iobench", "check", *map(str, sorted(pathlib.Path(sys.argv[1]).iterdir()))]
main()
"""


@dataclass(frozen=True)
class Cost:
    """What a process took, and what it printed."""

    seconds: float
    nbytes: int
    code: int
    said: str


def run(say: Callable[[str], Any], quick: bool = False) -> bool:
    """Say seconds and peak memory of both; True when both are within 60 s, and the first within 4 GiB."""
    points, runs = (QUICK_POINTS, QUICK_RUNS) if quick else (POINTS, RUNS)
    start = _START_SECONDS if quick else 0.0  # less work, but Python and its libraries load as slowly
    with tempfile.TemporaryDirectory() as folder:
        write_series(Path(folder) / "series", points)
        cost = spent(_WHOLE, Path(folder) / "series")
        met = _tell(
            say, f"{points:,} points read, judged, fitted, reported", cost, BAR_SECONDS * points / POINTS + start
        )
        write_fleet(Path(folder) / "fleet", runs)
        cost = spent(_FLEET, Path(folder) / "fleet", ends=EXIT_FAILED)  # it finds the two that have a fault
        return _tell(say, f"{runs:,} run files checked for outliers", cost, BAR_SECONDS * runs / RUNS + start) and met


def spent(code: str, folder: Path, ends: int = EXIT_OK) -> Cost:
    """Run ``code`` on ``folder`` in a process of its own, which should end with ``ends``; return what it took."""
    env = {**os.environ, "PYTHONPATH": str(source_root())}
    start = time.perf_counter()
    with subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, env=env) as process:
        peak = [0]
        watcher = threading.Thread(target=_watch, args=(process, peak), daemon=True)
        watcher.start()
        said = process.communicate()[0].decode(errors="replace")
        seconds = time.perf_counter() - start
        watcher.join()
    return Cost(seconds, peak[0], process.returncode - ends, said.strip())


def write_series(folder: Path, points: int) -> None:
    """Write one run of ``points`` points: series of 30 sizes, one launch, five samples of noise each."""
    rng = np.random.default_rng(1)
    with _file(folder, _header("made-up", {"allreduce": _ABOUT})) as file:
        for first in range(0, points, _SIZES):
            start, rate = rng.uniform(5, 25) * US, rng.uniform(5, 400) * GB
            for step in range(min(_SIZES, points - first)):
                nbytes = 8 << step
                seconds = (start + nbytes / rate) * np.exp(rng.normal(0, 0.02, _SAMPLES))
                point = {"op": "all_reduce", "ranks": 2, "series": first // _SIZES, "nbytes": nbytes}
                file.write(_line("allreduce", point, nbytes, seconds))


def write_fleet(folder: Path, runs: int) -> None:
    """Write a run per machine: copies between all ordered pairs of eight GPUs; two machines have a fault."""
    rng = np.random.default_rng(2)
    pairs = [(gpu, peer) for gpu in range(_GPUS) for peer in range(_GPUS) if gpu != peer]
    nbytes = 256 << 20
    for number in range(runs):
        with _file(folder / f"node-{number:05d}", _header(f"node-{number:05d}", {})) as file:
            for gpu, peer in pairs:
                slow = 1.5 if number == 17 or (number == 42 and (gpu, peer) == (3, 5)) else 1.0
                seconds = nbytes / (390 * GB) * slow * np.exp(rng.normal(0, 0.01, _SAMPLES))
                file.write(_line("p2p", {"op": "copy", "gpu": gpu, "peer": peer, "nbytes": nbytes}, nbytes, seconds))


_ABOUT = {
    "source": "made-up", "title": "Made-up all-reduces", "models": [{"kind": "hockney"}],
    "plots": [{"title": "Time", "x": "nbytes", "y": "latency", "series": ["series"]}],
}  # fmt: skip


def _header(name: str, about: dict[str, Any]) -> Header:
    graph = Topology(name).to_dict()
    return Header(name, "2026-01-01T00:00:00+00:00", "0", {"name": name}, graph, {}, about)


def _file(folder: Path, header: Header) -> Any:
    folder.mkdir(parents=True)
    file = (folder / FILE_NAME).open("w", encoding="utf-8")
    file.write(header.to_json() + "\n")
    return file


def _line(probe: str, point: dict[str, Any], nbytes: int, seconds: Any) -> str:
    line = Line(
        probe, "sha256:made-up", point, mode="eager", nbytes=nbytes, moved=nbytes, moved_rule="nbytes",
        seconds=[seconds.tolist()], stop="converged", verified=True, path="made up", proven=True,
        started="2026-01-01T00:00:00+00:00", elapsed=0.1,
    )  # fmt: skip
    return line.to_json() + "\n"


def _tell(say: Callable[[str], Any], what: str, cost: Cost, bar: float) -> bool:
    met = cost.code == 0 and cost.seconds <= bar and cost.nbytes <= BAR_NBYTES
    say(
        f"{'PASS' if met else 'FAIL'}: {what}: {cost.seconds:.1f} s (bar {bar:.0f} s), "
        f"peak {cost.nbytes / GIB:.2f} GiB (bar {BAR_NBYTES / GIB:.0f} GiB)"
    )
    for line in cost.said.splitlines():
        say(f"      {line}")
    return met


def _watch(process: subprocess.Popen[bytes], peak: list[int]) -> None:
    """Note the highest resident memory of the process and its children together."""
    while process.poll() is None:
        peak[0] = max(peak[0], sum(map(_resident, _family(process.pid))))
        time.sleep(_LOOK_SECONDS)


def _family(pid: int) -> Iterator[int]:
    yield pid
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return
    for child in children:
        yield from _family(int(child))


def _resident(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
