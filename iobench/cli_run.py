"""The verb that measures: run. Parse, call, print, exit."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from iobench import cli_remote, cli_report
from iobench.errors import EXIT_FAILED, EXIT_OK, EXIT_WRONG_DATA, UserError

if TYPE_CHECKING:
    from iobench.record import Run

Names = Annotated[
    list[str] | None, typer.Argument(help="Probes to run, all of them if none is named.", show_default=False)
]
Axes = Annotated[
    list[str] | None,
    typer.Option("--axis", "-a", metavar="AXIS=VALUES", help="Narrow an axis: -a nbytes=8:512M, -a threads=1,2."),
]
ProbeDirs = Annotated[
    list[str] | None, typer.Option("--probes", metavar="DIR", help="A folder with probes of your own.")
]


def run(
    probes: Names = None,
    axes: Axes = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the records (reports/<machine>/<utc>).")] = None,
    resume: Annotated[Path | None, typer.Option(metavar="DIR", help="Go on with an interrupted run.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="One launch, shorter, wider intervals.")] = False,
    budget: Annotated[str | None, typer.Option(metavar="TIME", help="Measure for at most so long: 90, 2m.")] = None,
    launches: Annotated[int | None, typer.Option(min=1, max=1000, help="Process launches per probe.")] = None,
    target: Annotated[
        float | None, typer.Option(min=1e-4, max=1.0, help="Stop a point at this half interval (0.01 = 1 %).")
    ] = None,
    deadline: Annotated[
        float | None, typer.Option(min=1.0, help="Seconds after which a silent point is ended.")
    ] = None,
    path: Annotated[
        Path | None, typer.Option(help="A file or checkpoint of yours (probes with the axis path).")
    ] = None,
    scratch: Annotated[Path | None, typer.Option(help="Folder for the probes' files: the disk to measure.")] = None,
    probe_dirs: ProbeDirs = None,
    report: Annotated[bool, typer.Option(help="Write the report when measuring is done.")] = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the points and stop.")] = False,
    machine: Annotated[
        str, typer.Option(metavar="FILE", help="With --dry-run: the machine of a topology file, not this one.")
    ] = "",
    server: cli_remote.Serve = False,
    listen: cli_remote.Listen = "",
    connect: cli_remote.Connect = "",
) -> None:
    """Measure: run probes, append every point to a records file, write the report."""
    from iobench.units import parse_seconds

    options: dict[str, Any] = {"quick": quick, "launches": launches, "target": target}
    options["budget"] = parse_seconds(budget) if budget is not None else None
    options["probe_dirs"] = [str(Path(folder).absolute()) for folder in probe_dirs or []]
    options["scratch"] = str(scratch) if scratch else ""
    if deadline is not None:
        options["deadline"] = deadline
    assignments = [*(axes or []), *([f"path={path.absolute()}"] if path else [])]
    if server or listen or connect:
        assignments += cli_remote.take_place(probes or [], server, listen, connect)
    if dry_run:
        from iobench import catalogue

        typer.echo(catalogue.dry_run(probes or [], assignments, options, machine))
        return
    if machine:
        raise UserError("--machine is for --dry-run: measuring is done on this machine; leave one out")
    if resume and (probes or axes or out):
        raise UserError("--resume goes on with what DIR holds: leave out probes, -a and --out")
    from iobench.ranks import job

    with job.joined(
        cast("dict[str, str]", os.environ), lambda text: sys.stderr.write(f"iobench: {text}\n")
    ) as measures:
        if not measures:  # another node or process of a job of several nodes: the first one measures
            raise typer.Exit(EXIT_OK)
        finished = _measure(probes or [], assignments, out, resume, options)
    cli_report.finish(finished, report)
    raise typer.Exit(_exit_status(finished))


def _measure(
    probes: list[str], assignments: list[str], out: Path | None, resume: Path | None, options: dict[str, Any]
) -> Run:
    """Run with a progress display; an interrupt says where the finished points are and how to go on."""
    from iobench.progress import TerminalObserver
    from iobench.run import run as run_probes

    observer = TerminalObserver(cli_report.console())
    signal.signal(signal.SIGTERM, _terminate)
    try:
        return run_probes(probes, assignments, out, resume, observer, **options)
    except KeyboardInterrupt as interrupt:
        observer.stop()
        if observer.folder:
            sys.stderr.write(
                f"iobench: interrupted; {observer.written} measurements are safe in {observer.folder}: "
                f"go on with iobench run --resume {observer.folder}\n"
            )
        status = signal.SIGTERM if isinstance(interrupt, _Terminated) else signal.SIGINT
        raise typer.Exit(128 + status) from None
    finally:
        observer.stop()


class _Terminated(KeyboardInterrupt):
    """SIGTERM: as Ctrl-C, with an exit status of its own."""


def _terminate(_number: int, _frame: FrameType | None) -> None:
    raise _Terminated


def _exit_status(finished: Run) -> int:
    if any(record.wrong_data for record in finished):
        return EXIT_WRONG_DATA
    return EXIT_FAILED if any(record.status == "failed" for record in finished) else EXIT_OK
