"""How long a sweep of the machine's transports takes, with intervals, beside nccl-tests' own sweeps.

nccl-tests: a process per transport, all sizes by two, out of place and in place, 20 warm-ups and 100 iterations each.
iobench: the same points on NCCL itself, in graphs, sampled until the interval is narrow, the start of all processes
counted on both sides. Bar: iobench takes no longer.
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
from iobench.units import MIB, format_size

if TYPE_CHECKING:
    from iobench.topology.graph import Topology

MOST_NBYTES = {"nvlink": 512 * MIB, "pcie": 512 * MIB, "shm": 512 * MIB, "socket": 64 * MIB}


def run(program: str, graph: Topology, ranks: int, say: nccl.Say) -> bool:
    """Time both sweeps and say so; True where iobench's took no longer."""
    spent = {"nccl-tests": 0.0, "iobench": 0.0}
    for transport in _transports(graph):
        start = time.monotonic()
        words = nccl.command(program, "eager", ranks, MOST_NBYTES[transport])
        theirs = nccl.peer_times(nccl.output(words, Way(transport)))
        middle = time.monotonic()
        ours, unsure = _ours(transport, ranks)
        end = time.monotonic()
        spent["nccl-tests"] += middle - start
        spent["iobench"] += end - middle
        say(
            f"sweep over {transport} to {format_size(MOST_NBYTES[transport])}: nccl-tests {len(theirs)} times in "
            f"{middle - start:.1f} s, iobench {ours} times with intervals in {end - middle:.1f} s ({unsure} not ok)"
        )
    return judge(spent, say)


def judge(spent: dict[str, float], say: nccl.Say) -> bool:
    """Say whether iobench's sweeps took no longer than nccl-tests'."""
    met = 0 < spent["iobench"] <= spent["nccl-tests"]
    ours, theirs = spent["iobench"], spent["nccl-tests"]
    say(f"{'PASS' if met else 'FAIL'}: all sweeps took {ours:.1f} s, nccl-tests' {theirs:.1f} s (bar: no longer)")
    return met


def _transports(graph: Topology) -> list[str]:
    """Return the transports that this machine has points for."""
    probe, found = probes.load("allreduce"), []
    for transport in MOST_NBYTES:
        axes = probes.narrow(probe, ["engine=nccl", f"transport={transport}", "nbytes=8"])
        try:
            found += [transport] if list(probe.points(graph, axes)) else []
        except Unavailable:
            continue
    return found


def _ours(transport: str, ranks: int) -> tuple[int, int]:
    """Return how many points one run of iobench measured, and how many of them are not ok."""
    from iobench.run import run as measure

    sizes = f"nbytes=8:{MOST_NBYTES[transport]}"
    axes = ["engine=nccl", "mode=graph", "inplace=no,yes", f"transport={transport}", f"ranks={ranks}", sizes]
    with tempfile.TemporaryDirectory(prefix="iobench-sweep-") as folder:
        made: Any = measure("allreduce", axes, out=Path(folder) / "run", launches=1)
        records = list(made)
    return len(records), sum(1 for record in records if any(line.status != "ok" for line in record.lines))
