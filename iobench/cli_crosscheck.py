"""The verb that runs a peer beside iobench: crosscheck. Parse, call, print, exit."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Annotated

import typer

from iobench.errors import EXIT_FAILED, EXIT_OK


def crosscheck(
    name: Annotated[str, typer.Argument(help="A probe, or the name of a crosscheck; a wrong one lists them.")],
    quick: Annotated[bool, typer.Option("--quick", help="Fewer rounds.")] = False,
    peer: Annotated[str | None, typer.Option(metavar="PATH", help="The peer tool, where it is not on PATH.")] = None,
) -> None:
    """Measure the same thing with a peer tool, interleaved, and print the ratios; exit 1 if a bar is missed."""
    from iobench import crosscheck as crosschecks

    check_it = crosschecks.find(name)
    crosschecks.use(name, peer)
    signal.signal(signal.SIGTERM, _terminate)
    raise typer.Exit(EXIT_OK if check_it(typer.echo, quick) else EXIT_FAILED)


def _terminate(number: int, _frame: FrameType | None) -> None:
    """End as after Ctrl-C: what was written for the comparison goes, the peers end."""
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(128 + number)
