"""The report of a run: one HTML page, Markdown with figures beside it, and rows for the terminal.

Pure: everything comes from the records file; nothing here touches a device or another machine.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from iobench import files
from iobench.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from iobench.compare import Comparison
    from iobench.record import Run

# matplotlib says on standard error that it makes a list of fonts, or that the home has no place for it.
if logging.getLogger("matplotlib").level == logging.NOTSET:
    logging.getLogger("matplotlib").setLevel(logging.ERROR)

FIGURES = "figures"
SUMMARY_COLUMNS = ("probe", "figure", "what", "value", "95 %", "of limit", "at", "verdict")


def write(run: Run, folder: Path) -> tuple[Path, Path]:
    """Write report.md (with figures/*.svg beside it) and report.html into ``folder``; return both paths.

    An older report there is replaced. Raises UserError where the folder can't be written.
    """
    from iobench.report import markdown, page
    from iobench.report.view import view_of

    with _writing(folder):
        (folder / FIGURES).mkdir(parents=True, exist_ok=True)  # before the drawing, which takes seconds
    view = view_of(run)
    plain, html = markdown.render(view, FIGURES), page.render(view)
    with _writing(folder):
        _write_all(folder, plain, html, view.figure_files)
    return folder / "report.md", folder / "report.html"


def summary(run: Run) -> list[tuple[str, ...]]:
    """Return the headline numbers as rows of text under SUMMARY_COLUMNS."""
    from iobench.check import judge
    from iobench.report.view import key_figures_of

    figures = key_figures_of(run, judge(run))
    return [(f.probe, f.chart, f.what, f.value, f.spread, f.fraction, f.where, f.status) for f in figures]


def warnings(run: Run) -> list[str]:
    """Return every warning of the run as "kind: sentences", the worst kind first."""
    from iobench.check import judge
    from iobench.report.notices import notices

    return [f"{notice.kind}: {notice.text}" for notice in notices(run, judge(run))]


def verdict_line(run: Run) -> str:
    """Return how many points have each verdict, in one line."""
    from iobench.check import judge
    from iobench.report.notices import counts

    return ", ".join(f"{count} {status}" for status, count in counts(judge(run)).items()) or "no point was measured"


def model_rows(run: Run) -> list[tuple[str, ...]]:
    """Return the fitted models as rows of text under iobench.report.models.COLUMNS."""
    from iobench.report.models import models_of, models_view

    return list(models_view(models_of(run)).rows)


def compare_rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """Return a comparison as rows of text under iobench.report.compared.COLUMNS."""
    from iobench.report import compared

    return compared.rows(comparison)


def compare_text(comparison: Comparison) -> str:
    """Return a comparison as Markdown: what it says in one line, warnings, one row per point."""
    from iobench.report import compared

    return compared.render(comparison)


def show(console: Console, run: Run) -> None:
    """Print the summary of a run on a console: headline numbers, verdicts, warnings."""
    from iobench.report import terminal

    terminal.show(console, run)


def show_models(console: Console, run: Run) -> None:
    """Print the fitted models of a run on a console, with findings and what has no model."""
    from iobench.report import terminal

    terminal.show_models(console, run)


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"cannot write the report to {folder}: {error.strerror}; the records are safe: make room or choose "
            "another folder, then iobench report"
        ) from error


def _write_all(folder: Path, plain: str, html: str, figures: dict[str, str]) -> None:
    for path in (folder / FIGURES).glob("*.svg"):
        if path.name not in figures:
            path.unlink()  # of an earlier report
    for name, content in figures.items():
        files.replace(folder / FIGURES / name, content)
    files.replace(folder / "report.md", plain)
    files.replace(folder / "report.html", html)
