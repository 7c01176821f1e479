"""What the terminal shows while a run goes on: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from iobench.plan import Job, Plan
from iobench.record import Line
from iobench.run import Observer
from iobench.units import format_point, format_seconds


class TerminalObserver(Observer):
    """Says what runs, how long it will take, what was skipped or failed and why."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._plan: Plan | None = None
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._started = time.monotonic()
        self._seen: Counter[tuple[str, str]] = Counter()
        self._shown: set[str] = set()
        self.written = 0
        self.folder: Path | None = None

    def planned(self, plan: Plan, folder: Path, jobs: Sequence[Job]) -> None:
        self._plan, self.folder = plan, folder
        points = sum(len(plan.points[probe.name]) for probe in plan.probes)
        lines = sum(len(job.points) for job in jobs)
        seconds = plan.estimate(jobs)
        setup = plan.setup(jobs)
        more = f", and about {setup:.0f} s to set up" if setup >= 1 else ""
        rest = "" if lines == plan.lines else f", {plan.lines - lines} of {plan.lines} measurements done before"
        rest += plan.longer(jobs)
        probes = "1 probe" if len(plan.probes) == 1 else f"{len(plan.probes)} probes"
        self._say(f"[bold]{points} points[/bold] of {probes}, up to {seconds:.0f} s of measuring{more}{rest}")
        self._say(f"records: {escape(str(folder / 'records.jsonl'))}")
        if self._console.is_terminal:
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.completed:.0f}/{task.total:.0f}"),
                TimeElapsedColumn(),
                console=self._console,
                transient=True,
            )
            self._progress.start()
            self._task = self._progress.add_task("starting", total=lines)

    def job(self, job: Job) -> None:
        assert self._plan is not None
        launches = self._plan.launches(job.probe)
        which = f"launch {job.launch + 1} of {launches}" if job.launch < launches else "once more what was disturbed"
        text = f"{job.probe.name}: {which}, {len(job.points)} points"
        if self._progress is None:
            self._say(f"[{time.monotonic() - self._started:5.1f} s] {text}", markup=False)
        else:
            self._describe(job.probe.name)

    def point(self, job: Job, point: dict[str, Any]) -> None:
        self._describe(f"{job.probe.name} {format_point(point)}")

    def line(self, line: Line) -> None:
        self.written += 1
        if self._progress is not None and self._task is not None:
            self._progress.advance(self._task)
        if line.status in ("skipped", "failed"):
            self._complain(line)
        elif line.seconds and line.probe not in self._shown:
            self._shown.add(line.probe)
            self._show(line)

    def finished(self) -> None:
        self._say(f"measured in {time.monotonic() - self._started:.0f} s")

    def stop(self) -> None:
        """Take the bar away."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def _complain(self, line: Line) -> None:
        """Say each reason once; the report lists every point."""
        self._seen[line.probe, line.reason] += 1
        if self._seen[line.probe, line.reason] == 1:
            colour = "yellow" if line.status == "skipped" else "red"
            what = f"{line.probe} {format_point(line.point)}".strip()
            self._say(f"[{colour}]{line.status}[/{colour}] {escape(what)}: {escape(line.reason)}")

    def _show(self, line: Line) -> None:
        """Say a probe's first number as soon as it is there: nobody should wait for the end to see that it works."""
        seconds = median(map(max, zip(*line.seconds, strict=True))) / line.ops
        first = f"{line.probe}: {format_seconds(seconds)} for the first point, {format_point(line.point)}"
        self._say(f"[{time.monotonic() - self._started:5.1f} s] {first}", markup=False)

    def _describe(self, text: str) -> None:
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, description=escape(text[:60]))

    def _say(self, text: str, markup: bool = True) -> None:
        self._console.print(text, markup=markup, highlight=False, soft_wrap=True)
