"""One launch of a probe: its worker process, a line for every point whatever becomes of the process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from iobench import machine
from iobench.child import Child, Hung
from iobench.errors import UserError
from iobench.plan import Job, Request
from iobench.record import Leg, Line
from iobench.worker import Order

PointSink = Callable[[dict[str, Any]], None]


class Launch:
    """Measures one job; ``write`` gets each line as soon as it is there."""

    def __init__(self, job: Job, request: Request, folder: Path, scratch: Path, write: Callable[[Line], None]) -> None:
        self._job, self._request, self._folder, self._scratch, self._write = job, request, folder, scratch, write
        self._cpus = os.sched_getaffinity(0)

    def run(self, budget: float | None, begin: PointSink) -> None:
        """Measure the job's points; after a killed worker go on behind the point that killed it.

        ``budget`` is the seconds for all of them (None: each takes what the probe wishes), ``begin`` is told
        of each point. Raises UserError for what the user can mend.
        """
        start, todo = time.monotonic(), list(self._job.points)
        while todo:
            left = None if budget is None else max(budget - (time.monotonic() - start), 0.0)
            todo = todo[self._run_child(todo, left, begin) :]

    def _run_child(self, points: list[dict[str, Any]], budget: float | None, begin: PointSink) -> int:
        """Run one worker over ``points``; return how many have a line now, at least one."""
        child = self._start(points, budget)
        watcher = _Watcher(child.session, self._cpus)
        index, trouble = 0, ""
        try:
            for event in child.events(self._request.deadline):
                watcher.take(event)
                if event is None:
                    continue
                if event["event"] == "start":
                    child.mark()
                    begin(points[event["index"]])
                    child.tell()
                elif event["event"] == "done":
                    self._write(watcher.judge(_line(event["line"])))
                    index = event["index"] + 1
                elif event["event"] == "user_error":
                    raise UserError(f"{event['text']} (finished points are safe: iobench run --resume {self._folder})")
        except Hung as hung:
            trouble = f"{hung}: ended by the deadline (--deadline raises it)"
        finally:
            ending = child.end()
        if index < len(points):
            self._write(
                self._lost(points[index], trouble or f"the probe's process ended early: {ending or 'no reason'}")
            )
            index += 1
        return index

    def _start(self, points: list[dict[str, Any]], budget: float | None) -> Child:
        self._scratch.mkdir(parents=True, exist_ok=True)
        order = Order(
            probe=str(self._job.probe.file.absolute()),
            points=points,
            launch=self._job.launch,
            scratch=str(self._scratch),
            quick=self._request.quick,
            budget=budget,
            target=self._request.target,
        )
        return Child(order, self._folder / "logs" / f"{self._job.probe.name}-{self._job.launch}.log")

    def _lost(self, point: dict[str, Any], reason: str) -> Line:
        probe = self._job.probe
        line = Line(probe.name, probe.source, point, self._job.launch, status="failed", reason=reason)
        line.started = datetime.now(UTC).isoformat(timespec="seconds")
        return line


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


def _line(data: dict[str, Any]) -> Line:
    line = Line(**{**data, "legs": []})
    line.legs = [Leg(**leg) for leg in data["legs"]]
    return line
