"""The same rows for the terminal: tables by rich, sentences below."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import groupby

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

_ENDLESS = 10_000  # columns: wider than any row
_STYLES = {"ok": "green", "impossible": "red", "wrong": "bold red", "failed": "red", "skipped": "dim"}


def show(console: Console, run: Run) -> None:
    """Print headline numbers, verdicts and warnings."""
    rows = summary(run)
    if rows:
        _print(console, SUMMARY_COLUMNS, rows, (3, 4, 5), lead=2)
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


def _print(
    console: Console,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    numeric: Collection[int],
    lead: int,
) -> None:
    """Print one table; where its words do not fit, a table for each of what the ``lead`` first columns name."""
    whole = _table(columns, _grouped(rows, lead), numeric)
    if console.measure(whole, options=console.options.update(max_width=_ENDLESS)).minimum <= console.width:
        console.print(whole)
        return
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)][lead:]
    fits = sum(widths) + 3 * len(widths) <= console.width
    for number, (names, members) in enumerate(groupby(rows, key=lambda row: tuple(row[:lead]))):
        _say(console, ": ".join(names))
        table = _table(columns[lead:], [row[lead:] for row in members], [place - lead for place in numeric])
        table.show_header = number == 0
        for column, width in zip(table.columns, widths, strict=True):
            column.min_width = width if fits else None
        console.print(table)


def show_models(console: Console, run: Run) -> None:
    """Print parameters with intervals, then findings and the series without a model."""
    from iobench.report import models  # what fits takes long to import, and a summary does without

    view = models.view_of(run)
    if view.rows:
        _print(console, models.COLUMNS, _filled(view.rows), models.NUMERIC, lead=1)
    for name, sentence in view.findings:
        _say(console, f"{name}: ", sentence)
    for name, why in view.missing:
        _say(console, f"{name}: ", f"no model. {why}")
    if not (view.rows or view.missing):
        _say(console, "no series has a model: nothing was measured over several sizes")


def _filled(rows: Iterable[Sequence[str]]) -> list[tuple[str, ...]]:
    """Return the rows with the first cell of the row above where theirs is empty."""
    filled: list[tuple[str, ...]] = []
    for first, *rest in rows:
        filled.append((first or filled[-1][0], *rest))
    return filled


def _grouped(rows: Iterable[Sequence[str]], lead: int) -> list[tuple[str, ...]]:
    """Return the rows with the first ``lead`` cells only where they change."""
    shown: list[tuple[str, ...]] = []
    last: tuple[str, ...] = ()
    for row in rows:
        names = tuple(row[:lead])
        shown.append((*(names if names != last else ("",) * lead), *row[lead:]))
        last = names
    return shown


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]], numeric: Collection[int]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(Text(column), justify="right" if number in numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
    return table


def _say(console: Console, lead: str, text: str = "", style: str = "") -> None:
    """Print words as they are: nothing in them is markup, no line is cut."""
    console.print(Text.assemble((lead, style), text), soft_wrap=not console.is_terminal)
