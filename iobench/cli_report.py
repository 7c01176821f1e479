"""Verbs that show a run: report, fit; and what all verbs need that read one. Parse, call, print."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from iobench import cli_models
from iobench.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from iobench.record import Run

RunPath = Annotated[
    Path, typer.Argument(metavar="RUN", help="A run's folder, published:NAME, or the log of another tool.")
]
Out = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Folder to write to (the run's own).")]


def report(path: RunPath, out: Out = None) -> None:
    """Write report.md and report.html beside a run's records; of anything else, to the current folder."""
    finish(load(path), True, out)


def fit(
    path: RunPath,
    out: Out = None,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE", help="All models in one file, as topologies/<machine>.models.json.")
    ] = None,
) -> None:
    """Fit the latency models of a run and write models.json beside it; of anything else, to the current folder."""
    finished = load(path)
    if save:
        cli_models.save(finished, save)
        return
    _show_models(finished, out)


def load(path: Path) -> Run:
    """Open a run, a log or a published curve; what is odd about it goes to standard error."""
    from iobench import sources

    finished = sources.open(path)
    for warning in finished.warnings:
        sys.stderr.write(f"iobench: {warning}\n")
    return finished


def finish(finished: Run, write: bool, out: Path | None = None) -> None:
    """Print the summary; write the report and the models if asked, also where nobody reads the summary to its end."""
    from iobench import report as reports

    screen = console()
    try:
        reports.show(screen, finished)
    finally:
        if write:
            _save_models(finished, out)
            markdown, page = reports.write(finished, _folder_for(finished, out))
    if not write:
        return
    screen.print(f"\nreport: {markdown}\n        {page}", markup=False, highlight=False, soft_wrap=True)


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

    screen = console()
    reports.show_models(screen, finished)
    screen.print(f"models: {_save_models(finished, out)}", markup=False, highlight=False, soft_wrap=True)


def console() -> Console:
    """Return the terminal, or 120 columns where the output goes elsewhere."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 120)
