"""pyverbs as Debian ships it (44: flat pyverbs.enums) and as PyPI does (59: classes in pyverbs.libibverbs_enums).

The only module that imports pyverbs. A distribution's pyverbs lies beside the system's Python, where a virtual
environment does not look: ``load`` looks there too, if it was built for this version of Python.
"""

from __future__ import annotations

import contextlib
import enum
import importlib
import importlib.machinery
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from iobench.errors import RdmaError, Unavailable

NAME = "pyverbs"
_MODULES = ("device", "pd", "cq", "mr", "qp", "addr", "wr")
_ENUMS = ("enums", "libibverbs_enums")
_PLACES = (
    "/usr/lib/python3/dist-packages",
    "/usr/lib64/python{0}.{1}/site-packages",
    "/usr/lib/python{0}.{1}/site-packages",
)
INSTALL = (
    "apt install python3-pyverbs (Debian, Ubuntu), dnf install python3-pyverbs (Fedora, RHEL), for the Python of the "
    "system; or pip install 'iobench[rdma]' beside rdma-core of the same version"
)
# ibv_wc_status (infiniband/verbs.h): what each says to somebody who has to mend it
STATUS = {
    1: "local length error: a message longer than the receive buffer, or than the port carries",
    2: "local queue pair error",
    4: "local protection error: a key or address of this side's own memory is wrong",
    5: "the queue pair is in error: an earlier operation failed, or the other side closed it",
    6: "memory window bind error",
    7: "bad response from the other side",
    8: "local access error",
    9: "remote invalid request: the other side's queue pair does not allow this operation",
    10: "remote access error: the key or address of the other side's memory is wrong or does not allow this",
    11: "remote operation error",
    12: "the other side did not answer (transport retries exceeded): it is gone, or the path between them is broken",
    13: "the other side had no receive posted (receiver-not-ready retries exceeded)",
    21: "fatal error of the device",
    22: "response timeout",
}


class Verbs:
    """pyverbs' modules by their names (``device``, ``qp`` ...) and ``enums``: every constant, as a plain int."""

    def __init__(self, package: ModuleType) -> None:
        self.package = package
        self.enums, self.form = _constants()
        self._modules = {name: importlib.import_module(f"{NAME}.{name}") for name in _MODULES}
        self.error: type[Exception] = importlib.import_module(f"{NAME}.pyverbs_error").PyverbsError

    def __getattr__(self, name: str) -> Any:
        try:
            return self._modules[name]
        except KeyError:
            raise AttributeError(name) from None

    @property
    def place(self) -> str:
        return _place(self.package)

    def constant(self, name: str) -> int:
        """Return a constant of infiniband/verbs.h: constant("QPT_RC"); Unavailable where this pyverbs lacks it."""
        value = self.enums.get(f"IBV_{name}", self.enums.get(f"_IBV_{name}"))
        if value is None:
            raise Unavailable(f"this pyverbs knows no IBV_{name}: {INSTALL}")
        return value

    def names(self) -> list[str]:
        """Return the names of all devices; [] where the kernel has no RDMA."""
        try:
            return sorted(device.name.decode() for device in self.device.get_device_list())
        except self.error:
            return []

    @contextlib.contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """Turn pyverbs' exceptions in the block into RdmaError: "registering 1 GiB: Cannot allocate memory"."""
        try:
            yield
        except self.error as error:
            raise RdmaError(f"{what}: {_reason(error)}") from error


def load() -> Verbs:
    """Return pyverbs, or raise Unavailable with what to install."""
    package = _import()
    try:
        return Verbs(package)
    except ImportError as error:
        raise Unavailable(f"pyverbs at {_place(package)} cannot be loaded ({error}): {INSTALL}") from error


def _import() -> ModuleType:
    with contextlib.suppress(ModuleNotFoundError):
        return importlib.import_module(NAME)
    for folder in places():
        spec = importlib.util.spec_from_file_location(
            NAME, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        if spec is not None and spec.loader is not None:
            module = importlib.util.module_from_spec(spec)
            sys.modules[NAME] = module
            spec.loader.exec_module(module)
            return module
    raise Unavailable(f"needs pyverbs, which this Python ({sys.executable}) does not have: {INSTALL}")


def places() -> list[Path]:
    """Return the folders of a system's pyverbs that was built for this Python."""
    found = [Path(text.format(*sys.version_info)) / NAME for text in _PLACES]
    return [
        folder
        for folder in found
        if (folder / "__init__.py").exists()
        and any((folder / f"device{suffix}").exists() for suffix in importlib.machinery.EXTENSION_SUFFIXES)
    ]


def _constants() -> tuple[dict[str, int], str]:
    """Return name -> value of every constant and the module that has them, whichever way pyverbs keeps them."""
    found: dict[str, int] = {}
    form = ""
    problem: ImportError | None = None
    for name in _ENUMS:
        try:
            module = importlib.import_module(f"{NAME}.{name}")
        except ImportError as error:
            problem = error
            continue
        form = form or name
        for key, value in vars(module).items():
            if isinstance(value, int) and "IBV" in key:
                found.setdefault(key, int(value))
            elif isinstance(value, type) and issubclass(value, enum.Enum):
                for member, entry in value.__members__.items():
                    found.setdefault(member, int(entry.value))
    if not found:
        raise problem or ImportError("it has no constants")
    return found, form


def _reason(error: Exception) -> str:
    """Return the part of pyverbs' message that says why, on one line."""
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


def _place(package: ModuleType) -> str:
    return str(Path(package.__file__ or "?").parent)
