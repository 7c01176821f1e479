"""The machine as one graph: discover it, describe it, load it, save it, ask for the way between two places."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from iobench.topology.describe import describe
    from iobench.topology.discover import discover
    from iobench.topology.file import load, save
    from iobench.topology.graph import Link, Node, Path, Topology
    from iobench.topology.mounts import mount_of

__all__ = ["Link", "Node", "Path", "Topology", "describe", "discover", "load", "mount_of", "save"]

_PLACE = {"discover": "discover", "describe": "describe", "load": "file", "save": "file", "mount_of": "mounts"}


def __getattr__(name: str) -> Any:
    """Import a name's module on first use: a probe that only needs the graph stays cheap to load."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_PLACE.get(name, 'graph')}"), name)
    globals()[name] = value
    return value
