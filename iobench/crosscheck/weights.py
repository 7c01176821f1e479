"""Loads of one checkpoint beside fio and the loaders people have: one table of one run, in turns, every load verified.

The target is the first GPU where there is one, the host's memory else. First rounds pick the fastest of each side, the
later ones judge them, so that picking the best favours neither. O_DIRECT stands against fio (into small buffers of its
own: it has no destination and no check) and, on a GPU, against the rate at which the ring's pinned buffers alone are
copied; loads out of the page cache against the fastest other loader. A loader's files are in the state that its name
says: thrown out of the page cache and asked for, or in it and asked for. Some read past it even then (the table says
so): they are measured once more, told to buffer.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from iobench.crosscheck import storage
from iobench.crosscheck.peer import find as find_peer
from iobench.errors import IobenchError, Unavailable, UserError
from iobench.stats import Interval, median_interval
from iobench.storage import files as held
from iobench.storage import load, plan, through
from iobench.storage.beside.loaders import BUFFERED, HOST, Order
from iobench.storage.beside.process import Beside, beside
from iobench.storage.files import Files
from iobench.storage.filesystem import NOT_STORAGE, filesystem_of
from iobench.storage.flight import AIO, IO_URING, PREADV
from iobench.storage.load import Loads, Stage
from iobench.storage.through import Elsewhere
from iobench.storage.way import Way
from iobench.storage.workspace import staged
from iobench.units import KIB, MIB, format_rate, format_size

BARS = {"O_DIRECT": ("direct", "copy", 0.95), "page cache": ("warm", "", 0.9)}  # whose side, what bounds it, the bar
NBYTES, SHARDS = 512 * MIB, 2
ROUNDS, QUICK_ROUNDS = 14, 6
PICKING = 4  # rounds
MOST = 4  # times the rounds, for the two that are judged
LOADERS = ("safetensors", "fastsafetensors", "runai")

Say = Callable[[str], Any]


@dataclass
class Entry:
    """One way to load: ``state`` is direct, cold or warm; ``measure`` returns bytes/s; the figures of every round."""

    name: str
    state: str
    ours: bool
    measure: Callable[[], float]
    rates: list[float] = field(default_factory=list)
    path: Callable[[], str] = str  # which way the bytes went, in words

    @property
    def median(self) -> float:
        """Return the median of the rounds that judge."""
        return median(self.judging) if self.rates else 0.0

    @property
    def judging(self) -> list[float]:
        """Return the rates of the rounds that judge; those before have picked."""
        return self.rates[PICKING:] or self.rates

    @property
    def picked(self) -> float:
        """Return the median of the rounds that pick."""
        return median(self.rates[:PICKING]) if self.rates else 0.0


def run(say: Say, quick: bool = False, scratch: Path | None = None) -> bool:
    """Load a checkpoint in ``scratch`` (default: here) by every way there is; True where both bars are met."""
    where = scratch or Path.cwd()
    filesystem = filesystem_of(where)
    if not filesystem.is_storage:
        raise UserError(f"{where} is on {filesystem.name}, {NOT_STORAGE}: run it in a folder on a disk")
    target, nbytes = target_here(), NBYTES // 4 if quick else NBYTES
    with held.own(where, nbytes, SHARDS) as files, contextlib.ExitStack() as stack:
        shown = HOST if target == HOST else "the first GPU's memory"
        say(f"{format_size(nbytes)} in {SHARDS} files on {filesystem.name} in {where}, to {shown}; loads are verified")
        entries = list(_entries(files, target, stack, say))
        rounds = QUICK_ROUNDS if quick else ROUNDS
        measure(entries, rounds, say)
        decide(entries, rounds, say)
        return judge(entries, say)


def target_here() -> str:
    """Return "gpu" where CUDA shows one, else "host"."""
    from iobench import gpu

    try:
        gpu.require()
    except Unavailable:
        return HOST
    return "gpu"


def measure(entries: list[Entry], rounds: int, say: Say) -> None:
    """Measure all in turns, every second round backwards; what fails is said and left out."""
    for number in range(rounds):
        for entry in list(entries) if number % 2 == 0 else entries[::-1]:
            try:
                entry.rates.append(entry.measure())
            except (IobenchError, OSError) as error:
                say(f"left out: {entry.name}: {' '.join(str(error).split())[:200]}")
                entries.remove(entry)


def decide(entries: list[Entry], rounds: int, say: Say) -> None:
    """Measure those that are judged again, alone, while the bar lies within their ratio's interval."""
    for name, (own, others, bar) in BARS.items():
        for _ in range(MOST - 1):
            ours, rival = sides(entries, own, others)
            if ours is None or rival is None or not _open(ratio(ours, rival), bar):
                break
            say(f"{name}: the bar lies within the interval after {len(ours.judging)} rounds: {rounds} more of the two")
            measure([ours, rival], rounds, say)


