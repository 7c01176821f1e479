"""Verbs that judge numbers: check, claims. Parse, call, print, exit."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from iobench.cli_report import load
from iobench.errors import EXIT_FAILED, EXIT_OK

if TYPE_CHECKING:
    from iobench.check import Fleet
    from iobench.record import Run

_Runs = Annotated[
    list[Path], typer.Argument(metavar="RUN...", help="A run, a log or published:NAME; several are compared.")
]
_Against = Annotated[
    Path | None, typer.Option("--against", metavar="RUN", help="An earlier run of this machine: what is slower?")
]


def check(runs: _Runs, against: _Against = None) -> None:
    """Judge every number: physics, the band of the machine's class, a baseline; of many runs, which node or link.

    Exit 0: all good. 1: something is slower than expected, or failed. 3: wrong data, or a number that breaks physics.
    """
    from iobench.check import assess

    before = load(against) if against else None
    if len(runs) > 1:
        raise typer.Exit(_check_many(runs, before))
    found = assess(load(runs[0]), before)
    lines = [f"{finding.word:10} {finding.point}: {finding.sentence}" for finding in found]
    typer.echo("\n".join([*lines, "", *found.summary]))
    raise typer.Exit(found.exit_status)


def claims(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Published figures as CSV or TOML; see the README.")],
) -> None:
    """Judge somebody's published figures by physics: possible, unlikely or impossible, by which bound and how far."""
    from iobench import claims as claiming

    typer.echo(claiming.text(claiming.judge(claiming.read(file))))


def _check_many(paths: list[Path], before: Run | None) -> int:
    from iobench.check.many import gather

    found = gather(paths, before)
    for warning in found.warnings:
        sys.stderr.write(f"iobench: {warning}\n")
    fleet = found.collector.fleet()
    about = f"{len(paths)} runs, {found.good} good by themselves"
    typer.echo("\n".join([*found.lines, *_fleet_lines(fleet), about]))
    return max(found.status, EXIT_FAILED if fleet.outliers else EXIT_OK)


def _fleet_lines(fleet: Fleet) -> list[str]:
    lines = [f"outlier    {outlier.sentence}" for outlier in fleet.outliers]
    about = f"{fleet.nodes} nodes, {fleet.points} points that {_least()} or more of them share"
    alone = f"; {fleet.alone} points are shared by fewer and were left out" if fleet.alone else ""
    return [*lines, f"{about}: {len(fleet.outliers) or 'no'} outliers{alone}"]


def _least() -> int:
    from iobench.check.outliers import LEAST_MACHINES

    return LEAST_MACHINES
