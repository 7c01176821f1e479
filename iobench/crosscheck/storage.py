"""O_DIRECT reads beside fio: the same file, the same bytes, the same kind of buffers, in turns.

Both read the whole file several times into one small buffer per thread or queue slot, iobench by blocking threads and
with reads in flight (io_uring, native AIO), fio by the same three. Both get huge pages, fio
by glibc's tunable for malloc (2.35 and later) and 2 MiB alignment: the rate follows the physical contiguity of
the buffers, and a peer on 4 KiB pages would be no peer. A first pass tries every configuration; then the best of
each side are measured anew in turns, so that picking the best favours neither.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import numpy as np

from iobench import hostmem
from iobench.crosscheck.peer import find as find_peer
from iobench.errors import IobenchError, UserError
from iobench.stats import Interval, median_interval
from iobench.storage import plan, read, ring
from iobench.storage.checkpoint import Checkpoint
from iobench.storage.device import count, device_of
from iobench.storage.filesystem import NOT_STORAGE, filesystem_of
from iobench.storage.flight import AIO, IO_URING, PREADV
from iobench.storage.make import made
from iobench.storage.target import NowhereLane, carve
from iobench.units import KIB, MIB, format_rate, format_size

BAR = 0.97
NBYTES = 512 * MIB
PASSES = 2  # over the file, per measurement
ROUNDS, QUICK_ROUNDS = 25, 5
MOST = 4  # times the rounds, where they leave it open whether the bar is met
_TRIES = 2  # of each configuration in the first pass
_FINALISTS = 2
_FIO_SECONDS = 60
_TUNABLE = "glibc.malloc.hugetlb=1"
_INSTALL = "apt-get install fio"

Say = Callable[[str], Any]


class Contender(Protocol):
    """One way to read a file; ``measure`` returns bytes per second."""

    @property
    def name(self) -> str: ...

    def measure(self, checkpoint: Checkpoint) -> float: ...


@dataclass(frozen=True)
class Ours:
    """iobench's reader: ``threads`` threads, blocks of ``block`` bytes, ``depth`` of them in flight per thread."""

    threads: int
    block: int
    engine: str = PREADV
    depth: int = 1

    @property
    def name(self) -> str:
        deep = "" if self.engine == PREADV else f" {self.depth:<2} deep"
        return f"iobench {self.engine:<8} {format_size(self.block):>8} x {self.threads:<2} threads{deep}"

    def measure(self, checkpoint: Checkpoint) -> float:
        """Read the file PASSES times within one clock."""
        with _ring(self, checkpoint) as operation:
            start = time.perf_counter()
            operation()
            return PASSES * checkpoint.nbytes / (time.perf_counter() - start)


@dataclass(frozen=True)
class Fio:
    """fio with one engine: ``depth`` requests in flight in one job, or ``jobs`` jobs that each read a part."""

    engine: str
    block: int
    depth: int = 1
    jobs: int = 1

    @property
    def name(self) -> str:
        many = f"{self.jobs:<2} jobs" if self.jobs > 1 else f"{self.depth:<2} deep"
        return f"fio {self.engine:<9} {format_size(self.block):>8} x {many}"

    def command(self, path: Path, nbytes: int) -> list[str]:
        part = nbytes // self.jobs
        return [
            find_peer("fio") or "fio",
            "--name=peer", f"--filename={path}", "--rw=read", "--direct=1", f"--ioengine={self.engine}",
            f"--bs={self.block}", f"--iodepth={self.depth}", f"--numjobs={self.jobs}", f"--size={part}",
            f"--offset_increment={part}", f"--io_size={PASSES * part}", "--thread", "--iomem=malloc",
            f"--iomem_align={2 * MIB}", "--group_reporting", "--output-format=json",
        ]  # fmt: skip

    def measure(self, checkpoint: Checkpoint) -> float:
        """Run fio once; IobenchError with its own words where it fails or read too little."""
        command = self.command(checkpoint.shards[0].path, checkpoint.nbytes)
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_FIO_SECONDS, env=_environment(), check=False
            )
        except subprocess.TimeoutExpired as error:
            raise IobenchError(f"fio has not ended within {_FIO_SECONDS} s") from error
        return rate(done.stdout, done.stderr, done.returncode, PASSES * checkpoint.nbytes)


@dataclass
class Tried:
    """A contender and its rates, bytes per second."""

    contender: Contender
    rates: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return median(self.rates)


