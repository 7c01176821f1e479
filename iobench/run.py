"""Plans points, starts each probe in its own process, appends records; nothing finished is ever lost."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import iobench
from iobench import machine, plan, record, topology
from iobench._callable import make_callable
from iobench.child import Child, Hung
from iobench.errors import UserError
from iobench.parse import problem
from iobench.plan import Job, Plan, Request, scratch_folder
from iobench.probe import Probe
from iobench.record import Header, Leg, Line, Run, Writer
from iobench.topology.graph import Topology
from iobench.worker import Order

_NOTHING_MEASURED: dict[str, Any] = {"seconds": [], "warmup": [], "legs": [], "notes": [], "evidence": {}, "ops": 1}


class Observer:
    """Told what happens; the command line shows it, a notebook needs nothing."""

    def planned(self, plan: Plan, folder: Path, jobs: Sequence[Job]) -> None:
        """The plan stands and the file is open."""

    def job(self, job: Job) -> None:
        """A launch begins."""

    def point(self, job: Job, point: dict[str, Any]) -> None:
        """A point begins."""

    def line(self, line: Line) -> None:
        """A line was written."""


def run(
    probes: Sequence[str] = (),
    axes: Sequence[str] = (),
    out: str | Path | None = None,
    resume: str | Path | None = None,
    observer: Observer | None = None,
    **options: Any,
) -> Run:
    """Measure and return the run, read back from its file.

    ``probes`` are names ("dram"; none means all), ``axes`` assignments ("nbytes=8:1M"), ``out`` the folder
    (default reports/<machine>/<utc>), ``resume`` the folder of a run to go on with; ``options`` are fields
    of iobench.plan.Request (quick, budget in seconds, launches, target as a fraction, scratch ...).
    Raises UserError for what the user can mend.
    """
    observer = observer or Observer()
    graph = topology.discover()
    if resume is not None:
        session = _resume(Path(resume), graph)
    else:
        request = Request(probes=list(probes), axes=list(axes), **options)
        session = _start(request, graph, Path(out) if out else None)
    with contextlib.closing(session):
        session.execute(observer)
    return record.read(session.folder)


class Session:
    """An open file and what is still to be measured into it."""

    def __init__(self, plan: Plan, folder: Path, writer: Writer, done: set[tuple[str, int]]) -> None:
        self.plan, self.folder, self.writer, self.done = plan, folder, writer, done
        self.scratch = scratch_folder(plan.request, folder)
        self.cpus = os.sched_getaffinity(0)
        self._end: float | None = None

    def execute(self, observer: Observer) -> None:
        """Write the skipped probes, then measure every launch that is not done."""
        jobs = list(self.plan.jobs(self.done))
        observer.planned(self.plan, self.folder, jobs)
        for line in self._unavailable():
            self._write(line, observer)
        if self.plan.request.budget is not None:
            self._end = time.monotonic() + self.plan.request.budget
        for number, job in enumerate(jobs):
            observer.job(job)
            self._run_job(job, self._budget(jobs[number:]), observer)

    def close(self) -> None:
        """Close the file and remove the scratch files that this run made."""
        self.writer.close()
        with contextlib.suppress(OSError):
            (self.folder / "logs").rmdir()  # only an empty one goes
        if not self.plan.request.scratch:
            shutil.rmtree(self.scratch, ignore_errors=True)

    def _unavailable(self) -> Iterator[Line]:
        for probe in self.plan.probes:
            reason = self.plan.unavailable.get(probe.name)
            line = Line(probe=probe.name, source=probe.source, point={}, status="skipped", reason=reason or "")
            if reason and (line.key, 0) not in self.done:
                line.started = _now()
                yield line

    def _budget(self, jobs: Sequence[Job]) -> float | None:
        """Return the first job's share of the time that is left, by the probes' own wishes."""
        if self._end is None:
            return None
        left = max(self._end - time.monotonic(), 0.0)
        wishes = [job.seconds(self.plan.request.quick) for job in jobs]
        return left * wishes[0] / sum(wishes)

    def _run_job(self, job: Job, budget: float | None, observer: Observer) -> None:
        """Measure the job's points; after a killed worker go on behind the point that killed it."""
        start, todo = time.monotonic(), list(job.points)
        while todo:
            left = None if budget is None else max(budget - (time.monotonic() - start), 0.0)
            finished = self._run_child(Job(job.probe, job.launch, todo), left, observer)
            todo = todo[finished:]

    def _run_child(self, job: Job, budget: float | None, observer: Observer) -> int:
        """Run one worker over the job's points; return how many have a line now, at least one."""
        self.scratch.mkdir(parents=True, exist_ok=True)
        request = self.plan.request
        order = Order(
            str(job.probe.file.absolute()),
            job.points,
            job.launch,
            str(self.scratch),
            request.quick,
            budget,
            request.target,
        )
        child = Child(order, self.folder / "logs" / f"{job.probe.name}-{job.launch}.log")
        watcher = _Watcher(child.session, self.cpus)
        index, trouble = 0, ""
        try:
            for event in child.events(request.deadline):
                watcher.take(event)
                if event is None:
                    continue
                if event["event"] == "start":
                    child.mark()
                    observer.point(job, job.points[event["index"]])
                    child.tell()
                elif event["event"] == "done":
                    self._write(watcher.judge(_line(event["line"])), observer)
                    index = event["index"] + 1
                elif event["event"] == "user_error":
                    raise UserError(f"{event['text']} (finished points are safe: iobench run --resume {self.folder})")
        except Hung:
            trouble = f"no sign of life for {request.deadline:.0f} s: ended by the deadline (raise it with --deadline)"
        finally:
            ending = child.end()
        if index < len(job.points):
            reason = trouble or f"the probe's process ended early: {ending or 'no reason given'}"
            self._write(self._lost(job, index, reason), observer)
            index += 1
        return index

    def _lost(self, job: Job, index: int, reason: str) -> Line:
        line = Line(job.probe.name, job.probe.source, job.points[index], job.launch, status="failed", reason=reason)
        line.started = _now()
        return line

    def _write(self, line: Line, observer: Observer) -> None:
        """Append the line; one that could not be read back again becomes a failed one."""
        wrong = problem(line)
        if wrong:
            line = replace(line, status="failed", reason=f"the probe returned {wrong}", **_NOTHING_MEASURED)
        self.writer.append(line.to_json())
        observer.line(line)


