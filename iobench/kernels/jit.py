"""The decorator of every CPU kernel, and the folder that keeps what it compiled."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba


def cache_dir(environment: dict[str, str] | None = None) -> Path | None:
    """Return the folder for compiled kernels, None where there is none to write to.

    ``NUMBA_CACHE_DIR`` if set, else ``iobench/numba`` below ``XDG_CACHE_HOME`` or ``~/.cache``: never the
    installed package, which may belong to root or lie in a checkout. The last part of the path is a hash
    of all kernels' sources: numba looks only at the file of the function itself, not at those it calls.
    """
    values = dict(os.environ) if environment is None else environment
    chosen = values.get("NUMBA_CACHE_DIR")
    try:
        folder = (Path(chosen) if chosen else _user_cache(values) / "iobench" / "numba") / f"kernels-{_sources()}"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # RuntimeError: a user whom the system does not know has no home
        return None
    return folder if os.access(folder, os.W_OK | os.X_OK) else None


def _user_cache(environment: dict[str, str]) -> Path:
    return Path(environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME") or "~").expanduser() / ".cache")


def _sources() -> str:
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


_FOLDER = cache_dir()
if _FOLDER is not None:
    numba.config.CACHE_DIR = str(_FOLDER)


def kernel(reassociate: bool = False) -> Callable[[Callable[..., Any]], Any]:
    """Return numba's decorator: no GIL inside, compiled code kept on disk where there is a place for it.

    ``reassociate`` lets a sum be split into several accumulators, without which it does not vectorise.
    """
    fast = {"reassoc", "nsz", "contract"} if reassociate else False
    return numba.njit(nogil=True, cache=_FOLDER is not None, fastmath=fast, error_model="numpy")  # type: ignore[no-any-return]
