"""Plans points, starts each probe in its own process, appends records; nothing finished is ever lost."""

from __future__ import annotations

import contextlib
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
from iobench.errors import UserError
from iobench.launch import Launch
from iobench.parse import problem
from iobench.plan import MIN_POINT_SECONDS, Job, Plan, Request, scratch_folder
from iobench.probe import Probe
from iobench.ranks import nodes
from iobench.record import Header, Line, Run
from iobench.topology.graph import Topology
from iobench.writer import Writer

REPEAT_SHARE = 0.1  # of the budget, kept for points that others disturbed
MOST_REPEATED = 0.5
LEAST_REPEAT_SECONDS = 1.0
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

    def finished(self) -> None:
        """Everything is measured."""


def run(
    probes: str | Sequence[str] = (),
    axes: str | Sequence[str] = (),
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
    graph.facts["nodes"] = len(nodes.current().nodes)
    if resume is not None:
        session = _resume(Path(resume), graph)
    else:
        names, assignments = ([text] if isinstance(text, str) else list(text) for text in (probes, axes))
        request = Request(probes=names, axes=assignments, **options)
        session = _start(request, graph, Path(out) if out else None)
    with contextlib.closing(session):
        session.execute(observer)
    return record.read(session.folder)


class Session:
    """An open file and what is still to be measured into it."""

    def __init__(self, plan: Plan, folder: Path, writer: Writer, done: set[tuple[str, int]]) -> None:
        self.plan, self.folder, self.writer, self.done = plan, folder, writer, done
        self.scratch = scratch_folder(plan.request, folder)
        self._end: float | None = None
        self._disturbed: dict[str, dict[str, dict[str, Any]]] = {}

    def execute(self, observer: Observer) -> None:
        """Write the skipped probes, then measure every launch that is not done."""
        jobs = list(self.plan.jobs(self.done))
        observer.planned(self.plan, self.folder, jobs)
        for line in self._unavailable():
            self._write(line, observer)
        if self.plan.request.budget is not None:
            self._end = time.monotonic() + self.plan.request.budget
        for number, job in enumerate(jobs):
            if job.launch == 0 or self._is_time_for(job):
                self._launch(job, self._budget(jobs[number:]), observer)
        self._repeat_disturbed(observer)
        observer.finished()

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
        """Return the first job's share of the time that is left, by the probes' own wishes.

        A part of the budget is kept for points that turn out disturbed.
        """
        if self._end is None or self.plan.request.budget is None:
            return None
        left = max(self._end - time.monotonic() - REPEAT_SHARE * self.plan.request.budget, 0.0)
        wishes = [job.seconds(self.plan.request.quick) for job in jobs]
        return left * wishes[0] / sum(wishes)

    def _is_time_for(self, job: Job) -> bool:
        """Tell whether the budget has room for a further launch: its set-up and the least that its points take.

        Every point gets its first launch, however little is left.
        """
        needs = job.setup_seconds + MIN_POINT_SECONDS * len(job.points)
        return self._end is None or time.monotonic() + needs <= self._end

    def _launch(self, job: Job, budget: float | None, observer: Observer) -> None:
        observer.job(job)

        def write(line: Line) -> None:
            self._write(line, observer)

        launch = Launch(job, self.plan.request, self.folder, self.scratch, write)
        launch.run(budget, lambda point: observer.point(job, point))

    def _repeat_disturbed(self, observer: Observer) -> None:
        """Measure disturbed points once more, as one launch more, while there is time.

        Where most of a probe's points were disturbed the machine is simply busy: once more would not help.
        """
        for probe in self.plan.probes:
            points = self._disturbed.get(probe.name, {})
            left = None if self._end is None else self._end - time.monotonic()
            few = len(points) <= MOST_REPEATED * len(self.plan.points[probe.name])
            if points and few and (left is None or left > LEAST_REPEAT_SECONDS):
                job = Job(probe, self.plan.launches(probe), list(points.values()))
                self._launch(job, left and min(left, job.seconds(self.plan.request.quick)), observer)

    def _write(self, line: Line, observer: Observer) -> None:
        """Append the line; one that could not be read back again becomes a failed one."""
        wrong = problem(line)
        if wrong:
            line = replace(line, status="failed", reason=f"the probe returned {wrong}", **_NOTHING_MEASURED)
        self.writer.append(line.to_json())
        if line.status == "suspect":
            self._disturbed.setdefault(line.probe, {})[line.key] = line.point
        observer.line(line)


def _start(request: Request, graph: Topology, out: Path | None) -> Session:
    made = plan.make(request, graph)
    folder = out or Path("reports") / graph.name / datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    plan.make_scratch(request)
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
        "matrices": [asdict(matrix) for matrix in probe.matrices],
        "models": [dict(model) for model in probe.models],
    }


def _resume(folder: Path, graph: Topology) -> Session:
    old = record.read(folder)
    if old.machine != graph.name:
        raise UserError(f"{folder} was measured on {old.machine}, this is {graph.name}: start a new run instead")
    made = plan.make(Request.from_dict(old.header.request), graph)
    plan.make_scratch(made.request)
    begun = {name: about.get("source") for name, about in old.header.probes.items()}
    changed = [probe.name for probe in made.probes if begun.get(probe.name) != probe.source]
    if changed:
        raise UserError(f"probe {', '.join(changed)} has changed since {folder} was begun: start a new run instead")
    lines = [line for entry in old.records for line in entry.lines]
    done = {(line.key, line.launch) for line in lines if line.status != "failed"}
    writer = Writer.reopen(old.path.parent)
    if next(made.jobs(done), None):  # a run that was complete stays a run without a break
        writer.append(record.dumps({"type": "resume", "created": _now(), "version": iobench.__version__}))
    return Session(made, old.path.parent, writer, done)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


make_callable(__name__, run)
