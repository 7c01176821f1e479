"""The kinds of model: one file each, found by its constant ``KIND``. A new file is all a new kind needs."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from functools import cache

from iobench.errors import UserError
from iobench.fit.series import Kind


@cache
def known() -> dict[str, Kind]:
    """Return name -> kind of every file in this folder."""
    modules = [importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
    return {module.KIND.name: module.KIND for module in modules}


def get(name: str) -> Kind:
    """Return the kind called ``name``; UserError with the nearest names where there is none."""
    try:
        return known()[name]
    except KeyError:
        near = difflib.get_close_matches(name, known(), n=1, cutoff=0.5)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise UserError(f"no model kind '{name}'{hint}; there are {', '.join(known())}") from None
