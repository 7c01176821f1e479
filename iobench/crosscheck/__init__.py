"""Crosschecks: the same thing measured by a peer tool, interleaved in one run. One file per probe."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from iobench.errors import UserError
from iobench.probe import nearest

NAMES = (
    "dram",
    "loaded",
    "gather",
    "storage",
    "weights",
    "memory",
    "gpu",
    "nccl",
    "rdma",
    "repeat",
    "startup",
    "importing",
    "records",
)
ALIASES = {"pcie": "gpu", "p2p": "gpu", "hbm": "gpu", "allreduce": "nccl", "cxl": "gather"}
PEERS = {
    "dram": ("likwid-bench", "mbw", "mlc"),
    "storage": ("fio",),
    "weights": ("fio",),
    "gpu": ("nvbandwidth",),
    "nccl": ("all_reduce_perf",),
    "rdma": ("ib_write_lat", "ib_send_lat", "ib_read_lat", "ib_write_bw"),
}


def find(name: str) -> Callable[[Callable[[str], Any], bool], bool]:
    """Return ``run(say, quick) -> bool`` (True: every bar met) of the crosscheck ``name``, or of a probe's name."""
    name = ALIASES.get(name, name)
    if name not in NAMES:
        raise UserError(f"no crosscheck '{name}'{nearest(name, NAMES)}: there are {', '.join(NAMES)}")
    function: Callable[[Callable[[str], Any], bool], bool] = importlib.import_module(f"iobench.crosscheck.{name}").run
    return function


def use(name: str, peer: str | None) -> None:
    """Take the program that --peer names for the crosscheck ``name``; UserError where it is not one of its peers."""
    from iobench.crosscheck.peer import give

    wanted = PEERS.get(ALIASES.get(name, name), ())
    if peer is not None and not wanted:
        raise UserError(f"{name} runs beside no other program: leave out --peer")
    give(peer, wanted if ALIASES.get(name, name) in {"dram", "storage", "weights"} else ())
