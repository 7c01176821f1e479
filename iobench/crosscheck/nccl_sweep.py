"""How long a sweep of the machine's transports takes, with intervals, beside nccl-tests' own sweeps.

nccl-tests: a process per transport, all sizes by two, out of place and in place, 20 warm-ups and 100 iterations each.
iobench: one run of the same points on NCCL itself, in graphs, sampled until the interval is narrow. The start of all
processes counts on both sides, and over all transports the sizes are the same. Bar: iobench takes no longer.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iobench import probe as probes
from iobench.collectives.transport import Way
from iobench.crosscheck import nccl
from iobench.errors import Unavailable

if TYPE_CHECKING:
    from iobench.record import Record
    from iobench.topology.graph import Topology

TRANSPORTS = ("nvlink", "pcie", "shm", "socket")


def run(program: str, graph: Topology, ranks: int, say: nccl.Say) -> bool:
    """Time both sweeps and say so; True where iobench's took no longer."""
    transports = _transports(graph)
    theirs = {transport: _theirs(program, transport, ranks, say) for transport in transports}
    start = time.monotonic()
    records = _ours(transports, ranks)
    spent = time.monotonic() - start
    for transport in transports:
        mine = [record for record in records if record.point["transport"] == transport]
        unsure = sum(1 for record in mine if any(line.status != "ok" for line in record.lines))
        seconds = sum(line.elapsed for record in mine for line in record.lines)
        say(f"iobench over {transport}: {len(mine)} times with intervals, {seconds:.1f} s of its run ({unsure} not ok)")
    return judge({"nccl-tests": sum(theirs.values()), "iobench": spent}, say)


def _theirs(program: str, transport: str, ranks: int, say: nccl.Say) -> float:
    """Return the seconds of nccl-tests' sweep over one transport."""
    start = time.monotonic()
    words = nccl.command(program, "eager", ranks)
    times = nccl.peer_times(nccl.output(words, Way(transport)))
    spent = time.monotonic() - start
    say(f"nccl-tests over {transport}: {len(times)} times in {spent:.1f} s")
    return spent


def judge(spent: dict[str, float], say: nccl.Say) -> bool:
    """Say whether iobench's sweeps took no longer than nccl-tests'."""
    met = 0 < spent["iobench"] <= spent["nccl-tests"]
    ours, theirs = spent["iobench"], spent["nccl-tests"]
    say(f"{'PASS' if met else 'FAIL'}: all sweeps took {ours:.1f} s, nccl-tests' {theirs:.1f} s (bar: no longer)")
    return met


def _transports(graph: Topology) -> list[str]:
    """Return the transports that this machine has points for, in the order of TRANSPORTS."""
    probe, found = probes.load("allreduce"), []
    for transport in TRANSPORTS:
        axes = probes.narrow(probe, ["engine=nccl", f"transport={transport}", "nbytes=8"])
        try:
            found += [transport] if list(probe.points(graph, axes)) else []
        except Unavailable:
            continue
    return found


def _ours(transports: list[str], ranks: int) -> list[Record]:
    """Return the records of one run of iobench over all transports."""
    from iobench.run import run as measure

    sizes = f"nbytes={nccl.LEAST_NBYTES}:{nccl.MOST_NBYTES}"
    ways = [f"transport={','.join(transports)}", f"ranks={ranks}"]
    axes = ["engine=nccl", "mode=graph", "inplace=no,yes", *ways, sizes]
    with tempfile.TemporaryDirectory(prefix="iobench-sweep-") as folder:
        made: Any = measure("allreduce", axes, out=Path(folder) / "run", launches=1)
        return list(made)