class _Watcher:
    """Brackets each point with the machine's state and marks disturbed ones."""

    def __init__(self, session: int, cpus: set[int]) -> None:
        self._watch = machine.Watch(session, cpus)
        self._cpus = cpus
        self._launch: dict[str, Any] = {}
        self._open = False

    def take(self, event: dict[str, Any] | None) -> None:
        """Begin on a start event, sample on every tick, keep what the launch said of itself."""
        if event is None:
            if self._open:
                self._watch.sample()
        elif event["event"] == "ready":
            self._launch = {"clock": event["clock"], "gaps": event["gaps"]}
        elif event["event"] == "start":
            self._watch.begin()
            self._open = True

    def judge(self, line: Line) -> Line:
        """Attach the state to the line; others' load above the limit makes it suspect."""
        state = self._watch.end()
        self._open = False
        line.state = {**state, **self._launch}
        disturbed = machine.disturbance(state, self._cpus)
        if disturbed and line.status == "ok":
            line.status, line.reason = "suspect", disturbed
        return line


def _start(request: Request, graph: Topology, out: Path | None) -> Session:
    made = plan.make(request, graph)
    folder = out or Path("reports") / graph.name / datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    header = Header(
        run_id=uuid.uuid4().hex[:12],
        created=_now(),
        version=iobench.__version__,
        machine={"name": graph.name, **machine.facts()},
        topology=graph.to_dict(),
        request={**request.to_dict(), "lines": made.lines},
        probes={probe.name: _about(probe) for probe in made.probes},
        environment=machine.environment(),
    )
    return Session(made, folder, Writer.create(folder, header), set())


def _about(probe: Probe) -> dict[str, Any]:
    return {
        "title": probe.title,
        "source": probe.source,
        "axes": {name: {"unit": axis.unit, "help": axis.help} for name, axis in probe.axes.items()},
        "plots": [asdict(plot) for plot in probe.plots],
        "models": [dict(model) for model in probe.models],
    }


def _resume(folder: Path, graph: Topology) -> Session:
    old = record.read(folder)
    if old.machine != graph.name:
        raise UserError(f"{folder} was measured on {old.machine}, this is {graph.name}: start a new run instead")
    made = plan.make(Request.from_dict(old.header.request), graph)
    begun = {name: about.get("source") for name, about in old.header.probes.items()}
    changed = [probe.name for probe in made.probes if begun.get(probe.name) != probe.source]
    if changed:
        raise UserError(f"probe {', '.join(changed)} has changed since {folder} was begun: start a new run instead")
    lines = [line for entry in old.records for line in entry.lines]
    done = {(line.key, line.launch) for line in lines if line.status != "failed"}
    writer = Writer.reopen(old.path.parent)
    writer.append(record.dumps({"type": "resume", "created": _now(), "version": iobench.__version__}))
    return Session(made, old.path.parent, writer, done)


def _line(data: dict[str, Any]) -> Line:
    line = Line(**{**data, "legs": []})
    line.legs = [Leg(**leg) for leg in data["legs"]]
    return line


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


make_callable(__name__, run)
