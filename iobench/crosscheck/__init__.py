"""Crosschecks: the same thing measured by a peer tool, interleaved in one run. One file per probe."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from iobench.errors import UserError

NAMES = ("dram", "storage", "gpu", "nccl", "repeat", "startup")


def find(name: str) -> Callable[[Callable[[str], Any], bool], bool]:
    """Return ``run(say, quick) -> bool`` (True: every bar met) of the crosscheck ``name``."""
    if name not in NAMES:
        raise UserError(f"no crosscheck '{name}': there are {', '.join(NAMES)}")
    function: Callable[[Callable[[str], Any], bool], bool] = importlib.import_module(f"iobench.crosscheck.{name}").run
    return function
