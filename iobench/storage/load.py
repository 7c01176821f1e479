"""Loads a checkpoint to a target again and again, under the clock, each time proven and verified."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from statistics import median_low
from typing import TYPE_CHECKING, Any

from iobench import hostmem
from iobench.errors import Unavailable
from iobench.storage import cache, mapped, peak, proof, read, ring, verify
from iobench.storage.device import Counted, count
from iobench.storage.files import Expected, Files
from iobench.storage.filesystem import NOT_STORAGE
from iobench.storage.plan import WHOLE, Plan
from iobench.storage.stages import Stages, bound, middle, sentence
from iobench.storage.target import Host, Lane, NowhereLane, Target
from iobench.storage.way import EACH, METADATA, WARM, Way
from iobench.units import format_seconds

if TYPE_CHECKING:
    from iobench.timing.sampler import Sampler, Timed

_FEW_SAMPLES = 3  # a load takes long; more launches give more samples
_SLOW = 5.0  # times the budget: one load alone takes so long that one sample a launch must do
_HUGE_ENOUGH = 0.95


@dataclass(frozen=True)
class Stage:
    """What is loaded whereto: files, the plan of their bytes, the target, and what must lie in it afterwards."""

    files: Files
    plan: Plan
    target: Target
    expected: Sequence[Expected]
    what: str = WHOLE

    @property
    def nbytes(self) -> int:
        """What arrives in the target."""
        return self.plan.nbytes


@dataclass
class Loads:
    """Prepares each load outside the clock and closes the books of the one before it.

    ``operation`` loads once (the loads before the one that is timed), ``check`` verifies what the target holds,
    ``process`` is the number of the process that reads.
    """

    stage: Stage
    way: Way
    operation: Callable[[], Any]
    check: Callable[[], None]
    process: int | str = "self"
    moved: list[Counted] = field(default_factory=list)  # per load
    resident: list[float] = field(default_factory=list)  # per load, right before it
    after: list[float] = field(default_factory=list)  # per load, right after it
    entries: list[tuple[int, int]] = field(default_factory=list)  # directory entries cached, per metadata-cold load
    verifying: list[float] = field(default_factory=list)  # seconds, per load
    _before: Counted | None = None

    def prepare(self) -> None:
        """Poison the target, bring the files into their state, and read the counters."""
        self.finish()
        self.stage.target.poison()
        self.settle()
        for _ in range(self.way.load - 1):
            self.operation()
            self.check()
            self.stage.target.poison()
        if self.way.load > 1:
            self.resident.append(_resident(self.stage.files))
        self._before = count(self.stage.files.device, self.process)

    def settle(self) -> None:
        """Make the files cold or warm."""
        with read.opened(self.stage.files.checkpoint) as fds:
            if self.way.state == WARM:
                self.resident.append(cache.warm(fds))
            elif self.way.method == "direct":
                _forget(fds)
            elif self.way.load == 1:
                self.resident.append(cache.evict(fds))
            else:
                cache.evict(fds)
        if self.way.cold == METADATA:
            self.entries.append(cache.forget_metadata())

    def finish(self) -> None:
        """Read the counters and check every byte of the load that just ended."""
        if self._before is None:
            return
        self.moved.append(count(self.stage.files.device, self.process).since(self._before))
        self._before = None
        with contextlib.suppress(cache.ResidencyUnknown):
            self.after.append(_resident(self.stage.files))
        began = time.perf_counter()
        self.check()
        self.verifying.append(time.perf_counter() - began)

    @property
    def devices(self) -> list[int]:
        """Bytes that everybody read from the device during each load; empty where that is not counted."""
        return [moved.device for moved in self.moved if moved.device is not None]

    @property
    def processes(self) -> list[int]:
        """Bytes that the process read from any device during each load; empty where that is not counted."""
        return [moved.process for moved in self.moved if moved.process is not None]

    @property
    def worst(self) -> Counted:
        """What speaks most against the method's claim: the least that a load read from the device.

        Where the page cache has to answer it is what loads read usually, the first left out: the files are proven to
        be in it before each, but a process now and then has pages of its own libraries read, most in its first load.
        """
        moved = (self.moved[1:] or self.moved) if self.claims_warm else self.moved
        pick = median_low if self.claims_warm else min
        return Counted(
            _of_known(pick, [load.device for load in moved]),
            _of_known(pick, [load.process for load in moved]),
            _of_known(min, [load.calls for load in self.moved]),
        )

    @property
    def claims_warm(self) -> bool:
        """Whether the page cache has to answer: a warm method, or a later load of a buffered one."""
        return self.way.state == WARM or (self.way.load > 1 and self.way.method != "direct")

    def evidence(self) -> dict[str, Any]:
        """Return the facts behind the path's label; of what was counted per load the least and the most."""
        files, devices = self.stage.files, self.devices
        asked = self.stage.nbytes
        return {
            "filesystem": files.filesystem.name,
            "device": files.device.name if files.device else None,
            "files": len(files.checkpoint.shards),
            "target": self.stage.target.name,
            "loads": len(self.moved),
            "bytes_asked": asked,
            "device_bytes": _range(devices),
            "process_bytes": _range(self.processes),
            "amplification": min(devices) / asked if devices else None,
            "resident_before": _range(self.resident),
            "resident_after": _range(self.after),
            "residency_by": self._residency_by(),
            "dentries": _range([after for _, after in self.entries]),
        }

    def _residency_by(self) -> str | None:
        if not self.resident:
            return None
        with read.opened(self.stage.files.checkpoint) as fds:
            return cache.residency_source(fds[0])