def judge(entries: Sequence[Entry], say: Say) -> bool:
    """Print the table, the fastest of each state first, and the two bars; True where both are met."""
    say(f"{'':<44} {'median':>11}   lowest .. highest")
    for state in ("direct", "cold", "warm", "copy"):
        for entry in sorted((one for one in entries if one.state == state), key=lambda one: -one.median):
            say(f"{entry.name:<46} {format_rate(entry.median):>11}   "
                f"{format_rate(min(entry.judging))} .. {format_rate(max(entry.judging))}   {entry.path()}")  # fmt: skip
    met = [_bar(name, entries, *bar, say) for name, bar in BARS.items()]  # each says its own
    return all(met)


def sides(entries: Sequence[Entry], own: str, others: str) -> tuple[Entry | None, Entry | None]:
    """Return iobench's best and its rival: the fastest peer, or copies alone where they are slower still."""
    ours = max((one for one in entries if one.ours and one.state == own), key=lambda one: one.picked, default=None)
    peers = [one for one in entries if not one.ours and one.state == own]
    rival = max(peers, key=lambda one: one.picked, default=None)
    if rival is not None:
        rival = min([rival, *(one for one in entries if one.state == others)], key=lambda one: one.median)
    return ours, rival


def ratio(ours: Entry, rival: Entry) -> Interval:
    """Return the ratio of the two sides' rates, round by round, over the rounds that both have."""
    rounds = min(len(ours.judging), len(rival.judging))
    return median_interval([np.asarray(ours.judging[:rounds]) / np.asarray(rival.judging[:rounds])])


def _open(found: Interval, bar: float) -> bool:
    return found.low < bar <= found.high


def _bar(name: str, entries: Sequence[Entry], own: str, others: str, bar: float, say: Say) -> bool:
    ours, rival = sides(entries, own, others)
    if ours is None or rival is None:
        say(f"FAIL: {name}: one of the two sides has nothing that works here")
        return False
    found = ratio(ours, rival)
    met = found.median >= bar
    say(
        f"{'PASS' if met else 'FAIL'}: {name}: {ours.name} / {rival.name}: {found.median:.3f} "
        f"({found.low:.3f} .. {found.high:.3f}), bar {bar}"
    )
    if _open(found, bar):
        say("the bar lies within the ratio's 95 % interval: other load decides here, run it again on a quiet machine")
    return met


def _entries(files: Files, target: str, stack: contextlib.ExitStack, say: Say) -> Iterator[Entry]:
    yield from _fio(files, say)
    stage = stack.enter_context(staged(files, target))
    for way in ways(target):
        try:
            yield from _own(stage, way, stack)
        except Unavailable as reason:
            say(f"left out: iobench {way.method}: {reason}")
    for loader in LOADERS:
        yield from _loader(files, loader, target, stack, say)


