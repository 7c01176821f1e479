"""Loads of one checkpoint beside fio and the loaders people have: one table of one run, in turns, every load verified.

The target is the first GPU where there is one, the host's memory else. First rounds pick the fastest of each side, the
later ones judge them, so that picking the best favours neither. O_DIRECT stands against fio (into small buffers of its
own: it has no destination and no check) and, on a GPU, against the rate at which the ring's pinned buffers alone are
copied; loads out of the page cache against the fastest other loader. A loader's files are in the state that its name
says: thrown out of the page cache and asked for, or in it and asked for.
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
from iobench.stats import median_interval
from iobench.storage import files as held
from iobench.storage import load, plan
from iobench.storage.beside.loaders import HOST, Order
from iobench.storage.beside.process import beside
from iobench.storage.files import Files
from iobench.storage.filesystem import NOT_STORAGE, filesystem_of
from iobench.storage.load import Loads, Stage
from iobench.storage.through import Elsewhere
from iobench.storage.way import Way
from iobench.storage.workspace import staged
from iobench.units import KIB, MIB, format_rate, format_size

DIRECT_BAR, WARM_BAR = 0.95, 0.9
NBYTES, SHARDS = 512 * MIB, 2
ROUNDS, QUICK_ROUNDS = 14, 6
PICKING = 4  # rounds
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
        measure(entries, QUICK_ROUNDS if quick else ROUNDS, say)
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


def judge(entries: Sequence[Entry], say: Say) -> bool:
    """Print the table, the fastest of each state first, and the two bars; True where both are met."""
    say(f"{'':<44} {'median':>11}   lowest .. highest")
    for state in ("direct", "cold", "warm", "copy"):
        for entry in sorted((one for one in entries if one.state == state), key=lambda one: -one.median):
            say(f"{entry.name:<44} {format_rate(entry.median):>11}   "
                f"{format_rate(min(entry.judging))} .. {format_rate(max(entry.judging))}")  # fmt: skip
    direct = _bar("O_DIRECT", entries, ("direct",), ("direct", "copy"), DIRECT_BAR, say)
    warm = _bar("page cache", entries, ("warm",), ("warm",), WARM_BAR, say)
    return direct and warm


def _bar(name: str, entries: Sequence[Entry], own: Sequence[str], others: Sequence[str], bar: float, say: Say) -> bool:
    """Judge iobench's best against its rivals: the fastest peer, and no more than what copies alone reach."""
    ours = max((one for one in entries if one.ours and one.state in own), key=lambda one: one.picked, default=None)
    peers = [one for one in entries if not one.ours and one.state in own]
    if ours is None or not peers:
        say(f"FAIL: {name}: one of the two sides has nothing that works here")
        return False
    rival = max(peers, key=lambda one: one.picked)
    for copies in (one for one in entries if one.state in others and one.state not in own):
        rival = min(rival, copies, key=lambda one: one.median)
    ratio = median_interval([np.asarray(ours.judging) / np.asarray(rival.judging)])
    met = ratio.median >= bar
    say(
        f"{'PASS' if met else 'FAIL'}: {name}: {ours.name} / {rival.name}: {ratio.median:.3f} "
        f"({ratio.low:.3f} .. {ratio.high:.3f}), bar {bar}"
    )
    if ratio.low < bar <= ratio.high:
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
    many = min(cpus, 8) if target == HOST else 8
    usual = MIB if target == HOST else 4 * MIB  # a ring of copies wants fewer, larger ones
    warm = [Way("buffered-warm", threads, usual) for threads in sorted({1, many})]
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
    yield Entry(f"iobench {way.method} {block}", way.state, True, timed)
    ring = operation.ring
    if ring is not None and way.method == "direct" and way.threads == 8:

        def copied() -> float:
            began = perf_counter()
            ring.give()
            return stage.nbytes / (perf_counter() - began)

        yield Entry(f"pinned buffers alone, copied {block}", "copy", False, copied)


def _loader(files: Files, loader: str, target: str, stack: contextlib.ExitStack, say: Say) -> Iterator[Entry]:
    threads = min(len(os.sched_getaffinity(0)), 16)
    paths = tuple(str(shard.path) for shard in files.checkpoint.shards)
    try:
        child = stack.enter_context(beside(Order(loader, paths, target, max(threads, 4))))
        child.load()  # its libraries are imported and mapped in now
    except (Unavailable, IobenchError) as reason:
        say(f"left out: {loader}: {reason}")
        return
    stage = Stage(files, plan.tensors(files.checkpoint), Elsewhere(target, child), ())
    for state in ("cold", "warm"):
        loads = Loads(stage, Way(f"{loader}-{state}"), child.load, child.check, child.pid)

        def timed(loads: Loads = loads) -> float:
            loads.prepare()
            seconds = child.load()
            loads.finish()
            return stage.nbytes / seconds

        yield Entry(f"{child.facts.get('loader', loader)} {state}", state, False, timed)


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