@dataclass
class Loaded:
    """What the loads of one point gave: their times, the path's verdict and what it rests on."""

    timed: Timed
    verdict: proof.Verdict
    facts: dict[str, Any]
    notes: list[str]

    def evidence(self) -> dict[str, Any]:
        return {name: value for name, value in self.facts.items() if value is not None}


@dataclass
class Operation:
    """One load from opening the files to the last byte in the target, with its own books."""

    files: Files
    direct: bool
    run_on: Callable[[Sequence[int]], None]
    alignment: int = 1
    register: float | None = None
    ring: ring.Ring | None = None
    opening: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def __call__(self) -> None:
        cpu, began = time.process_time(), time.perf_counter()
        with read.opened(self.files.checkpoint, self.direct) as fds:
            self.opening.append(time.perf_counter() - began)
            self.run_on(fds)
        self.cpu.append(time.process_time() - cpu)


def load(stage: Stage, way: Way, sampler: Sampler) -> Loaded:
    """Load the stage by one of iobench's own ways until the sampler has enough; every load is verified.

    Raises WrongData, Unavailable where the way can't be had on these files, IobenchError where a file called cold
    is not.
    """
    refuse_cold_memory(stage, way)
    peak.reset()
    before = peak.now()
    with ready(stage, way) as operation:
        loads = Loads(stage, way, operation, lambda: check(stage))
        timed = few(sampler, stage).host(operation, loads.prepare)
        loads.finish()
        stages = _stages(operation, loads, timed)
    judged = judge(loads)
    name = bound(stages, _source(loads), "memory" if isinstance(stage.target, Host) else "PCIe", _cpus(way))
    facts = loads.evidence() | {"alignment": operation.alignment, "stages": stages.evidence(), "bound": name or None}
    facts["host_growth_nbytes"] = peak.growth(before)
    pages = _pages(stage.target)
    facts |= pages.evidence() if pages else {}
    if operation.ring:
        facts["ring_nbytes"] = sum(slot.size for lane in operation.ring.lanes for slot in lane.slots)
        facts["bytes_requested"] = operation.ring.spent.asked
    notes = [*judged.notes, *_about_pages(pages), *_about_bound(stages, name), *stage.files.notes]
    verdict = proof.onto(judged, operation.ring is not None and way.method == "direct", stage.target.name)
    return Loaded(timed, verdict, facts, [*notes, *stage.plan.notes])


def judge(loads: Loads) -> proof.Verdict:
    """Return which way the loads' bytes went."""
    state = WARM if loads.claims_warm else loads.way.state
    stage = loads.stage
    return proof.judge(state, stage.nbytes, loads.worst, stage.files.filesystem, worst_residency(loads))


def refuse_cold_memory(stage: Stage, way: Way) -> None:
    """Raise Unavailable for a cold load of files that a filesystem keeps in memory."""
    filesystem = stage.files.filesystem
    if way.state == "cold" and filesystem.in_memory:
        raise Unavailable(f"{filesystem.name} keeps files in memory, nothing is cold there: {NOT_STORAGE}")


def few(sampler: Sampler, stage: Stage) -> Sampler:
    """Return the sampler with as few samples as loads allow."""
    slow = stage.files.seconds > _SLOW * sampler.budget
    return replace(sampler, min_samples=1 if slow else min(_FEW_SAMPLES, sampler.min_samples))


def check(stage: Stage) -> None:
    """Raise WrongData unless every byte in the target is right."""
    for wanted in stage.expected:
        verify.compare(stage.target.sums(wanted.start, wanted.nbytes), wanted.sums, wanted.name)


