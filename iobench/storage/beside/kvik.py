"""kvikio: cuFile where it finds a way to it, its own POSIX reads else; forced to the latter as "kvikio-compat".

Every file is read whole into GPU memory, in tasks of ``block`` bytes by ``threads`` of kvikio's threads. Which way
each read took is told by kvikio's own statistics (26.10 and later) and, for cuFile, by nvidia-fs.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from iobench.errors import IobenchError, Unavailable
from iobench.storage.beside.loaders import HOST, Order
from iobench.storage.checkpoint import Checkpoint
from iobench.storage.plan import Area, files
from iobench.storage.verify import POISON

COMPAT = "kvikio-compat"


class Kvikio:
    """Whole files to one buffer on the first GPU."""

    def __init__(self, order: Order, checkpoint: Checkpoint) -> None:
        if order.target == HOST:
            raise Unavailable("kvikio reads into GPU memory here: -a target=gpu")
        import cupy
        import kvikio
        import kvikio.defaults

        mode = "ON" if order.loader == COMPAT else "AUTO"
        settings = {"compat_mode": kvikio.CompatMode[mode], "num_threads": order.threads, "task_size": order.block}
        kvikio.defaults.set(settings)
        self._kvikio, self._cupy, self._order, self._checkpoint = kvikio, cupy, order, checkpoint
        self._plan = files(checkpoint)
        self._memory = cupy.zeros(self._plan.room, cupy.uint8)
        self._registered = self._register() if order.register == "once" else "not asked for"
        self._monitor = monitor(kvikio)

    def poison(self) -> None:
        self._memory.fill(POISON)
        self._cupy.cuda.runtime.deviceSynchronize()

    def load(self) -> None:
        with contextlib.ExitStack() as stack:
            futures = []
            for path, area in zip(self._order.paths, self._plan.areas, strict=True):
                file = stack.enter_context(self._kvikio.CuFile(path, "r"))
                futures.append((area, file.pread(self._memory[area.start : area.start + area.width])))
            for area, future in futures:
                moved = future.get()
                if moved != area.width:
                    raise IobenchError(f"{area.name}: kvikio read {moved} of {area.width} bytes: the file was cut")
        self._cupy.cuda.runtime.deviceSynchronize()

    def parts(self) -> Iterator[tuple[Area, Any]]:
        for area in self._plan.areas:
            yield area, self._memory[area.start : area.start + area.width]

    def facts(self) -> dict[str, Any]:
        libraries = loaded(Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace"))
        return {
            "loader": f"kvikio {self._kvikio.__version__}",
            "compat_mode": self._mode(),
            "posix_preferred": self._kvikio.defaults.is_compat_mode_preferred(),
            "buffer": self._registered,
            "libcufile": libraries,
            "backends": backends(self._monitor),
        }

    def _mode(self) -> str:
        """Return "ON", "OFF" or "AUTO"; kvikio's own text of it is a number."""
        return str(self._kvikio.CompatMode(self._kvikio.defaults.get("compat_mode")).name)

    def _register(self) -> str:
        """Register the buffer; cuFile refuses it where BAR1 is too small, and reads go on unregistered.

        Where kvikio reads by POSIX its registering does nothing and says nothing.
        """
        if self._kvikio.defaults.is_compat_mode_preferred():
            return "not registered: kvikio reads by POSIX here"
        try:
            self._kvikio.memory_register(self._memory)
        except RuntimeError as error:
            return f"not registered: {' '.join(str(error).split())[:160]}"
        return "registered"


def monitor(kvikio: Any) -> Any:
    """Return kvikio's monitor of operations, None where this version has none."""
    make = getattr(kvikio, "SummaryMonitor", None)
    if make is None:
        with contextlib.suppress(ImportError, AttributeError):
            from kvikio import statistics

            make = statistics.SummaryMonitor
    return make() if make else None


def backends(monitor: Any) -> dict[str, int] | None:
    """Return the bytes that each backend has carried so far, by its name in lower case; None where not counted."""
    if monitor is None:
        return None
    return {str(name).lower(): int(totals["bytes_transferred"]) for name, totals in monitor.get().by_backend.items()}


def loaded(maps: str) -> list[str]:
    """Return the paths of the libcufile that a process has loaded (/proc/PID/maps); wheels bring their own."""
    return sorted(set(re.findall(r"\s(/\S*libcufile\S*\.so[\S]*)", maps)))
