"""Copies and latencies of the GPUs beside nvbandwidth, case by case and interleaved in one run.

A round runs nvbandwidth once with all its cases and measures iobench's counterpart of each, in an order that
alternates. A row's ratio is the median over rounds of the two numbers of one round, with its interval; above 1
iobench is the faster one. Rows whose interval after three rounds holds their bar, on whichever side their median lies,
get six rounds more. Messages are 512 MiB, nvbandwidth's default, of which it is told. What iobench does
otherwise: its buffers rotate over more than twice the L2 (not in the copy within a GPU, which is the same pair of
buffers again and again in nvbandwidth).

Bars: every case at least 0.99, cases with both directions busy at least 0.98.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import TYPE_CHECKING, Any

from iobench import probe as probes
from iobench.crosscheck import nvbandwidth
from iobench.crosscheck.peer import Pairs
from iobench.errors import IobenchError, Unavailable, UserError
from iobench.timing.sampler import Sampler
from iobench.units import GB, MIB, NS, format_rate, format_seconds

if TYPE_CHECKING:
    from iobench.timing.sampler import Timed
    from iobench.topology.graph import Topology

BAR, BOTH_BAR = 0.99, 0.98
ROUNDS, QUICK_ROUNDS, MORE_ROUNDS = 3, 1, 6
NBYTES = 512 * MIB  # nvbandwidth's own default; its rates of 64 MiB are up to 8 % lower
_CHASE_NBYTES = 2 * MIB  # nvbandwidth's own
_LOCAL = "a copy within the GPU"  # no point of a probe: hbm's copies rotate
_MOST_GPUS = 2  # rows for more GPUs would take minutes and say the same
_POINT_SECONDS, _TARGET = 0.3, 0.002

Say = Callable[[str], Any]


@dataclass
class Row(Pairs):
    """One cell of a case of nvbandwidth and the point that measures the same; ``lane``: its row of the samples."""

    case: str
    cell: tuple[int, int]
    probe: str
    assignments: tuple[str, ...]
    bar: float = BAR
    lane: int | None = None

    @property
    def known(self) -> str:
        """What is known to differ between the two numbers, or what both count alike against expectation."""
        if self.probe == _LOCAL:
            return "both count a copy once, though it reads and writes"
        if self.latency:
            return "nvbandwidth: mean over SMs; iobench the same"
        if self.lane is not None:
            return "nvbandwidth: one GPU counts, the others copy twice as much beside it; iobench: all count at once"
        if "bidirectional" in self.case:
            return "one direction of the two; iobench's buffers rotate over twice the L2"
        return "iobench's buffers rotate over twice the L2"

    @property
    def unit(self) -> float:
        return NS if self.latency else GB

    @property
    def undecided(self) -> bool:
        """Whether the bar lies within the ratio's interval."""
        return self.ratio.low < self.bar <= self.ratio.high

    def show(self, values: Sequence[float]) -> str:
        return (format_seconds if self.latency else format_rate)(median(values), 4)


def run(say: Say, quick: bool = False) -> bool:
    """Compare with nvbandwidth on the GPUs of this machine and say a row per case; True where every bar is met."""
    from iobench import gpu
    from iobench.gpu.device import machine

    program = nvbandwidth.find()
    try:
        devices = gpu.devices()
    except Unavailable as error:
        raise UserError(f"the GPU crosscheck needs an NVIDIA GPU: {error}") from error
    names = [device.node or f"gpu:{device.index}" for device in devices]
    table = rows(names)
    rounds, graph = QUICK_ROUNDS if quick else ROUNDS, machine()
    say(f"{len(table)} cases on {', '.join(names[:_MOST_GPUS])}, {rounds} rounds in turns with {program}")
    sampler = Sampler(budget=_POINT_SECONDS, target=_TARGET)
    with contextlib.closing(sampler):
        _rounds(program, table, range(rounds), sampler, graph, say)
        open_rows = [] if quick else [row for row in table if not row.reason and row.undecided]
        if open_rows:
            say(f"{len(open_rows)} cases are undecided: {MORE_ROUNDS} rounds more of them")
            _rounds(program, open_rows, range(rounds, rounds + MORE_ROUNDS), sampler, graph, say)
    return judge(table, say)


