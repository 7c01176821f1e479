"""Everything the report says, as plain data: HTML, Markdown and the terminal only lay it out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from iobench import topology
from iobench.check import Verdict, judge, topology_of
from iobench.record import Run
from iobench.report import facts
from iobench.report.charts import charts_of
from iobench.report.keyfigures import KeyFigure, best_per_chart, key_figures
from iobench.report.matrix import MatrixView, matrices_of
from iobench.report.names import about
from iobench.report.notices import Notice, counts, notices, skipped_whole
from iobench.report.roofline import rooflines_of
from iobench.report.shortened import sentences, shortened
from iobench.report.table import Table, table_of

if TYPE_CHECKING:
    from iobench.report.figures import FigureView
    from iobench.report.models import ModelsView

FOLD_ROWS = 24  # longer tables get a box of their own to scroll in, and are folded in Markdown
_MOST_TILES = 6


@dataclass(frozen=True)
class Section:
    """One probe: its title, figures and table."""

    probe: str
    title: str
    figures: tuple[FigureView, ...]
    matrices: tuple[MatrixView, ...]
    table: Table
    fold: bool


@dataclass(frozen=True)
class View:
    """The report of one run."""

    machine: str
    created: str
    version: str
    run_id: str
    paragraph: str
    counts: dict[str, int]
    notices: tuple[Notice, ...]
    tiles: tuple[KeyFigure, ...]
    keys: tuple[KeyFigure, ...]
    models: ModelsView
    sections: tuple[Section, ...]
    topology: str
    facts: tuple[tuple[str, str], ...]

    @property
    def figure_files(self) -> dict[str, str]:
        """Return file name -> SVG of every figure."""
        drawn = [figure for section in self.sections for figure in section.figures]
        return {f"{figure.name}.svg": figure.svg for figure in drawn}


def view_of(run: Run) -> View:
    """Judge, fit and draw the run; needs nothing but its records file."""
    from iobench.report import models  # fits, and figures draw: a summary on the terminal needs neither

    verdicts = judge(run)
    part = shortened(run, verdicts)
    left_out = sentences(run, part)
    shown = dict.fromkeys(record.probe for record in part if not skipped_whole(record))
    sections = tuple(_section(part, probe, verdicts, left_out.get(probe, "")) for probe in shown)
    keys = key_figures(figure.chart for section in sections for figure in section.figures)
    machine = {name: value for name, value in run.header.machine.items() if name != "name"}
    request = {f"request.{name}": value for name, value in run.header.request.items()}
    return View(
        machine=run.machine,
        created=run.header.created,
        version=run.header.version,
        run_id=run.header.run_id,
        paragraph=facts.paragraph(run),
        counts=counts(verdicts),
        notices=tuple(notices(run, verdicts)),
        tiles=tuple(best_per_chart(keys)[:_MOST_TILES]),
        keys=tuple(keys),
        models=models.view_of(run),
        sections=sections,
        topology=topology_text(run),
        facts=tuple(facts.rows({**machine, **request, **run.header.environment})),
    )


def key_figures_of(run: Run, verdicts: Mapping[str, Verdict]) -> list[KeyFigure]:
    """Return the run's headline numbers without drawing anything."""
    part = shortened(run, verdicts)
    probes = dict.fromkeys(record.probe for record in part)
    return key_figures(chart for probe in probes for chart in charts_of(part, probe, verdicts))


def topology_text(run: Run) -> str:
    """Return the stored topology in words."""
    graph = topology_of(run)
    return topology.describe(graph) if graph else "The run holds no topology."


def _section(run: Run, probe: str, verdicts: Mapping[str, Verdict], left_out: str) -> Section:
    from iobench.report.figures import figures_of

    table = table_of(run, probe, verdicts)
    title = " ".join(part for part in (str(about(run, probe).get("title", "")), left_out) if part)
    figures = tuple(figures_of(run, probe, verdicts))
    matrices = (*matrices_of(run, probe, verdicts), *rooflines_of(run, probe, verdicts))
    return Section(probe, title, figures, matrices, table, len(table.rows) > FOLD_ROWS)
