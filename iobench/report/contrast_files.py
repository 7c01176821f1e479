"""Writes a comparison into a folder: compare.md, compare.html, and its figures as SVG and PDF."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import iobench
from iobench import files
from iobench.compare import Comparison, Contrast
from iobench.compare.contrasts import Match
from iobench.errors import UserError
from iobench.report import compared, contrasted, page
from iobench.report.contrast_figures import ContrastFigure, figures_of
from iobench.report.contrast_matrices import matrices_of

FIGURES = "figures"


def write(found: Contrast, points: Comparison | None, folder: Path) -> tuple[Path, Path]:
    """Write the comparison and return compare.md and compare.html; UserError where the folder can't be written.

    Figures of an earlier comparison are replaced.
    """
    drawn = {m.title: figures_of(m, number) for number, m in enumerate(contrasted.over_sizes(found), start=1)}
    drawn[contrasted.ONE_SIZE] = matrices_of(contrasted.at_one_size(found))
    plain, html = markdown(found, points, drawn), render(found, points, drawn)
    figures = [figure for each in drawn.values() for figure in each]
    try:
        _write(folder, plain, html, figures)
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror}; choose another folder with --out") from error
    return folder / "compare.md", folder / "compare.html"


def markdown(found: Contrast, points: Comparison | None, drawn: dict[str, list[ContrastFigure]]) -> str:
    """Return the comparison as Markdown with its figures beside it."""
    figures = {
        title: [(figure.alt, f"{FIGURES}/{figure.name}.svg", figure.caption) for figure in each]
        for title, each in drawn.items()
    }
    parts = ["# Comparison", contrasted.render(found, figures)]
    if points is not None and points.rows:
        parts += ["## Point by point", compared.render(points)]
    return "\n\n".join(parts) + "\n"


def render(found: Contrast, points: Comparison | None, drawn: dict[str, list[ContrastFigure]]) -> str:
    """Return the comparison as one page that needs nothing from outside; every text is escaped."""
    return page.template("compare.html.j2").render(
        version=iobench.__version__,
        css=page.css(),
        sides=found.sides,
        sides_rows=[(side.letter, side.name, side.what, side.whose) for side in found.sides],
        parts=[_part(match, found.at, drawn[match.title]) for match in contrasted.over_sizes(found)]
        + _one_size(found, drawn)
        + _tails(found),
        refused=found.refused,
        notes=found.notes,
        points=_points(points),
        basis=contrasted.BASIS,
    )


def _part(match: Match, at: tuple[int, ...], figures: list[ContrastFigure]) -> dict[str, Any]:
    return {
        "title": match.title,
        "sentences": contrasted.sentences(match),
        "cautions": match.cautions,
        "columns": contrasted.columns(match),
        "rows": contrasted.rows(match),
        "cost_columns": contrasted.cost_columns(match),
        "cost_rows": contrasted.cost_rows(match, at),
        "figures": figures,
    }


def _one_size(found: Contrast, drawn: dict[str, list[ContrastFigure]]) -> list[dict[str, Any]]:
    matches = contrasted.at_one_size(found)
    if not matches:
        return []
    table = {"columns": contrasted.one_size_columns(found), "rows": contrasted.one_size_rows(found)}
    cautions = list(dict.fromkeys(sentence for match in matches for sentence in match.cautions))
    figures = drawn.get(contrasted.ONE_SIZE, [])
    return [
        {
            "title": contrasted.ONE_SIZE,
            "sentences": [],
            "cautions": cautions,
            "figures": figures,
            "unit": "series",
            **table,
        }
    ]


def _tails(found: Contrast) -> list[dict[str, Any]]:
    rows = contrasted.tail_rows(found)
    rest = {"sentences": [], "cautions": [], "figures": [], "unit": "series"}
    return [{"title": contrasted.TAILS, "columns": contrasted.TAIL_COLUMNS, "rows": rows, **rest}] if rows else []


def _points(points: Comparison | None) -> dict[str, Any] | None:
    if points is None or not points.rows:
        return None
    return {
        "headline": compared.headline(points),
        "sentences": [*points.summary, *points.warnings],
        "columns": compared.COLUMNS,
        "rows": compared.rows(points),
    }


def _write(folder: Path, plain: str, html: str, figures: list[ContrastFigure]) -> None:
    (folder / FIGURES).mkdir(parents=True, exist_ok=True)
    names = {f"{figure.name}.{kind}" for figure in figures for kind in ("svg", "pdf")}
    for old in (folder / FIGURES).glob("compare-*"):
        if old.name not in names:
            with contextlib.suppress(FileNotFoundError):
                old.unlink()  # of an earlier comparison
    for figure in figures:
        files.replace(folder / FIGURES / f"{figure.name}.svg", figure.svg)
        files.replace(folder / FIGURES / f"{figure.name}.pdf", figure.pdf)
    files.replace(folder / "compare.md", plain)
    files.replace(folder / "compare.html", html)
