"""Where the data that ships with iobench lies: in a checkout at its root, in a wheel inside the package."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def data_dir(name: str) -> Path:
    """Return the folder ``name`` ("probes" or "topologies") of this installation."""
    packaged = _PACKAGE / "_data" / name
    return packaged if packaged.is_dir() else _PACKAGE.parent / name


def source_root() -> Path:
    """Return the folder from which ``import iobench`` finds this very package."""
    return _PACKAGE.parent
