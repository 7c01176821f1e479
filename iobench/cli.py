"""The command line: parse, call, print, exit. The only place that prints or exits."""

from __future__ import annotations

import errno
import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from iobench import __version__, cli_check, cli_compare, cli_crosscheck, cli_models, cli_report, cli_run
from iobench.errors import EXIT_FAILED, EXIT_OK, EXIT_USER, EXIT_WRONG_DATA, Unavailable, UserError
from iobench.needs import missing

if TYPE_CHECKING:
    from iobench.topology.graph import Topology

app = typer.Typer(
    help="Interconnect and memory-subsystem microbenchmarks for AI-inference machines: no number without proof.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Run the command line; one line and exit 2 for what the user can mend."""
    _open_standard_files()
    _write_any_character()
    try:
        app(prog_name="iobench")
    except UserError as error:
        sys.stderr.write(f"iobench: {error}\n")
        sys.exit(EXIT_USER)
    except Unavailable as error:  # outside of a point, whose record it would be: a server, a crosscheck
        sys.stderr.write(f"iobench: not on this machine: {error}; run it on one that has what is named\n")
        sys.exit(EXIT_USER)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        sys.stderr.write(f"iobench: {error.strerror}: {error.filename or 'the output'}; make room and run it again\n")
        sys.exit(EXIT_USER)
    except ModuleNotFoundError as error:
        if not error.name or error.name.partition(".")[0] == "iobench":
            raise
        sys.stderr.write(f"iobench: {missing(error.name)}\n")
        sys.exit(EXIT_USER)


def _open_standard_files() -> None:
    """Give a closed standard file (``iobench list >&-``) the null device: else the next file would take its number."""
    for number, mode, name in ((0, "r", "stdin"), (1, "w", "stdout"), (2, "w", "stderr")):
        if getattr(sys, name) is None:
            fd = os.open(os.devnull, os.O_RDWR)
            if fd != number:
                os.dup2(fd, number)
                os.close(fd)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))


def _write_any_character() -> None:
    """Write "?" for what the terminal's encoding lacks (LC_ALL=C, ISO-8859-1): no figure is worth losing to a ±."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower().replace("-", "") != "utf8":
            stream.reconfigure(errors="replace")


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
    probe_dirs: cli_run.ProbeDirs = None,
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


app.command()(cli_run.run)
app.command()(cli_report.report)
app.command()(cli_report.fit)
app.command()(cli_check.check)
app.command()(cli_check.claims)
app.command()(cli_models.predict)
app.command()(cli_models.export)
app.command("bench-scale", hidden=True)(cli_models.bench_scale)
app.command()(cli_compare.compare)
app.command()(cli_compare.published)


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


if __name__ == "__main__":
    main()