def run(say: Say, quick: bool = False, scratch: Path | None = None) -> bool:
    """Compare the best O_DIRECT rates of iobench and fio on a file in ``scratch`` (default: here); True if met."""
    if find_peer("fio") is None:
        say(f"fio is not installed, and without it there is nothing to compare with: {_INSTALL}")
        return False
    nbytes = NBYTES // 4 if quick else NBYTES
    where = scratch or Path.cwd()
    filesystem = filesystem_of(where)
    if not filesystem.is_storage:
        raise UserError(f"{where} is on {filesystem.name}, {NOT_STORAGE}: run it in a folder on a disk")
    with made(where, nbytes, 1) as files:
        say(f"{format_size(nbytes)} on {filesystem.name} in {where}, read {PASSES} times per measurement")
        return _compare(files.checkpoint, say, QUICK_ROUNDS if quick else ROUNDS)


def rate(out: str, err: str, code: int, asked: int) -> float:
    """Return bytes per second out of fio's JSON; IobenchError where it failed or read too little."""
    try:
        job = json.loads(out[out.index("{") :])["jobs"][0]
        moved, seconds = int(job["read"]["io_bytes"]), int(job["read"]["runtime"]) / 1000
        failed = code != 0 or int(job["error"]) != 0
    except (ValueError, LookupError, TypeError):
        failed, moved, seconds = True, 0, 0.0
    if failed:
        raise IobenchError(_first_line(err or out) or f"fio ended with status {code}")
    if moved < 0.99 * asked or seconds <= 0:
        raise IobenchError(f"fio read {moved} of {asked} bytes")
    return moved / seconds


def contenders(nbytes: int) -> list[Contender]:
    """Return every configuration that fits ``nbytes``."""
    ways = [(1, 4 * MIB), (4, MIB), (8, MIB), (16, MIB), (4, 4 * MIB), (8, 4 * MIB), (16, 4 * MIB), (8, 16 * MIB)]
    ours = [Ours(threads, block) for threads, block in ways]
    ours += [Ours(1, block, engine, deep) for engine in (IO_URING, AIO) for block, deep in ((MIB, 16), (4 * MIB, 8))]
    fio = [
        Fio("psync", MIB, jobs=8), Fio("psync", 4 * MIB, jobs=8), Fio("psync", 4 * MIB, jobs=16),
        Fio("libaio", 256 * KIB, 32), Fio("libaio", MIB, 16), Fio("libaio", 4 * MIB, 8), Fio("libaio", 4 * MIB, 16),
        Fio("io_uring", 256 * KIB, 32), Fio("io_uring", MIB, 16), Fio("io_uring", 4 * MIB, 8),
        Fio("io_uring", 4 * MIB, 16),
    ]  # fmt: skip
    fitting = [peer for peer in fio if nbytes // peer.jobs >= 2 * peer.block]
    return [*ours, *fitting]


def in_turns(tried: Sequence[Tried], measure: Callable[[Contender], float], rounds: int) -> None:
    """Measure all in turns, every second round backwards, so that drift hits every one alike."""
    for number in range(rounds):
        for entry in tried if number % 2 == 0 else tried[::-1]:
            entry.rates.append(measure(entry.contender))


def _compare(checkpoint: Checkpoint, say: Say, rounds: int) -> bool:
    _say_buffers(checkpoint, say)

    def measure(contender: Contender) -> float:
        return contender.measure(checkpoint)

    usable = _usable(contenders(checkpoint.nbytes), measure, say)
    pairs = zip(*(side[:_FINALISTS] for side in _sides(usable)), strict=False)
    finals = [Tried(entry.contender) for pair in pairs for entry in pair]  # rivals stand side by side
    if not finals:
        say("FAIL: one of the two sides has no configuration that works here")
        return False
    say(f"the best {_FINALISTS} of each side, {rounds} rounds in turns:")
    in_turns(finals, measure, rounds)
    while undecided(finals) and len(finals[0].rates) < MOST * rounds:
        say(f"the bar lies within the interval after {len(finals[0].rates)} rounds: {rounds} more")
        in_turns(finals, measure, rounds)
    for entry in finals:
        say(_sentence(entry))
    return judge(finals, say)


def undecided(finals: Sequence[Tried]) -> bool:
    """Whether the bar lies within the interval of the ratio that is judged."""
    ours, peers = _sides(finals)
    ratio = _ratio(ours[0], peers[0])
    return ratio.low < BAR <= ratio.high


def judge(finals: Sequence[Tried], say: Say) -> bool:
    """Say the ratio of iobench's best to each of fio's; True where the one to fio's best meets the bar.

    The ratio is the median over rounds of the two rates of one round, so that the machine's drift cancels.
    """
    ours, peers = _sides(finals)
    ratios = [(peer, _ratio(ours[0], peer)) for peer in peers]
    for peer, ratio in ratios:
        say(f"iobench's best / {peer.contender.name}: {ratio.median:.3f}  ({ratio.low:.3f} .. {ratio.high:.3f})")
    ratio = ratios[0][1]
    met = ratio.median >= BAR
    say(
        f"{'PASS' if met else 'FAIL'}: best O_DIRECT rate of iobench {format_rate(ours[0].median)}, of fio "
        f"{format_rate(peers[0].median)}: ratio {ratio.median:.3f} (bar {BAR})"
    )
    if undecided(finals):
        say("the bar lies within the ratio's 95 % interval: other load decides here, run it again on a quiet machine")
    return met


def _ratio(ours: Tried, peer: Tried) -> Interval:
    return median_interval([np.asarray(ours.rates) / np.asarray(peer.rates)])


def _usable(all_of_them: Sequence[Contender], measure: Callable[[Contender], float], say: Say) -> list[Tried]:
    """Try every configuration in turns; what an engine can't do here is said and left out."""
    found = [Tried(contender) for contender in all_of_them]
    for _ in range(_TRIES):
        for entry in list(found):
            try:
                entry.rates.append(measure(entry.contender))
            except (IobenchError, OSError) as error:
                say(f"left out: {entry.contender.name}: {_first_line(str(error))}")
                found.remove(entry)
    for entry in found:
        say(_sentence(entry))
    return found


def _sides(tried: Sequence[Tried]) -> tuple[list[Tried], list[Tried]]:
    """Return iobench's and fio's entries, the fastest first."""
    ordered = sorted(tried, key=lambda entry: -entry.median if entry.rates else 0.0)
    ours = [entry for entry in ordered if not isinstance(entry.contender, Fio)]
    return ours, [entry for entry in ordered if isinstance(entry.contender, Fio)]


def _sentence(entry: Tried) -> str:
    low, high = min(entry.rates), max(entry.rates)
    return f"{entry.contender.name:<34} {format_rate(entry.median)}  ({format_rate(low)} .. {format_rate(high)})"


def _say_buffers(checkpoint: Checkpoint, say: Say) -> None:
    """Say on which pages each side's buffers lie, and prove that iobench's reads reach the device."""
    ours, peer = Ours(8, 4 * MIB), Fio("psync", 4 * MIB, jobs=8)
    device = device_of(checkpoint.shards[0].path)
    before = count(device)
    with _ring(ours, checkpoint) as operation:
        operation()
    moved = count(device).since(before)
    share = (
        "device unknown" if moved.least is None else f"{moved.least / (PASSES * checkpoint.nbytes):.0%} from the device"
    )
    with hostmem.buffer(ours.threads * ours.block, hostmem.HUGE) as memory:
        memory.data.fill(0)
        huge = hostmem.inspect(memory).huge_fraction
    say(f"iobench: preadv, {'unknown' if huge is None else f'{huge:.0%} of its buffers'} on huge pages, bytes {share}")
    pages = _huge_nbytes_of(peer.command(checkpoint.shards[0].path, checkpoint.nbytes))
    say(f"fio:     malloc with GLIBC_TUNABLES={_TUNABLE}: {format_size(pages)} on huge pages while it read")
    if pages < peer.jobs * peer.block / 2:
        say("warning: fio's buffers lie on small pages (glibc before 2.35?): the comparison favours iobench")


def _huge_nbytes_of(command: list[str]) -> int:
    """Run fio and return the most bytes of huge pages that it had; 0 where the kernel doesn't tell."""
    most = 0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=_environment()) as child:
        while child.poll() is None:
            with contextlib.suppress(OSError):
                text = Path(f"/proc/{child.pid}/smaps_rollup").read_text(encoding="utf-8")
                found = re.search(r"^AnonHugePages: +(\d+) kB", text, re.MULTILINE)
                most = max(most, int(found[1]) * KIB if found else 0)
            time.sleep(0.02)
    return most