def _rounds(program: str, table: Sequence[Row], numbers: range, sampler: Sampler, graph: Topology, say: Say) -> None:
    for number in numbers:
        for peer in (True, False) if number % 2 == 0 else (False, True):
            if peer:
                _peer_round(program, table, say)
            else:
                _our_round(table, sampler, graph, say)
        low = [row for row in table if not row.reason and row.ratio.median < row.bar]
        say(f"round {number + 1}: {len(low)} of {len(table)} cases below their bars so far")


def rows(gpus: Sequence[str]) -> list[Row]:
    """Return the comparable cases of GPUs with these names in the topology, in CUDA's order."""
    numbers = [name.partition(":")[2] for name in gpus]
    found = [row for column in range(min(len(gpus), _MOST_GPUS)) for row in _host_rows(column, numbers[column])]
    if len(gpus) > 1:
        found += [row for pair in ((0, 1), (1, 0)) for row in _pair_rows(pair, numbers)]
    if 1 < len(gpus) <= _MOST_GPUS:
        found += [row for column in range(len(gpus)) for row in _all_rows(column)]
    return found


def _host_rows(column: int, number: str) -> list[Row]:
    at = (0, column)
    table = []
    for direction, case in (("h2d", "host_to_device"), ("d2h", "device_to_host")):
        for engine, mode in (("ce", "events"), ("sm", "kernel-loop")):
            way = (
                f"gpus={number}", f"direction={direction}", f"engine={engine}", "memory=pinned", f"mode={mode}",
                f"nbytes={NBYTES}",
            )  # fmt: skip
            table.append(Row(f"{case}_memcpy_{engine}", at, "pcie", (*way, "traffic=one")))
            both = f"{case}_bidirectional_memcpy_{engine}"
            table.append(Row(both, at, "pcie", (*way, "traffic=both"), BOTH_BAR))
    chase = ("op=chase", f"gpus={number}", "pattern=stride", f"nbytes={_CHASE_NBYTES}")
    table.append(Row("host_device_latency_sm", at, "pcie", chase, latency=True))
    table.append(Row("device_local_copy", at, _LOCAL, (f"gpu:{number}",)))
    return table


def _pair_rows(at: tuple[int, int], numbers: Sequence[str]) -> list[Row]:
    pair = (f"gpu={numbers[at[0]]}", f"peer={numbers[at[1]]}")
    table = []
    for direction in ("read", "write"):
        for engine, mode in (("ce", "events"), ("sm", "kernel-loop")):
            way = (*pair, f"direction={direction}", f"engine={engine}", f"mode={mode}", f"nbytes={NBYTES}")
            table.append(Row(f"device_to_device_memcpy_{direction}_{engine}", at, "p2p", (*way, "traffic=one")))
            both = f"device_to_device_bidirectional_memcpy_{direction}_{engine}"
            table.append(Row(both, at, "p2p", (*way, "traffic=both"), BOTH_BAR))
    chase = (*pair, "op=chase", "pattern=stride", f"nbytes={_CHASE_NBYTES}")
    table.append(Row("device_to_device_latency_sm", at, "p2p", chase, latency=True))
    return table


def _all_rows(column: int) -> list[Row]:
    way = ("gpus=all", "engine=ce", "mode=events", "traffic=one", f"nbytes={NBYTES}")
    return [
        Row("host_to_all_memcpy_ce", (0, column), "pcie", (*way, "direction=h2d"), lane=column),
        Row("all_to_host_memcpy_ce", (0, column), "pcie", (*way, "direction=d2h"), lane=column),
    ]


