"""Two hosts without a launcher: run --server on one, run --connect on the other. Parse, call, print, exit."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from iobench.errors import EXIT_OK, UserError

Serve = Annotated[bool, typer.Option("--server", help="Be the other host of a measurement, until Ctrl-C.")]
Listen = Annotated[str, typer.Option(metavar="ADDRESS", help="--server: listen here (the port's own address).")]
Connect = Annotated[str, typer.Option(metavar="HOST", help="Measure with the host that runs --server.")]


def take_place(probes: list[str], server: bool, listen: str, connect: str) -> list[str]:
    """Serve and exit, or return the assignments that --connect stands for; [] without either."""
    from iobench.rdma import pairing, remote
    from iobench.rdma import server as serving

    if not (server or listen or connect):
        return []
    ours = pairing.TARGET.split(".")[1]  # the one probe that has two hosts of its own
    if probes != [ours] or (server and connect) or (listen and not server):
        raise UserError(
            f"--server [--listen ADDRESS] and --connect HOST are two hosts' ways to run {ours}: "
            f"iobench run {ours} --server there, iobench run {ours} --connect HOST here"
        )
    if server:
        try:
            serving.run(listen, lambda text: sys.stderr.write(f"iobench: {text}\n"))
        except KeyboardInterrupt:
            raise typer.Exit(EXIT_OK) from None
        raise typer.Exit(EXIT_OK)
    host, port = remote.address_of(connect)
    os.environ[pairing.VARIABLE] = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return ["nodes=2"]
