"""Verbs that set runs and curves side by side: compare, published. Parse, call, print."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from iobench.cli_report import load
from iobench.errors import UserError


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
    loaded = [load(Path(spec)) for spec in runs]
    names = [sources.label(spec, run) for spec, run in zip(runs, loaded, strict=True)]
    sizes = parse_sizes(at) if at else []
    asked = comparing.Asked(loaded, names, sizes, comparing.parse_where(where or []), by, mixed)
    typer.echo(comparing.text(asked, every_size=not summary))
    if out:
        markdown, page = comparing.write(asked, out)
        typer.echo(f"\ncomparison: {markdown}\n            {page}")


def published(name: Annotated[str | None, typer.Argument(help="Show this curve's sources and notes.")] = None) -> None:
    """List the published curves to compare with: what was measured, and whose numbers they are."""
    from iobench import published as curves

    typer.echo(curves.details(name) if name else curves.table())