def _peer_round(program: str, table: Sequence[Row], say: Say) -> None:
    """Add nvbandwidth's number to every row that still counts."""
    wanted = list(dict.fromkeys(row.case for row in table if not row.reason))
    cases = nvbandwidth.run(program, wanted, NBYTES)
    for row in table:
        if row.reason:
            continue
        case = cases[row.case]
        value = case.cell(*row.cell)
        if value is None:
            row.reason = f"nvbandwidth: {case.reason or 'no value in this cell'}"
            say(f"left out: {row.case} {row.cell}: {row.reason}")
        else:
            row.peers.append(value * row.unit)


def _our_round(table: Sequence[Row], sampler: Sampler, topology: Topology, say: Say) -> None:
    """Measure every row that still counts; rows that are lanes of one point share its samples."""
    done: dict[tuple[str, tuple[str, ...]], _Result] = {}
    for row in table:
        key = (row.probe, row.assignments)
        if row.reason:
            continue
        try:
            if key not in done:
                done[key] = _measure(row, sampler, topology)
        except (Unavailable, UserError) as error:
            row.reason = f"iobench: {error}"
            say(f"left out: {row.case} {row.cell}: {row.reason}")
            continue
        row.ours.append(_number(row, done[key]))


@dataclass(frozen=True)
class _Result:
    """The times of a point, the bytes of one message and those that one operation moved."""

    timed: Timed
    nbytes: int
    moved: int


def _measure(row: Row, sampler: Sampler, topology: Topology) -> _Result:
    if row.probe == _LOCAL:
        return _Result(_local_copy(row.assignments[0], sampler), NBYTES, NBYTES)
    probe = probes.load(row.probe)
    points = list(probe.points(topology, probes.narrow(probe, row.assignments)))
    if len(points) != 1:
        raise IobenchError(f"{row.probe} has {len(points)} points for {' '.join(row.assignments)}, not one")
    samples = probe.measure(points[0], sampler)
    return _Result(samples.timed, samples.nbytes, samples.moved)


def _local_copy(node: str, sampler: Sampler) -> Timed:
    """Time copies within a GPU's memory, always between the same two buffers, as nvbandwidth does."""
    from iobench import gpu
    from iobench.gpu import copying
    from iobench.timing import cuda

    device = gpu.at(node)
    with gpu.buffer(NBYTES, device) as src, gpu.buffer(NBYTES, device) as dst, gpu.stream(device) as stream:
        layout = copying.Layout(NBYTES, NBYTES, 1)
        copy = copying.Copy(src, dst, layout, device, "ce", stream)
        copy.prepare()
        timed = cuda.events(sampler, copy.enqueue, stream)
        copy.verify(f"copy within {node}")
    return timed


def _number(row: Row, result: _Result) -> float:
    """Return a rate (one lane's where the row is a lane) or the mean time of a load, as nvbandwidth's is over SMs."""
    timed = result.timed
    if row.latency:
        return mean(timed.seconds[0]) / timed.ops
    seconds = median(timed.seconds[row.lane or 0]) / timed.ops
    return (result.nbytes if row.lane is not None else result.moved) / seconds


def judge(table: Sequence[Row], say: Say) -> bool:
    """Say every row's two numbers and their ratio; True where there are rows and all meet their bars."""
    say(f"{'case':<46} {'cell':>6} {'nvbandwidth':>12} {'iobench':>12} {'ratio':>7}")
    met = []
    for row in table:
        if row.peers and row.ours and not row.reason:
            ratio = row.ratio
            met.append(ratio.median >= row.bar)
            doubt = ", the bar lies within the interval" if row.undecided else ""
            say(
                f"{row.case:<46} {row.cell[0]},{row.cell[1]:<4} {row.show(row.peers):>12} {row.show(row.ours):>12}"
                f" {ratio.median:>7.4f} {row.spread} {'PASS' if met[-1] else 'FAIL'}"
                f" (bar {row.bar}{doubt})   {row.known}".rstrip()
            )
    say(f"{'PASS' if met and all(met) else 'FAIL'}: {sum(met)} of {len(met)} cases meet their bars")
    return bool(met) and all(met)
