"""All-reduce between GPUs beside nccl-tests, size by size and interleaved in one run.

A round runs ``all_reduce_perf`` over all sizes (one thread per GPU) and measures iobench's points of the same mode
(one process per GPU), in an order that alternates, on the same libnccl and with the same NCCL variables. A row's
ratio is the median over rounds of the two times of one round, with its interval; below 1 iobench's is the shorter.

What differs: nccl-tests reports the mean over its ranks of each rank's mean over iterations, iobench the median over
iterations of the slowest rank. nccl-tests starts its clock before launching and stops it after waiting for all, which
adds a few microseconds to a whole series; iobench's events lie around the operations.

RANKS=2,4,8 compares each of these numbers of GPUs (all of them unless said), TRANSPORT and ALGO (ring, tree) what NCCL
is made to take by both. At the end a sweep of the machine's transports is timed on both sides (nccl_sweep).

Bars: graph at most 1.02 at every size, eager and blocking at most 1.05 from 1 MiB on (below, Python's launch cost is
what is timed, and is reported).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from iobench import importers
from iobench import probe as probes
from iobench.collectives.transport import AUTO, Way
from iobench.errors import IobenchError, Unavailable, UserError
from iobench.timing.sampler import Sampler
from iobench.units import MIB, format_rate, format_seconds, format_size

if TYPE_CHECKING:
    from iobench.stats import Interval
    from iobench.topology.graph import Topology

PROGRAM = "all_reduce_perf"
GRAPH_BAR, HOST_BAR = 1.02, 1.05
ROUNDS, QUICK_ROUNDS = 3, 1
LEAST_NBYTES, MOST_NBYTES, HOST_FROM = 8, 512 * MIB, MIB
_WARM, _ITERATIONS, _GRAPHS = 20, 100, 5
_MODES: dict[str, tuple[str, ...]] = {"graph": ("-G", str(_GRAPHS)), "eager": (), "blocking": ("-z", "1")}
_PEER_SECONDS = 300.0
_POINT_SECONDS, _TARGET = 0.15, 0.002

Say = Callable[[str], Any]


@dataclass
class Row:
    """One size in one mode, in or out of place: seconds of one operation by both, a pair for each round."""

    transport: str
    mode: str
    inplace: bool
    nbytes: int
    ranks: int = 2
    algo: str = AUTO
    peers: list[float] = field(default_factory=list)
    ours: list[float] = field(default_factory=list)

    @property
    def bar(self) -> float | None:
        """The most that the ratio may be; None where there is no bar."""
        if self.mode == "graph":
            return GRAPH_BAR
        return HOST_BAR if self.nbytes >= HOST_FROM else None

    @property
    def ratio(self) -> Interval:
        """iobench's time over nccl-tests' of the same round."""
        import numpy as np

        from iobench.stats import median_interval

        return median_interval([np.asarray(self.ours) / np.asarray(self.peers)])


def run(say: Say, quick: bool = False) -> bool:
    """Compare with nccl-tests on this machine's GPUs and say a row per size; True where every bar is met."""
    from iobench import topology
    from iobench.crosscheck import nccl_sweep

    program = find()
    graph = topology.discover()
    gpus = [node.id for node in graph.of("gpu") if node.get("vendor") == "NVIDIA"]
    if len(gpus) < 2:
        raise UserError(f"the NCCL crosscheck needs two NVIDIA GPUs: the topology shows {len(gpus)}")
    transport, algo = os.environ.get("TRANSPORT", "nvlink"), os.environ.get("ALGO", AUTO)
    table = [row for ranks in _counts(len(gpus)) for row in rows(transport, ranks, algo)]
    say(f"{len(table)} rows over {transport} between {len(gpus)} GPUs, in turns with {program}")
    _rounds(program, table, graph, QUICK_ROUNDS if quick else ROUNDS, say)
    met = judge(table, say)
    return (quick or nccl_sweep.run(program, graph, len(gpus), say)) and met


def _counts(gpus: int) -> list[int]:
    """Return the numbers of ranks that RANKS names, else all GPUs."""
    text = os.environ.get("RANKS", "") or str(gpus)
    counts = [int(word) for word in text.split(",") if word.strip().isdecimal()]
    if not counts or not all(2 <= count <= gpus for count in counts):
        raise UserError(
            f"RANKS={text} names no numbers of ranks from 2 to {gpus}, the GPUs here: RANKS=2,4, for example"
        )
    return counts


def find() -> str:
    """Return all_reduce_perf's path from PEER or PATH; UserError where it is neither."""
    named = os.environ.get("PEER", "")
    found = shutil.which(named or PROGRAM)
    if not found:
        where = f"PEER={named} is no program" if named else f"{PROGRAM} is not on the PATH"
        raise UserError(f"{where}: build nccl-tests and give PEER=/path/to/build/{PROGRAM}")
    return str(Path(found).resolve())


def rows(transport: str, ranks: int = 2, algo: str = AUTO) -> list[Row]:
    """Return all sizes out of place in graph mode, and some of the others."""
    sizes = [LEAST_NBYTES << n for n in range(64) if LEAST_NBYTES << n <= MOST_NBYTES]
    ways = [("graph", False, sizes), ("graph", True, sizes[::3])]
    ways += [(mode, False, sizes[::3]) for mode in ("eager", "blocking")]
    return [Row(transport, mode, place, nbytes, ranks, algo) for mode, place, some in ways for nbytes in some]


def command(program: str, mode: str, gpus: int) -> list[str]:
    """Return the peer's command line for a mode: every size, one thread per GPU, results checked once."""
    sweep = ["-b", str(LEAST_NBYTES), "-e", str(MOST_NBYTES), "-f", "2"]
    return [program, "-t", str(gpus), "-g", "1", *sweep, "-w", str(_WARM), "-n", str(_ITERATIONS), *_MODES[mode]]


