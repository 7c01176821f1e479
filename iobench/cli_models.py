"""Verbs that use models: predict, export, bench-scale. Parse, call, print."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from iobench.errors import EXIT_FAILED, EXIT_OK, UserError

if TYPE_CHECKING:
    from iobench.record import Run

_Spec = Annotated[
    str,
    typer.Argument(metavar="RUN", help="A run, a log, a models file (*.json) or published:NAME.", show_default=False),
]
_Nbytes = Annotated[str, typer.Option("--nbytes", "-n", metavar="SIZE", help="Message size, as in 64M.")]
_Op = Annotated[str, typer.Option("--op", help="The collective, as in all_reduce.")]
_AxisValues = Annotated[
    list[str] | None, typer.Option("--axis", "-a", metavar="AXIS=VALUE", help="Choose a series: -a dtype=float16.")
]


def predict(
    specs: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="A run, a log, a models file (*.json), published:NAME; or several."),
    ],
    nbytes: _Nbytes,
    op: _Op = "",
    ranks: Annotated[int, typer.Option(help="How many ranks take part, over all nodes.")] = 0,
    nodes: Annotated[int, typer.Option(help="On how many nodes.")] = 1,
    probe: Annotated[str, typer.Option(help="Instead of a collective: a series of this probe.")] = "",
    axes: _AxisValues = None,
) -> None:
    """Predict the time of one operation: measured, between sizes, or for ranks and nodes that were not measured."""
    from iobench.predict import Query
    from iobench.predict import predict as forecast
    from iobench.units import parse_size

    query = Query(parse_size(nbytes), op, probe, ranks, nodes, _pairs(axes))
    typer.echo(forecast(specs, query).text())


def export(
    spec: _Spec,
    name: Annotated[
        str, typer.Option("--format", "-f", help="nccl-tuner, simai-ratio, simai-busbw, astra-sim or table.")
    ] = "table",
    op: _Op = "",
    nbytes: _Nbytes = "",
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write to this file.")] = None,
) -> None:
    """Write models or measurements in the format of a tuner, a simulator or a spreadsheet."""
    from iobench import export as exports
    from iobench.units import parse_size

    options = exports.Options(op, parse_size(nbytes) if nbytes else 0)
    text = exports.export(spec, name, options)
    if out is None:
        typer.echo(text, nl=False)
    else:
        typer.echo(exports.save(text, out))


def bench_scale(
    curves: Annotated[Path, typer.Argument(metavar="CURVES", help="CSV of published latencies (see the module).")],
) -> None:
    """Predict 8 ranks from 2 and 4 over every curve of a file; exit 1 if a bar is missed."""
    from iobench.fit.scale.bench import bench

    text, met = bench(curves)
    typer.echo(text)
    raise typer.Exit(EXIT_OK if met else EXIT_FAILED)


def save(run: Run, file: Path) -> None:
    """Fit everything in ``run``, write the models file and print what its collectives cost per hop and byte."""
    from iobench.fit import machine_models

    models = machine_models.of_run(run)
    summary = models.summary()
    typer.echo(f"{summary}\nmodels: {models.save(file)}".lstrip())


def _pairs(axes: list[str] | None) -> dict[str, str]:
    pairs = {}
    for text in axes or []:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise UserError(f"'-a {text}' is no AXIS=VALUE: write it as in -a dtype=float16")
        pairs[name] = value
    return pairs