@contextlib.contextmanager
def ready(stage: Stage, way: Way) -> Iterator[Operation]:
    """Yield the operation that is timed."""
    files, target = stage.files, stage.target
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(way.threads))
        if way.how == "mmap":
            lanes = stack.enter_context(target.lanes(way.threads, 1, os.sysconf("SC_PAGE_SIZE")))
            yield Operation(files, False, mapped.mapped(files.checkpoint, stage.plan, way.block, lanes, pool))
            return
        direct = way.method == "direct"
        alignment = read.alignment_of(files.checkpoint, way.block, way.align) if direct else 1
        if isinstance(target, Host) and stage.what == WHOLE:
            todo = read.pieces(files.checkpoint, way.block, alignment)
            run = read.reader(todo, target.memory.data.data, pool, way.threads, way.engine, way.depth)
            yield Operation(files, direct, run, alignment)
            return
        todo_ring = ring.requests(stage.plan, way.block, alignment)
        if way.register == EACH:
            yield _registering(stage, way, todo_ring, pool, alignment)
            return
        began = time.perf_counter()
        lanes = stack.enter_context(target.lanes(way.threads, way.depth, way.block))
        seconds = time.perf_counter() - began
        made = ring.Ring(todo_ring, lanes, pool, alignment, way.engine)
        yield Operation(files, direct, made.run, alignment, seconds, made)


def _registering(
    stage: Stage, way: Way, todo: list[ring.Request], pool: ThreadPoolExecutor, alignment: int
) -> Operation:
    """Return the operation that makes and registers its slots in every load."""

    def run(fds: Sequence[int]) -> None:
        began = time.perf_counter()
        with stage.target.lanes(way.threads, way.depth, way.block) as lanes:
            operation.register = time.perf_counter() - began
            operation.ring = ring.Ring(todo, lanes, pool, alignment, way.engine)
            operation.ring.run(fds)

    operation = Operation(stage.files, way.method == "direct", run, alignment)
    return operation


def _stages(operation: Operation, loads: Loads, timed: Timed) -> Stages:
    """Measure reading and copying alone, once each, in the state of the loads; the rest is in the books."""
    whole = middle(timed.seconds[0]) or 0.0
    books = Stages(whole, middle(operation.opening), operation.register, None, None, middle(loads.verifying),
                   middle(operation.cpu))  # fmt: skip
    made = operation.ring
    if made is None or loads.way.register == EACH:
        return books
    loads.settle()
    alone: list[Lane] = [NowhereLane(lane.slots, None) for lane in made.lanes]
    reading = ring.Ring(made.requests, alone, made.pool, made.alignment, made.engine)
    with read.opened(loads.stage.files.checkpoint, operation.direct) as fds:
        seconds = seconds_of(lambda: reading.run(fds))
    return replace(books, read=seconds, copy=seconds_of(made.give))


def seconds_of(operation: Callable[[], Any]) -> float:
    """Return how long an operation takes once."""
    began = time.perf_counter()
    operation()
    return time.perf_counter() - began


def _resident(files: Files) -> float:
    with read.opened(files.checkpoint) as fds:
        return min(cache.resident_fraction(fd) for fd in fds)


def worst_residency(loads: Loads) -> float | None:
    """Return what was in the page cache before the load that speaks most against its claim; None where unknown."""
    return (min if loads.claims_warm else max)(loads.resident, default=None)


def _source(loads: Loads) -> str:
    return "page cache" if loads.claims_warm else "drive"


def _cpus(way: Way) -> int:
    return min(way.threads, len(os.sched_getaffinity(0)))


def _pages(target: Target) -> hostmem.Pages | None:
    return hostmem.inspect(target.memory) if isinstance(target, Host) else None


def _about_bound(stages: Stages, name: str) -> list[str]:
    seconds = {"load": stages.load, "read": stages.read, "copy": stages.copy}
    text = sentence(name, {part: format_seconds(value) for part, value in seconds.items() if value is not None})
    return [text] if text else []


def _about_pages(pages: hostmem.Pages | None) -> list[str]:
    if pages is None or pages.huge_fraction is None or pages.huge_fraction >= _HUGE_ENOUGH:
        return []
    return [
        f"only {pages.huge_fraction:.0%} of the destination lies on huge pages, which slows O_DIRECT: "
        "set transparent_hugepage/enabled to madvise"
    ]


def _of_known(pick: Callable[[list[int]], int], values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return pick(known) if known else None


def _range(values: list[Any]) -> list[Any] | None:
    return [min(values), max(values)] if values else None


def _forget(fds: list[int]) -> None:
    """Ask the kernel to drop the files' pages; O_DIRECT doesn't need it, but nothing is left to answer from."""
    for fd in fds:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
