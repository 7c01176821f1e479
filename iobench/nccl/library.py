"""The libnccl that this process has loaded, for what no binding offers: memory of its own, its log begun anew.

NCCL registers the buffers of captured operations where they come from ncclMemAlloc (nccl-tests takes them from there),
and peers then read and write them directly; memory of cudaMalloc goes through its staging buffers instead.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from iobench.errors import IobenchError

_MAPS = Path("/proc/self/maps")
_SUBSYSTEMS, _FILE = "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"


class NcclFailed(IobenchError):
    """A call of libnccl gave an error."""


def path(maps: Path = _MAPS) -> str:
    """Return the file of the libnccl that this process has loaded, "" where it has none."""
    with contextlib.suppress(OSError):
        for line in maps.read_text(encoding="utf-8", errors="replace").splitlines():
            if "libnccl.so" in line:
                return line.split(maxsplit=5)[-1].removesuffix(" (deleted)")
    return ""


@functools.cache
def load(file: str = "") -> Any:
    """Return the loaded library (or ``file``) through ctypes; None where there is none."""
    file = file or path()
    with contextlib.suppress(OSError):
        return ctypes.CDLL(file) if file else None
    return None


def allocates(library: Any) -> bool:
    """Tell whether the library has memory of its own (NCCL 2.19 and newer)."""
    return hasattr(library, "ncclMemAlloc") and hasattr(library, "ncclMemFree")


@contextlib.contextmanager
def memory(library: Any, nbytes: int) -> Iterator[int]:
    """Yield the address of ``nbytes`` of the current device's memory from ncclMemAlloc; NcclFailed without room."""
    address = ctypes.c_void_p()
    _done(library, library.ncclMemAlloc(ctypes.byref(address), ctypes.c_size_t(nbytes)), f"ncclMemAlloc({nbytes})")
    try:
        yield int(address.value or 0)
    finally:
        library.ncclMemFree(address)


class Log:
    """The files that NCCL writes of this process; a line for every operation or not, as the environment began it.

    NCCL reads what to log when its log begins, so a change begins it anew, in a further file.
    """

    def __init__(self, environment: Any = os.environ) -> None:
        self._environment = environment
        self._subsystems: str = environment.get(_SUBSYSTEMS, "")
        self._first = environment.get(_FILE, "").replace("%p", str(os.getpid()))
        self._files = [Path(self._first)] if self._first else []
        self._read = [0] * len(self._files)
        self.operations = "TUNING" in self._subsystems.split(",")

    def new(self, most: int) -> str:
        """Return the whole lines that came since the last call, at most ``most`` bytes of each file."""
        said = []
        for number, file in enumerate(self._files):
            with contextlib.suppress(OSError), file.open("rb") as stream:
                stream.seek(self._read[number])
                text = stream.read(most)
                text = text[: text.rfind(b"\n") + 1]
                self._read[number] += len(text)
                said.append(text.decode("utf-8", "replace"))
        return "".join(said)

    def log_operations(self, wanted: bool, library: Any) -> bool:
        """Let NCCL write a line on each operation or not; return whether it does now."""
        begin = getattr(library, "ncclResetDebugInit", None)
        if wanted == self.operations or begin is None or not self._files:
            return self.operations
        kept = [name for name in self._subsystems.split(",") if name != "TUNING"]
        self._files.append(Path(f"{self._first}.{len(self._files)}"))
        self._read.append(0)
        self._environment[_SUBSYSTEMS] = ",".join([*kept, "TUNING"] if wanted else kept)
        self._environment[_FILE] = str(self._files[-1])
        begin()
        self.operations = wanted
        return wanted

    def remove(self) -> None:
        """Delete the files."""
        for file in self._files:
            with contextlib.suppress(OSError):
                file.unlink()


def _done(library: Any, status: int, call: str) -> None:
    if status:
        library.ncclGetErrorString.restype = ctypes.c_char_p
        words = (library.ncclGetErrorString(status) or b"").decode("utf-8", "replace")
        raise NcclFailed(f"{call} failed: {words or f'status {status}'}")
