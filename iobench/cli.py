"""The command line: parse, call, print, exit. The only place that prints or exits."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from iobench import __version__, cli_check, cli_crosscheck, cli_models, cli_remote
from iobench.errors import EXIT_FAILED, EXIT_OK, EXIT_USER, EXIT_WRONG_DATA, UserError
from iobench.needs import missing

if TYPE_CHECKING:
    from rich.console import Console

    from iobench.record import Run
    from iobench.topology.graph import Topology

app = typer.Typer(
    help="Interconnect and memory-subsystem microbenchmarks for AI-inference machines: no number without proof.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

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
RunPath = Annotated[
    Path, typer.Argument(metavar="RUN", help="A run's folder, published:NAME, or the log of another tool.")
]
Out = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Folder to write to (the run's own).")]


def main() -> None:
    """Run the command line; one line and exit 2 for what the user can mend."""
    try:
        app(prog_name="iobench")
    except UserError as error:
        sys.stderr.write(f"iobench: {error}\n")
        sys.exit(EXIT_USER)
    except ModuleNotFoundError as error:
        if not error.name or error.name.partition(".")[0] == "iobench":
            raise
        sys.stderr.write(f"iobench: {missing(error.name)}\n")
        sys.exit(EXIT_USER)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"iobench {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Nothing to do before a verb."""


@app.command("list")
def list_(
    probe: Annotated[str | None, typer.Argument(help="Show this probe's axes and its whole description.")] = None,
    probe_dirs: ProbeDirs = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="The table as it stands in the README.")] = False,
) -> None:
    """List the probes, or one probe's axes."""
    from iobench import catalogue

    dirs = probe_dirs or []
    if markdown:
        typer.echo(catalogue.markdown_table())
        return
    typer.echo(catalogue.details(probe, dirs) if probe else catalogue.table(dirs))


@app.command()
def topology(
    root: Annotated[Path, typer.Option(help="Read sysfs and procfs below this folder.")] = Path("/"),
    save: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the graph as JSON too.")] = None,
    src: Annotated[str | None, typer.Option("--from", metavar="NODE", help="Show the path from this node ...")] = None,
    dst: Annotated[str | None, typer.Option("--to", metavar="NODE", help="... to this one.")] = None,
    logs: Annotated[
        list[Path] | None,
        typer.Option("--from-log", metavar="FILE", help="Not this machine: what tools printed about one (repeat it)."),
    ] = None,
) -> None:
    """Show this machine as a graph: nodes, links, limits and where each limit comes from."""
    from iobench import topology as topologies
    from iobench.catalogue import path_text

    if not root.is_dir():
        raise UserError(f"no folder {root}: give --root the top of a sysfs/procfs tree")
    graph = _from_logs(logs) if logs else topologies.discover(str(root))
    typer.echo(path_text(graph, src, dst) if src or dst else topologies.describe(graph))
    if save:
        topologies.save(graph, save)


def _from_logs(paths: list[Path]) -> Topology:
    from iobench.topology import logs

    return logs.read(paths)


@app.command("preflight")
def preflight_(
    root: Annotated[Path, typer.Option(help="Read sysfs and procfs below this folder.")] = Path("/"),
) -> None:
    """Say what would make a run hang, fail or crawl here, with the next step; exit 1 if something would stop it."""
    from iobench import preflight
    from iobench import topology as topologies

    if not root.is_dir():
        raise UserError(f"no folder {root}: give --root the top of a sysfs/procfs tree")
    graph = topologies.discover(str(root))
    found = preflight.find(preflight.Host.here(graph) if str(root) == "/" else preflight.Host.at(str(root), graph))
    for finding in found:
        typer.echo(f"{'stops' if finding.stops else 'warns'} {finding.subject}: {finding.sentence}")
    if not found:
        typer.echo("nothing found that would stop or slow a run")
    raise typer.Exit(EXIT_FAILED if any(finding.stops for finding in found) else EXIT_OK)