def _environment() -> dict[str, str]:
    return {**os.environ, "GLIBC_TUNABLES": _TUNABLE, "LC_ALL": "C"}


@contextlib.contextmanager
def _ring(ours: Ours, checkpoint: Checkpoint) -> Iterator[Callable[[], None]]:
    """Yield the operation "read the file PASSES times" into one block per thread.

    The passes are one queue: fio doesn't wait for a pass's last reads before it starts the next either.
    """
    alignment = read.alignment_of(checkpoint, ours.block)
    with contextlib.ExitStack() as stack:
        fds = stack.enter_context(read.opened(checkpoint, direct=True))
        # not touched before, as fio's are not: both pay for their pages during the first pass
        memory = stack.enter_context(hostmem.buffer(ours.threads * ours.depth * ours.block, hostmem.HUGE))
        lanes = [NowhereLane(slots, None) for slots in carve(memory.data, ours.threads, ours.depth, ours.block)]
        todo = ring.requests(plan.files(checkpoint), ours.block, alignment) * PASSES
        pool = stack.enter_context(ThreadPoolExecutor(ours.threads))
        read.start_threads(pool, ours.threads)  # before the clock, as fio's stand before its own
        made = ring.Ring(todo, lanes, pool, alignment, ours.engine)
        yield lambda: made.run(fds)


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
