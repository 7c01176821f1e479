"""The Python packages that iobench needs, so that an interpreter without them can be told all of them at once."""

from __future__ import annotations

import importlib.util
import sys

PACKAGES = ("jinja2", "matplotlib", "numba", "numpy", "rich", "scipy", "torch", "typer")


def missing(module: str) -> str:
    """Return the sentence for an interpreter without ``module``: that package, and what else it lacks."""
    first = module.partition(".")[0]
    lacking = [name for name in PACKAGES if _absent(name)]
    names = " ".join(dict.fromkeys([first, *lacking]))
    return f"this Python ({sys.executable}) lacks {names}: pip install {names}, or run make without PYTHON="


def _absent(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is None
    except (ModuleNotFoundError, ValueError):
        return True