@app.command()
def run(
    probes: Names = None,
    axes: Axes = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the records (reports/<machine>/<utc>).")] = None,
    resume: Annotated[Path | None, typer.Option(metavar="DIR", help="Go on with an interrupted run.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="One launch, shorter, wider intervals.")] = False,
    budget: Annotated[str | None, typer.Option(metavar="TIME", help="Measure for at most so long: 90, 2m.")] = None,
    launches: Annotated[int | None, typer.Option(min=1, help="Process launches per probe.")] = None,
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

        typer.echo(catalogue.dry_run(probes or [], assignments, options))
        return
    if resume and (probes or axes or out):
        raise UserError("--resume goes on with what DIR holds: leave out probes, -a and --out")
    from iobench.ranks import job

    with job.joined(
        cast("dict[str, str]", os.environ), lambda text: sys.stderr.write(f"iobench: {text}\n")
    ) as measures:
        if not measures:  # another node or process of a job of several nodes: the first one measures
            raise typer.Exit(EXIT_OK)
        finished = _measure(probes or [], assignments, out, resume, options)
    _finish(finished, report)
    raise typer.Exit(_exit_status(finished))


@app.command()
def report(path: RunPath, out: Out = None) -> None:
    """Write report.md and report.html beside a run's records; of anything else, to the current folder."""
    _finish(_load(path), True, out)


@app.command()
def fit(
    path: RunPath,
    out: Out = None,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE", help="All models in one file, as topologies/<machine>.models.json.")
    ] = None,
) -> None:
    """Fit the latency models of a run and write models.json beside it; of anything else, to the current folder."""
    finished = _load(path)
    if save:
        cli_models.save(finished, save)
        return
    _show_models(finished, out)


app.command()(cli_check.check)
app.command()(cli_check.claims)
app.command()(cli_models.predict)
app.command()(cli_models.export)
app.command("bench-scale", hidden=True)(cli_models.bench_scale)


@app.command()
def compare(
    runs: Annotated[list[str], typer.Argument(metavar="A B [C...]", help="Runs, published:NAME, or peers' logs.")],
    at: Annotated[str, typer.Option(metavar="SIZES", help="What a message costs on each: 8K,1M,1G.")] = "",
    where: Annotated[
        list[str] | None, typer.Option("--axis", "-a", metavar="AXIS=VALUES", help="Only these: -a ranks=8.")
    ] = None,
    by: Annotated[str, typer.Option(metavar="AXIS", help="Compare the values of an axis: --by transport.")] = "",
    mixed: Annotated[bool, typer.Option("--mixed", help="Compare other modes and definitions too.")] = False,
    summary: Annotated[bool, typer.Option("--summary", help="Leave out the tables by size.")] = False,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Write compare.md, compare.html, figures.")] = None,
) -> None:
    """Compare runs: point by point, and which topology is faster from which message size on."""
    from iobench import sources
    from iobench.report import comparing
    from iobench.report.contrasted import parse_sizes

    if len(runs) < 2 and not by:
        raise UserError("one run to compare: give a second one, or --by AXIS to compare within it")
    loaded = [_load(Path(spec)) for spec in runs]
    names = [sources.label(spec, run) for spec, run in zip(runs, loaded, strict=True)]
    sizes = parse_sizes(at) if at else []
    asked = comparing.Asked(loaded, names, sizes, comparing.parse_where(where or []), by, mixed)
    typer.echo(comparing.text(asked, every_size=not summary))
    if out:
        markdown, page = comparing.write(asked, out)
        typer.echo(f"\ncomparison: {markdown}\n            {page}")


@app.command()
def published(name: Annotated[str | None, typer.Argument(help="Show this curve's sources and notes.")] = None) -> None:
    """List the published curves to compare with: what was measured, and whose numbers they are."""
    from iobench import published as curves

    typer.echo(curves.details(name) if name else curves.table())


@app.command("import")
def import_(
    logs: Annotated[list[Path], typer.Argument(metavar="LOG...", help="Logs of other tools, plain or .gz.")],
    out: Annotated[Path | None, typer.Option(help="Folder for the records (reports/imported/<log>).")] = None,
    keep_hosts: Annotated[bool, typer.Option("--keep-hosts", help="Keep host names; else node-1, node-2.")] = False,
    as_format: Annotated[str, typer.Option("--as", metavar="FORMAT", help="Read as this format.")] = "",
    merge: Annotated[
        bool, typer.Option("--merge", help="One run: each log is a further launch of its points.")
    ] = False,
) -> None:
    """Read other tools' logs into records, so that fit, check, compare and report work on them."""
    from iobench import importers
    from iobench.importers import write

    runs = []
    for path in logs:
        log = importers.load(path)
        imported = importers.read_log(log, as_format, keep_hosts)
        run = importers.to_run(log, imported)
        runs.append((write.folder_of(log.name, out, len(logs) > 1 and not merge), run))
        for text in write.summary(log.name, imported, run):
            typer.echo(text)
    if merge:
        runs = [(runs[0][0], write.merged([run for _, run in runs]))]
    for folder, run in runs:
        typer.echo(f"records: {write.write(run, folder)}")
    if any(record.wrong_data for _, run in runs for record in run):
        raise typer.Exit(EXIT_WRONG_DATA)


app.command()(cli_crosscheck.crosscheck)


@app.command("bench-fit", hidden=True)
def bench_fit(
    curves: Annotated[
        Path | None, typer.Argument(metavar="CURVES", help="CSV of latencies (iobench.fit.bench).")
    ] = None,
    trials: Annotated[
        int, typer.Option(min=1, help="Without CURVES: so many synthetic curves of known breaks.")
    ] = 1000,
) -> None:
    """Predict left-out sizes of a file's curves, or find known breaks again; exit 1 if a bar is missed."""
    from iobench.fit import bench, trial

    text, met = bench.table(bench.read(curves)) if curves else trial.table(trials)
    typer.echo(text)
    raise typer.Exit(EXIT_OK if met else EXIT_FAILED)


def _measure(
    probes: list[str], assignments: list[str], out: Path | None, resume: Path | None, options: dict[str, Any]
) -> Run:
    """Run with a progress display; an interrupt says where the finished points are and how to go on."""
    from iobench.progress import TerminalObserver
    from iobench.run import run as run_probes

    observer = TerminalObserver(_console())
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


def _load(path: Path) -> Run:
    from iobench import sources

    finished = sources.open(path)
    for warning in finished.warnings:
        sys.stderr.write(f"iobench: {warning}\n")
    return finished


def _finish(finished: Run, write: bool, out: Path | None = None) -> None:
    """Print the summary; write the report and the models if asked."""
    from iobench import report as reports

    console = _console()
    reports.show(console, finished)
    if not write:
        return
    _save_models(finished, out)
    markdown, page = reports.write(finished, _folder_for(finished, out))
    console.print(f"\nreport: {markdown}\n        {page}", markup=False, highlight=False, soft_wrap=True)


def _folder_for(finished: Run, out: Path | None) -> Path:
    """Return where what is derived from a run goes: --out, else beside its records, else the current folder."""
    from iobench import sources

    folder = out or sources.home(finished) or Path()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make {folder}: {error.strerror}; choose another folder with --out") from error
    return folder


def _save_models(finished: Run, out: Path | None = None) -> Path:
    from iobench.fit import save
    from iobench.report.models import models_of

    return save(models_of(finished), _folder_for(finished, out) / "models.json")


def _show_models(finished: Run, out: Path | None = None) -> None:
    from iobench import report as reports

    console = _console()
    reports.show_models(console, finished)
    console.print(f"models: {_save_models(finished, out)}", markup=False, highlight=False, soft_wrap=True)


def _exit_status(finished: Run) -> int:
    if any(record.wrong_data for record in finished):
        return EXIT_WRONG_DATA
    return EXIT_FAILED if any(record.status == "failed" for record in finished) else EXIT_OK


def _console() -> Console:
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 120)


if __name__ == "__main__":
    main()
