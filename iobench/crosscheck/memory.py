"""How much host memory a load by O_DIRECT takes: a checkpoint of 8 GiB through the ring, in a process of its own.

On a GPU the bytes go to its memory; elsewhere a stand-in sums them and lets them go, so the ring is the same and the
destination is none. What counts is by how much the process's resident memory grew at most (VmHWM) from right before
its slots were made until the last byte had arrived; every byte is checked afterwards.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from iobench.errors import IobenchError, Unavailable, UserError
from iobench.paths import source_root
from iobench.storage import load, peak, plan, verify
from iobench.storage.checkpoint import from_files
from iobench.storage.device import device_of
from iobench.storage.files import Files
from iobench.storage.filesystem import NOT_STORAGE, filesystem_of
from iobench.storage.make import made
from iobench.storage.target import Nowhere, Target
from iobench.storage.way import Way
from iobench.units import GIB, MIB, format_rate, format_size

BAR_NBYTES = 512 * MIB
NBYTES, QUICK_NBYTES, SHARDS = 8 * GIB, GIB, 2
WAY = Way("direct", 16, 4 * MIB, 2)  # a ring of 128 MiB
_SECONDS = 900.0
_PIECE = 512 * MIB  # is summed at once

Say = Callable[[str], Any]


def run(say: Say, quick: bool = False, scratch: Path | None = None) -> bool:
    """Load a checkpoint in ``scratch`` (default: here); True where the growth stays below 512 MiB."""
    where, nbytes = scratch or Path.cwd(), QUICK_NBYTES if quick else NBYTES
    filesystem = filesystem_of(where)
    if not filesystem.is_storage:
        raise UserError(f"{where} is on {filesystem.name}, {NOT_STORAGE}: run it in a folder on a disk")
    with made(where, nbytes, SHARDS) as files:
        found = elsewhere([shard.path for shard in files.checkpoint.shards])
    return judge(found, nbytes, say)


def judge(found: dict[str, Any], nbytes: int, say: Say) -> bool:
    """Say what a load took; True where the bar is met."""
    if found["growth"] is None:
        say("FAIL: this kernel does not tell a process's peak (VmHWM)")
        return False
    say(
        f"{format_size(nbytes)} to {found['target']} by O_DIRECT at {format_rate(nbytes / found['seconds'])}, "
        f"verified, through a ring of {format_size(found['ring'])}"
    )
    met = bool(found["growth"] < BAR_NBYTES)
    say(
        f"{'PASS' if met else 'FAIL'}: host memory grew by {format_size(found['growth'])} at most (bar "
        f"{format_size(BAR_NBYTES)}); the whole process had {format_size(found['peak'])}"
    )
    return met


def elsewhere(paths: Sequence[Path]) -> dict[str, Any]:
    """Measure in another process, whose memory holds nothing else; IobenchError with its last words where it fails."""
    command = [sys.executable, "-c", "from iobench.crosscheck import memory; memory.child()", *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, cwd=source_root(), check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise IobenchError(lines[-1])
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def child() -> None:
    """Measure the files named on the command line; the answer goes to standard output."""
    json.dump(measure([Path(path) for path in sys.argv[1:]]), sys.stdout)


def measure(paths: Sequence[Path]) -> dict[str, Any]:
    """Load the files once and verify them; return seconds, bytes of growth, peak and ring, and the target's name."""
    checkpoint = from_files(paths)
    files = Files(checkpoint, (), filesystem_of(paths[0]), device_of(paths[0]), 0.0)
    wanted = plan.files(checkpoint)
    with target(wanted.room) as there:
        stage = load.Stage(files, wanted, there, ())
        peak.reset()
        before = peak.now()
        with load.ready(stage, WAY) as operation:
            seconds = load.seconds_of(operation)
            assert operation.ring is not None
            ring = sum(slot.size for lane in operation.ring.lanes for slot in lane.slots)
        growth, most = peak.growth(before), peak.now()
        _check(stage)
    return {"seconds": seconds, "growth": growth, "peak": most, "ring": ring, "target": there.name}


@contextlib.contextmanager
def target(nbytes: int) -> Iterator[Target]:
    """Yield the first GPU's memory where there is a GPU, else the stand-in."""
    from iobench import gpu
    from iobench.storage import ongpu

    try:
        gpu.require()
    except Unavailable:
        yield Nowhere(nbytes, summing=True)
        return
    with ongpu.memory(nbytes, gpu.device(0)) as there:
        yield there


def _check(stage: load.Stage) -> None:
    """Raise WrongData where a byte in the target is not the file's; in pieces, for memory is what is at stake."""
    for area in stage.plan.areas:
        path = stage.files.checkpoint.shards[area.shard].path
        for at in range(0, area.nbytes, _PIECE):
            nbytes = min(_PIECE, area.nbytes - at)
            found = stage.target.sums(area.start + at, nbytes)
            verify.compare(found, verify.file_sums(path, nbytes, at), f"{area.name} from {at}")
