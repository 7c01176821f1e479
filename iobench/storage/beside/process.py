"""The parent's side of a loader's process: starts it, times loads through it, ends it at the deadline."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from iobench.errors import IobenchError, Unavailable, WrongData
from iobench.paths import source_root
from iobench.storage.beside.loaders import Order

_LAST_WORDS = 300
_GONE_SECONDS = (
    60.0  # for a process that has closed its pipes to be gone, on a busy machine or while its core is written
)
_MODULE = "iobench.storage.beside.child"


class Beside:
    """A running loader. Every answer comes within the order's deadline, or the process is ended."""

    def __init__(self, order: Order, module: str = _MODULE) -> None:
        self._order = order
        self._read, write = os.pipe()
        self._words = tempfile.TemporaryFile()  # noqa: SIM115  closed with the process
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(source_root()), os.environ.get("PYTHONPATH", "")])}
        # The same process group: whoever ends the worker's ends this one with it.
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, str(write)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
            stderr=self._words, pass_fds=(write,), env=env,
        )  # fmt: skip
        os.close(write)
        self._buffer = b""
        self.facts: dict[str, Any] = {}

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self) -> None:
        """Hand over the order and wait until the loader is ready; Unavailable where it can't be had."""
        found = self._ask(json.dumps(dataclasses.asdict(self._order)))
        if "ready" not in found:
            raise Unavailable(found.get("unavailable") or f"{self._order.loader} does not start here")
        self.facts = found["ready"]

    def poison(self) -> None:
        """Let the loader overwrite or let go what the load before brought."""
        self._ask("poison")

    def load(self) -> float:
        """Load once; returns the seconds that the loader's process measured."""
        found = self._ask("load")
        self.facts = found.get("facts", self.facts)
        return float(found["seconds"])

    def check(self) -> None:
        """Verify what the loader holds; WrongData where it differs from the files."""
        found = self._ask("check")
        if not found.get("checked"):
            raise WrongData(f"{self._order.loader}: nothing was checked")

    def close(self) -> None:
        """End the process."""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()  # type: ignore[union-attr]
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)
        self._process.kill()
        self._process.wait()
        self._words.close()
        os.close(self._read)

    def _ask(self, line: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise IobenchError(self._ending()) from None
        found: dict[str, Any] = json.loads(self._answer())
        if "wrong" in found:
            raise WrongData(found["wrong"])
        if "error" in found:
            raise IobenchError(f"{self._order.loader}: {found['error']}")
        return found

    def _answer(self) -> bytes:
        end = time.monotonic() + self._order.deadline
        while b"\n" not in self._buffer:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self._read], [], [], left)[0]:
                self._process.kill()
                raise Unavailable(
                    f"{self._order.loader} gave no sign of life for {self._order.deadline:.0f} s: ended by its deadline"
                )
            chunk = os.read(self._read, 1 << 16)
            if not chunk:
                raise IobenchError(self._ending())
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _ending(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=_GONE_SECONDS)
        code = self._process.returncode
        how = f"killed by signal {-code}" if code and code < 0 else f"exit status {code}"
        self._words.seek(0)
        lines = self._words.read().decode(errors="replace").strip().splitlines()
        last = f" ({lines[-1].strip()[:_LAST_WORDS]})" if lines else ""
        return f"{self._order.loader}'s process ended early: {how}{last}"


@contextlib.contextmanager
def beside(order: Order, module: str = _MODULE) -> Iterator[Beside]:
    """Yield a loader that is ready; its process is ended on leaving."""
    child = Beside(order, module)
    try:
        child.start()
        yield child
    finally:
        child.close()
