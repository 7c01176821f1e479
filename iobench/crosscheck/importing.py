"""How fast a large log is read: 100 MB of nccl-tests text, made up in a temporary folder, into a run's folder."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from iobench.units import GB, MB, US

BAR_SECONDS = 10.0
NBYTES = 100 * MB
QUICK_NBYTES = 10 * MB
_SIZES = tuple(1 << n for n in range(3, 30))


def run(say: Callable[[str], Any], quick: bool = False) -> bool:
    """Make the log, import it, and say the seconds; True when 100 MB take less than 10 s (a tenth of both if quick)."""
    from iobench import importers
    from iobench.importers import write

    nbytes = QUICK_NBYTES if quick else NBYTES
    bar = BAR_SECONDS * nbytes / NBYTES
    with tempfile.TemporaryDirectory(prefix="iobench-import-") as folder:
        path = Path(folder) / "nccl-tests.log"
        rows = _make(path, nbytes)
        size = path.stat().st_size
        start = time.perf_counter()
        log = importers.load(path)
        imported = importers.read_log(log)
        write.write(importers.to_run(log, imported), Path(folder) / "run")
        seconds = time.perf_counter() - start
    complete = imported.rows == rows and not imported.unread
    met = complete and seconds < bar
    say(
        f"{'PASS' if met else 'FAIL'}: {size / MB:.0f} MB of nccl-tests text in {seconds:.2f} s (bar {bar:g} s); "
        f"{imported.rows} of {rows} rows read, {len(imported.unread)} unread"
    )
    return met


def _make(path: Path, nbytes: int) -> int:
    """Write runs of all_reduce_perf with NCCL's lines between until the file is large enough; return its rows."""
    rng, rows, size = random.Random(1), 0, 0
    with path.open("w", encoding="ascii") as file:
        while size < nbytes:
            size += file.write("".join(_one_run(rng)))
            rows += len(_SIZES)
    return rows


def _one_run(rng: random.Random) -> Iterator[str]:
    yield "# nccl-tests version 2.19.6 nccl-headers=22809 nccl-library=22809\n"
    yield "# Collective test starting: all_reduce_perf\n"
    yield (
        f"# nThread 1 nGpus 2 minBytes {_SIZES[0]} maxBytes {_SIZES[-1]} step: 2(factor) warmup iters: 1 iters: 20 "
        "agg iters: 1 validation: 1 graph: 0 unalign: 0\n#\n# Using devices\n"
    )
    for rank in range(2):
        process = rng.randrange(10**6)
        yield f"#  Rank  {rank} Group  0 Pid {process:6d} on      box device  {rank} [0000:00:06] NVIDIA H200\n"
    for channel in range(16):
        yield f"box:77:88 [0] NCCL INFO Channel {channel:02d}/0 : 0[0] -> 1[1] via P2P/CUMEM\n"
    names = "time   algbw   busbw  #wrong"
    yield f"#\n#       size         count      type   redop    root     {names}     {names} \n"
    for nbytes in _SIZES:
        sides = []
        for _ in range(2):
            seconds = round(12 + nbytes / 300e3 + rng.random(), 2)
            rate = nbytes / (seconds * US) / GB
            sides.append(f"  {seconds:7.2f}  {rate:6.2f}  {rate:6.2f}       0")
        yield f"{nbytes:12d}  {nbytes // 4:12d}     float     sum      -1{''.join(sides)}\n"
    yield "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 77.4265 \n#\n"
    yield "# Collective test concluded: all_reduce_perf\n"