def _rounds(program: str, table: Sequence[Row], graph: Topology, rounds: int, say: Say) -> None:
    spent = {True: 0.0, False: 0.0}
    sampler = Sampler(budget=_POINT_SECONDS, target=_TARGET)
    with contextlib.closing(sampler):
        for number in range(rounds):
            for peer in (True, False) if number % 2 == 0 else (False, True):
                start = time.monotonic()
                if peer:
                    _peer_round(program, table, say)
                else:
                    _our_round(table, graph, sampler)
                spent[peer] += time.monotonic() - start
            say(f"round {number + 1} of {rounds}: nccl-tests {spent[True]:.0f} s so far, iobench {spent[False]:.0f} s")


def _peer_round(program: str, table: Sequence[Row], say: Say) -> None:
    for ranks, mode in dict.fromkeys((row.ranks, row.mode) for row in table):
        wanted = [row for row in table if (row.ranks, row.mode) == (ranks, mode)]
        words = command(program, mode, ranks)
        found = peer_times(output(words, Way(wanted[0].transport, wanted[0].algo)))
        for row in wanted:
            if (row.nbytes, row.inplace) not in found:
                raise UserError(
                    f"nccl-tests printed no row for {format_size(row.nbytes)} in mode {mode}; run it by hand: "
                    f"{' '.join(words)}"
                )
            row.peers.append(found[row.nbytes, row.inplace])
        say(f"nccl-tests {mode}, {ranks} GPUs: {len(found)} times")


def output(words: list[str], way: Way) -> str:
    """Return what the peer prints, with our own NCCL variables and, first on its path, our own libnccl."""
    made = {name: value for name, value in way.environment("").items() if "DEBUG" not in name}
    environment = {**os.environ, **made}
    library = _library_folder()
    if library:
        environment["LD_LIBRARY_PATH"] = f"{library}:{environment.get('LD_LIBRARY_PATH', '')}".rstrip(":")
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=_PEER_SECONDS, check=False, env=environment,
            errors="replace",
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise UserError(f"nccl-tests gave no result within {_PEER_SECONDS:g} s: {' '.join(words)}") from error
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise UserError(
            f"nccl-tests ended with status {done.returncode} ({' '.join(words)}): {said[-1] if said else ''}"
        )
    return done.stdout


def peer_times(output: str) -> dict[tuple[int, bool], float]:
    """Return (nbytes, in place) -> seconds of nccl-tests' output; rows with wrong data are an error."""
    with tempfile.NamedTemporaryFile("w", suffix=".log", encoding="utf-8") as file:
        file.write(output)
        file.flush()
        read = importers.read_log(importers.load(Path(file.name)))
    wrong = [line for line in read.lines if line.verified is False]
    if wrong:
        raise IobenchError(f"nccl-tests found wrong data at {format_size(wrong[0].nbytes)}: look at this machine first")
    return {
        (line.nbytes, bool(line.point.get("inplace"))): line.seconds[0][0] / line.ops
        for line in read.lines
        if line.seconds
    }


def _library_folder() -> str:
    """Return the folder of the libnccl that this process would use, "" where it can't be told."""
    from iobench.nccl import library

    with contextlib.suppress(ImportError, OSError):
        from cupy.cuda import nccl

        nccl.get_version()
    found = library.path()
    return str(Path(found).parent) if found else ""


def _our_round(table: Sequence[Row], graph: Topology, sampler: Sampler) -> None:
    probe = probes.load("allreduce")
    for row in table:
        place = "yes" if row.inplace else "no"
        axes = [f"transport={row.transport}", f"mode={row.mode}", f"inplace={place}", f"nbytes={row.nbytes}"]
        axes += [f"ranks={row.ranks}", *([f"algo={row.algo}"] if row.algo != AUTO else [])]
        points = list(probe.points(graph, probes.narrow(probe, ["engine=nccl", *axes])))
        if not points:
            raise Unavailable(f"this machine has no point for {' '.join(axes)}")
        samples = probe.measure(points[0], sampler)
        timed = samples.timed
        row.ours.append(median(map(max, zip(*timed.seconds, strict=True))) / timed.ops)


def judge(table: Sequence[Row], say: Say) -> bool:
    """Say every row's two times and their ratio; True where there are rows with bars and all meet theirs."""
    say(
        f"{'ranks':>5} {'mode':<9} {'place':>5} {'nbytes':>8} {'nccl-tests':>11} {'iobench':>11} {'algbw':>10}  "
        "ratio of times"
    )
    met = []
    for row in table:
        if not row.peers or not row.ours:
            continue
        ratio, bar = row.ratio, row.bar
        if bar is None:
            word = "not judged: Python's launch cost"
        else:
            met.append(ratio.median <= bar)
            doubt = ", the bar lies within the interval" if ratio.low <= bar < ratio.high else ""
            word = f"{'PASS' if met[-1] else 'FAIL'} (bar {bar}{doubt})"
        place, ours, peers = "in" if row.inplace else "out", median(row.ours), median(row.peers)
        say(
            f"{row.ranks:>5} {row.mode:<9} {place:>5} {format_size(row.nbytes):>8} {format_seconds(peers, 4):>11} "
            f"{format_seconds(ours, 4):>11} {format_rate(row.nbytes / ours):>10}  {ratio.median:.4f} "
            f"({ratio.low:.4f} .. {ratio.high:.4f}) {word}"
        )
    say(f"{'PASS' if met and all(met) else 'FAIL'}: {sum(met)} of {len(met)} rows meet their bars")
    return bool(met) and all(met)
