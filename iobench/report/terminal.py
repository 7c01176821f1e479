"""The same rows for the terminal: tables by rich, sentences below."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from iobench.check import judge
from iobench.record import Run
from iobench.report import SUMMARY_COLUMNS, summary
from iobench.report.matrix import matrices_of
from iobench.report.notices import counts, notices
from iobench.report.shortened import sentences, shortened

_STYLES = {"ok": "green", "impossible": "red", "wrong": "bold red", "failed": "red", "skipped": "dim"}


def show(console: Console, run: Run) -> None:
    """Print headline numbers, verdicts and warnings."""
    rows = summary(run)
    if rows:
        console.print(_table(SUMMARY_COLUMNS, _grouped(rows), (3, 4, 5)))
    verdicts = judge(run)
    found = ", ".join(f"{count} {status}" for status, count in counts(verdicts).items())
    shown = shortened(run, verdicts)
    for probe in dict.fromkeys(record.probe for record in shown):
        for matrix in matrices_of(shown, probe, verdicts):
            _say(console, matrix.title)
            console.print(_table(matrix.columns, matrix.rows, range(1, len(matrix.columns))))
    _say(console, f"points: {found or 'none measured'}")
    for probe, sentence in sentences(run, shown).items():
        _say(console, f"{probe}: ", sentence)
    for notice in notices(run, verdicts):
        _say(console, f"{notice.kind}: ", notice.text, _STYLES.get(notice.kind, "yellow"))


def show_models(console: Console, run: Run) -> None:
    """Print parameters with intervals, then findings and the series without a model."""
    from iobench.report import models  # what fits takes long to import, and a summary does without

    view = models.view_of(run)
    if view.rows:
        console.print(_table(models.COLUMNS, view.rows, models.NUMERIC))
    for name, sentence in view.findings:
        _say(console, f"{name}: ", sentence)
    for name, why in view.missing:
        _say(console, f"{name}: ", f"no model. {why}")
    if not (view.rows or view.missing):
        _say(console, "no series has a model: nothing was measured over several sizes")


def _grouped(rows: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Return the rows with probe and figure only where they change."""
    shown: list[tuple[str, ...]] = []
    last: tuple[str, ...] = ()
    for row in rows:
        probe, figure = row[:2]
        first = (probe, figure) != last
        shown.append((probe, figure, *row[2:]) if first else ("", "", *row[2:]))
        last = (probe, figure)
    return shown


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]], numeric: Sequence[int]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(Text(column), justify="right" if number in numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
    return table


def _say(console: Console, lead: str, text: str = "", style: str = "") -> None:
    """Print words as they are: nothing in them is markup, no line is cut."""
    console.print(Text.assemble((lead, style), text), soft_wrap=not console.is_terminal)
