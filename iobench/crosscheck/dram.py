"""The memory kernels against C (gcc -O3 -march=native), interleaved on the same pages; peer tools beside them.

A round takes a few samples of iobench's kernel and of its twin in dram.c, in an order that alternates; the
ratio of a round is that of the two fastest samples, so neither what changes slowly in the machine nor a
short disturbance enters. The row's ratio is the median over rounds with its 95 % interval.

Bars: bandwidth iobench/C at least 0.97 for every kernel and thread count; latency within 3 %.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iobench.errors import Unavailable, UserError
from iobench.units import format_rate, format_seconds, format_size

if TYPE_CHECKING:
    from iobench.stats import Interval

Say = Callable[[str], None]
LEAST_BANDWIDTH_RATIO = 0.97
LATENCY_RATIOS = (0.97, 1.03)
_ROW_SECONDS, _QUICK_ROW_SECONDS = 2.0, 0.3
_LEAST_ROUNDS = 8
_PATIENCE = 4.0
_NARROW = 0.005  # half the interval of a ratio: no need to know it better
# Loops begin with a line of code on both sides: where chance lets them end is worth up to 10 % (kernels/ops.py).
_FLAGS = (
    "-O3", "-march=native", "-falign-loops=64", "-fno-tree-loop-distribute-patterns", "-shared", "-fPIC", "-Wno-psabi",
)  # fmt: skip
_SOURCE = Path(__file__).with_name("dram.c")


@dataclass(frozen=True)
class Bar:
    """What a ratio of iobench to C is, from the seconds of both, and when it is good enough."""

    quantity: str
    ratio: Callable[[float, float], float]
    met: Callable[[float], bool]

    def clear(self, ratio: Interval) -> bool:
        """Tell whether the whole interval is on one side of the bar."""
        return len({self.met(value) for value in (ratio.low, ratio.median, ratio.high)}) == 1


BANDWIDTH = Bar("bandwidth", lambda ours, theirs: theirs / ours, lambda ratio: ratio >= LEAST_BANDWIDTH_RATIO)
LATENCY = Bar(
    "latency", lambda ours, theirs: ours / theirs, lambda ratio: LATENCY_RATIOS[0] <= ratio <= LATENCY_RATIOS[1]
)


@dataclass(frozen=True)
class Row:
    """One comparison: seconds of both sides and the ratio that the bar judges."""

    name: str
    ours: float
    theirs: float
    ratio: Interval
    bar: Bar
    moved: int

    @property
    def passed(self) -> bool:
        return self.bar.met(self.ratio.median)

    def text(self) -> str:
        show = self._rate if self.bar.quantity == "bandwidth" else format_seconds
        ratio = f"{self.ratio.median:.3f} ({self.ratio.low:.3f} to {self.ratio.high:.3f}, {self.ratio.n} rounds)"
        return f"{self.name:40} {show(self.ours):>11} {show(self.theirs):>11}  {ratio:38} {_word(self.passed)}"

    def _rate(self, seconds: float) -> str:
        return format_rate(self.moved / seconds)


def run(say: Say, quick: bool = False) -> bool:
    """Compare every kernel; return True where every bar is met. Raises UserError without a C compiler."""
    from iobench import probe, topology
    from iobench.crosscheck import dram_peers as peers

    dram = probe.load("dram")
    points = list(dram.points(topology.discover(), probe.narrow(dram, [])))
    seconds = _QUICK_ROW_SECONDS if quick else _ROW_SECONDS
    with library() as code:
        say(f"C: {code.compiler}, {' '.join(_FLAGS)}; iobench and C run in turn on the same pages")
        say(f"{'':40} {'iobench':>11} {'C':>11}  {'iobench / C':38}")
        rows = list(_rows(points, code, seconds, say))
    for line in peers.compare(points, rounds=1 if quick else 3):
        say(line)
    failed = [row.name for row in rows if not row.passed]
    say(
        f"{len(rows) - len(failed)} of {len(rows)} rows meet the bar"
        + (f"; not: {'; '.join(failed)}" if failed else "")
    )
    return bool(rows) and not failed


def _rows(points: Sequence[dict[str, Any]], code: Library, seconds: float, say: Say) -> Iterator[Row]:
    for point in points:
        # the chase has two sizes per octave: powers of two reach every level
        if point["kernel"] == "chase" and point["nbytes"] & (point["nbytes"] - 1):
            continue
        make, share = {"chase": (_chase_row, 0.5), "walk": (_walk_row, 0.5)}.get(point["kernel"], (_stream_row, 1.0))
        try:
            row = make(point, code, share * seconds)
        except Unavailable as reason:
            say(f"{_name(point):40} skipped: {reason}")
            continue
        say(row.text())
        yield row


def _stream_row(point: dict[str, Any], code: Library, seconds: float) -> Row:
    from iobench import hostmem
    from iobench.kernels import streaming
    from iobench.kernels.team import pinned

    kernel, nbytes = point["kernel"], point["nbytes"]
    with (
        pinned(point["threads"]) as team,
        hostmem.buffer(streaming.room(nbytes, point["threads"]), point["pages"]) as area,
    ):
        work = streaming.Streaming.over(area.data, kernel, point["stores"] == "nt", nbytes, team)
        for driver in (code.stream, None):  # each side alone first, on poisoned arrays: both must be right
            work.fill()
            work.take(1, driver)
            work.check()
        hostmem.require(area, hostmem.inspect(area))
        work.settle()
        sides = (lambda: work.take(3), lambda: work.take(3, code.stream))
        ours, theirs, ratio = in_turn(sides, seconds, BANDWIDTH)
        work.check()
        return Row(_name(point), ours / work.repeats, theirs / work.repeats, ratio, BANDWIDTH, work.moved)


def _chase_row(point: dict[str, Any], code: Library, seconds: float) -> Row:
    from iobench import hostmem
    from iobench.kernels.chasing import Chasing
    from iobench.kernels.team import pinned

    with pinned(1) as team, hostmem.buffer(point["nbytes"], point["pages"]) as area:
        work = Chasing.over(area.data, point["nbytes"], team)
        work.check()
        hostmem.require(area, hostmem.inspect(area))
        loads = work.settle()
        sides = (lambda: work.take(loads, 5), lambda: work.take(loads, 5, code.chase))
        ours, theirs, ratio = in_turn(sides, seconds, LATENCY)
        return Row(_name(point), ours / loads, theirs / loads, ratio, LATENCY, 0)


def _walk_row(point: dict[str, Any], code: Library, seconds: float) -> Row:
    from iobench import hostmem
    from iobench.kernels.team import pinned
    from iobench.kernels.walking import Walking

    with pinned(point["threads"]) as team, hostmem.buffer(point["nbytes"], point["pages"]) as area:
        work = Walking.over(area.data, point["block"], point["prefetch"], 1, team)
        hostmem.require(area, hostmem.inspect(area))
        work.settle()
        sides = (lambda: work.take(3), lambda: work.take(3, code.walk))
        ours, theirs, ratio = in_turn(sides, seconds, BANDWIDTH)
        return Row(_name(point), ours / work.repeats, theirs / work.repeats, ratio, BANDWIDTH, work.moved)


def in_turn(sides: Sequence[Callable[[], Any]], seconds: float, bar: Bar) -> tuple[float, float, Interval]:
    """Run both sides in alternating order until the ratio is clear; return both medians and the ratio.

    Where the interval still lies across the bar when ``seconds`` are over, it goes on for up to four times as long.
    """
    import numpy as np

    from iobench.stats import median_interval

    for side in sides:
        side()
    times: list[tuple[float, float]] = []
    start = time.perf_counter()
    while True:
        swap = len(times) % 2
        first, second = (float(np.min(sides[side]())) for side in ((1, 0) if swap else (0, 1)))
        times.append((second, first) if swap else (first, second))
        if len(times) < _LEAST_ROUNDS:
            continue
        ratio = median_interval([np.array([bar.ratio(mine, other) for mine, other in times])])
        spent = time.perf_counter() - start
        if (bar.clear(ratio) and (ratio.fraction <= _NARROW or spent > seconds)) or spent > _PATIENCE * seconds:
            ours, theirs = np.median(np.array(times), axis=0)
            return float(ours), float(theirs), ratio


def _name(point: dict[str, Any]) -> str:
    if point["kernel"] == "chase":
        return f"chase {format_size(point['nbytes'])}, {point['pages']} pages"
    if point["kernel"] == "walk":
        ahead = f"prefetch {point['prefetch']}" if point["prefetch"] else "no prefetch"
        return f"walk {format_size(point['block'])}, {ahead}, {point['threads']} threads"
    return f"{point['kernel']} {point['stores']}, {point['threads']} threads, {format_size(point['nbytes'])}"


def _word(passed: bool) -> str:
    return "PASS" if passed else "FAIL"


class Library:
    """The compiled C kernels, callable in place of the drive functions of stream, chase, walk and gather."""

    def __init__(self, file: Path, compiler: str) -> None:
        self.compiler = compiler
        code = ctypes.CDLL(str(file))  # releases the GIL in each call
        number, place, real = ctypes.c_int64, ctypes.c_void_p, ctypes.c_double
        self._stream, self._chase, self._walk = code.stream_drive, code.chase_drive, code.walk_drive
        # fmt: off
        self._stream.argtypes = [number, number, place, place, place, number, real, number, place, number, number,
                                 place, place, place]
        # fmt: on
        self._chase.argtypes = [place, number, number, place, place, place]
        self._walk.argtypes = [place, place, number, number, number, number, place, number, number, place, place, place]
        self._gather = code.gather_drive
        self._gather.argtypes = [place, place, place, number, number, number, place, number, number, place, place]
        self._stream.restype = self._chase.restype = self._walk.restype = self._gather.restype = None

    def stream(self, code: int, nt: int, target: Any, a: Any, b: Any, scalar: float, reps: int, *rest: Any) -> None:
        """Stand in for iobench.kernels.stream.drive."""
        barrier, threads, starts, ends, sums = rest
        arrays = [array.ctypes.data for array in (target, a, b)]
        out = [array.ctypes.data for array in (starts, ends, sums)]
        self._stream(code, nt, *arrays, target.size, scalar, reps, int(barrier), threads, starts.size, *out)

    def chase(self, start: Any, loads: int, starts: Any, ends: Any, places: Any) -> None:
        """Stand in for iobench.kernels.chase.drive."""
        out = [array.ctypes.data for array in (starts, ends, places)]
        self._chase(int(start), loads, starts.size, *out)

    def walk(self, base: Any, table: Any, chunks: Any, ahead: Any, passes: int, *rest: Any) -> None:
        """Stand in for iobench.kernels.walk.drive."""
        barrier, threads, starts, ends, sums = rest
        out = [array.ctypes.data for array in (starts, ends, sums)]
        sizes = (table.size, int(chunks), int(ahead), passes)
        self._walk(int(base), table.ctypes.data, *sizes, int(barrier), threads, starts.size, *out)

    def gather(self, target: Any, pool: Any, table: Any, block: int, passes: int, *rest: Any) -> None:
        """Stand in for iobench.kernels.gather.drive."""
        barrier, threads, starts, ends = rest
        arrays = [array.ctypes.data for array in (target, pool, table)]
        out = [array.ctypes.data for array in (starts, ends)]
        self._gather(*arrays, table.size, block, passes, int(barrier), threads, starts.size, *out)


@contextlib.contextmanager
def library() -> Iterator[Library]:
    """Compile dram.c into a temporary folder and yield it; UserError without a compiler."""
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise UserError("the memory crosscheck needs a C compiler: apt install gcc (or set CC)")
    with tempfile.TemporaryDirectory(prefix="iobench-") as folder:
        file = Path(folder) / "dram.so"
        command = [compiler, *_FLAGS, str(_SOURCE), "-o", str(file)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            raise UserError(f"{compiler} does not run: {error.strerror}; set CC to a C compiler") from error
        if done.returncode:
            raise UserError(f"{compiler} refused dram.c: {_last_line(done.stderr)}; set CC to another C compiler")
        yield Library(file, _version(compiler))


def _version(compiler: str) -> str:
    done = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False)
    return done.stdout.splitlines()[0] if done.stdout else compiler


def _last_line(text: str) -> str:
    errors = [line for line in text.splitlines() if "error" in line] or text.splitlines() or ["no reason given"]
    return errors[0]
