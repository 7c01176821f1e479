"""The loaded-latency curve's two ends against the memory probe's kernels, interleaved on the same threads and pages.

Idle end: the chase beside threads at the longest delay, against the chase alone. Bandwidth end: what the load threads
achieve at delay 0 while the chase runs, against ``read`` by as many threads (the memory probe's kernel, in their
own slices, nobody chasing). A round takes both sides in an order that alternates.

Bars: both ends within 3 %.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from iobench.crosscheck.dram import LATENCY, LATENCY_RATIOS, Bar, Row, in_turn
from iobench.units import format_size

if TYPE_CHECKING:
    from iobench.kernels.loading import Loading, Stage

Say = Callable[[str], None]
BANDWIDTH = Bar(
    "bandwidth", lambda ours, theirs: theirs / ours, lambda ratio: LATENCY_RATIOS[0] <= ratio <= LATENCY_RATIOS[1]
)
_SECONDS, _QUICK_SECONDS = 8.0, 1.0
_WINDOW = 8  # samples of the chase beside one window of load: some 4 ms, about a pass of ``read``
_WINDOWS = 6  # of each side in a round, whose fastest count


def run(say: Say, quick: bool = False) -> bool:
    """Compare both ends; return True where both bars are met. Raises Unavailable where there is one CPU only."""
    from iobench import probe, topology
    from iobench.kernels import loading
    from iobench.kernels.team import neighbours

    graph, loaded = topology.discover(), probe.load("loaded")
    points = list(loaded.points(graph, probe.narrow(loaded, ["mix=read", "sample=mean", "loaders=near"])))
    first, idle = points[0], max(point["delay"] for point in points)
    numa = {int(cpu.id.partition(":")[2]): cpu.get("numa") for cpu in graph.of("cpu")}
    cpus = neighbours(first["threads"] + 1, numa)
    seconds = _QUICK_SECONDS if quick else _SECONDS
    about = f"{format_size(first['nbytes'])}, {first['pages']} pages"
    with loading.stage(first["nbytes"], first["pages"], cpus, seed=1) as stage:
        say(f"chase on CPU {cpus[0]}, load on CPU {', '.join(map(str, cpus[1:]))}; {about}")
        say(f"{'':40} {'loaded':>11} {'dram':>11}  {'loaded / dram':38}")
        rows = [_idle(stage, idle, seconds), _full(stage, seconds)]
    for row in rows:
        say(row.text())
    return all(row.passed for row in rows)


def _idle(stage: Stage, delay: int, seconds: float) -> Row:
    work = _work(stage, delay)
    sides = (lambda: work.take(stage.loads, 10), lambda: stage.chase.take(stage.loads, 10))
    ours, theirs, ratio = in_turn(sides, seconds, LATENCY)
    work.check()
    return Row(f"idle end: chase, delay {delay}", ours / stage.loads, theirs / stage.loads, ratio, LATENCY, 0)


def _full(stage: Stage, seconds: float) -> Row:
    from iobench import hostmem
    from iobench.kernels import streaming

    threads, nbytes = len(stage.team.cpus), stage.area.data.nbytes
    work = _work(stage, 0)
    with hostmem.buffer(streaming.room(nbytes, threads), stage.area.pages) as area:
        reads = streaming.Streaming.over(area.data, "read", False, nbytes, stage.team)
        reads.fill()
        hostmem.require(area, hostmem.inspect(area))
        reads.settle()

        def loaded() -> list[float]:
            for _ in range(_WINDOWS):
                work.take(stage.loads, _WINDOW)
            return [took / max(moved, 1) * nbytes for _, moved, took in work.windows[-_WINDOWS:]]

        def alone() -> list[float]:
            return [float(took) / reads.repeats / reads.moved * nbytes for took in reads.take(_WINDOWS)]

        ours, theirs, ratio = in_turn((loaded, alone), seconds, BANDWIDTH)
        work.check()
        reads.check()
    return Row(f"bandwidth end: read, {_threads(threads)}, delay 0", ours, theirs, ratio, BANDWIDTH, nbytes)


def _work(stage: Stage, delay: int) -> Loading:
    from iobench.kernels.loading import Loading

    return Loading.over(stage.area.data, "read", delay, stage.chase, stage.team)


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"