def ways(target: str) -> list[Way]:
    """Return iobench's own ways that take part."""
    cpus = len(os.sched_getaffinity(0))
    direct = [Way("direct", threads, block) for threads, block in ((4, MIB), (8, 4 * MIB), (16, 4 * MIB), (16, MIB))]
    for engine in (IO_URING, AIO):
        direct += [Way("direct", 1, MIB, 16, engine=engine), Way("direct", 2, 4 * MIB, 8, engine=engine)]
    many = min(cpus, 8) if target == HOST else 8
    usual = MIB if target == HOST else 4 * MIB  # a ring of copies wants fewer, larger ones
    warm = [Way("buffered-warm", threads, usual) for threads in sorted({1, many, min(cpus, 16)})]
    return [*direct, *warm, Way("buffered-warm", many, 256 * KIB), Way("mmap-warm", many, MIB),
            Way("buffered-cold", many, MIB), Way("mmap-cold", many, MIB)]  # fmt: skip


def _own(stage: Stage, way: Way, stack: contextlib.ExitStack) -> Iterator[Entry]:
    operation = stack.enter_context(load.ready(stage, way))
    loads = Loads(stage, way, operation, lambda: load.check(stage))

    def timed() -> float:
        loads.prepare()
        began = perf_counter()
        operation()
        seconds = perf_counter() - began
        loads.finish()
        return stage.nbytes / seconds

    block = f"{format_size(way.block)} x {way.threads}"
    deep = "" if way.engine == PREADV else f" {way.engine} {way.depth} deep"
    yield Entry(f"iobench {way.method} {block}{deep}", way.state, True, timed, path=lambda: load.judge(loads).path)
    ring = operation.ring
    if ring is not None and way.method == "direct" and way.threads == 8:

        def copied() -> float:
            began = perf_counter()
            ring.give()
            return stage.nbytes / (perf_counter() - began)

        yield Entry(f"pinned buffers alone, copied {block}", "copy", False, copied)


def _loader(files: Files, loader: str, target: str, stack: contextlib.ExitStack, say: Say) -> Iterator[Entry]:
    threads = max(min(len(os.sched_getaffinity(0)), 16), 4)
    paths = tuple(str(shard.path) for shard in files.checkpoint.shards)
    for buffered in (False, True) if loader in BUFFERED else (False,):
        try:
            child = stack.enter_context(beside(Order(loader, paths, target, threads, buffered=buffered)))
            child.load()  # its libraries are imported and mapped in now
        except (Unavailable, IobenchError) as reason:
            say(f"left out: {loader}: {reason}")
            return
        yield from _states(files, loader, target, child, ("warm",) if buffered else ("cold", "warm"))


def _states(files: Files, loader: str, target: str, child: Beside, states: Sequence[str]) -> Iterator[Entry]:
    stage = Stage(files, plan.tensors(files.checkpoint), Elsewhere(target, child), ())
    told = "" if "cold" in states else ", told to buffer"
    for state in states:
        loads = Loads(stage, Way(f"{loader}-{state}"), child.load, child.check, child.pid)

        def timed(loads: Loads = loads) -> float:
            loads.prepare()
            seconds = child.load()
            loads.finish()
            return stage.nbytes / seconds

        name = f"{child.facts.get('loader', loader)} {state}{told}"
        yield Entry(name, state, False, timed, path=lambda loads=loads: through.judge(loads).path)  # type: ignore[misc]


def _fio(files: Files, say: Say) -> Iterator[Entry]:
    """Yield fio's configurations on the first shard: it reads files one by one all the same."""
    if find_peer("fio") is None:
        say("left out: fio: it is not installed (apt-get install fio)")
        return
    first = held.first_shard(files.checkpoint)
    for peer in (
        storage.Fio("psync", 4 * MIB, jobs=8), storage.Fio("libaio", MIB, 16), storage.Fio("libaio", 4 * MIB, 8),
        storage.Fio("io_uring", MIB, 16), storage.Fio("io_uring", 4 * MIB, 8),
    ):  # fmt: skip
        yield Entry(f"{' '.join(peer.name.split())}, O_DIRECT", "direct", False, lambda peer=peer: peer.measure(first))  # type: ignore[misc]
