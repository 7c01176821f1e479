"""One worker process seen from its parent: start, events, the deadline, the end."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from iobench.paths import source_root
from iobench.patience import Patience
from iobench.worker import Order

TICK_SECONDS = 0.2
START_SECONDS = 60.0  # the least that a start may take: it imports large libraries, perhaps on a busy machine
_GRACE_SECONDS = 5.0
_KILLED_SECONDS = 30.0  # a killed process is gone once it gets a CPU; one that waits for a device may never be
_LAST_WORDS = 400


class Hung(Exception):
    """No event within so many seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"no sign of life for {seconds:.0f} s")


class Child:
    """A worker in a session of its own, so that it and all it starts can be ended together."""

    def __init__(self, order: Order, log: Path) -> None:
        self._log = log
        self._read, write = os.pipe()
        log.parent.mkdir(parents=True, exist_ok=True)
        self._offset = log.stat().st_size if log.exists() else 0
        with log.open("ab") as sink:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "iobench.worker", str(write)],
                stdin=subprocess.PIPE,
                stdout=sink,
                stderr=sink,
                pass_fds=(write,),
                start_new_session=True,
                env=_environment(),
            )
        os.close(write)
        self._buffer = b""
        self._closed = False
        self.tell(order.to_json())

    @property
    def session(self) -> int:
        return self.process.pid

    def events(self, deadline: float) -> Iterator[dict[str, Any] | None]:
        """Yield events as they come and None every tick without one; raise Hung after ``deadline`` s of silence."""
        allowed = max(deadline, START_SECONDS)
        silence = Patience(allowed)
        while True:
            ready, _, _ = select.select([self._read], [], [], TICK_SECONDS)
            if not ready:
                if silence.look() < 0:
                    raise Hung(allowed)
                yield None
                continue
            chunk = os.read(self._read, 1 << 20)
            if not chunk:
                self._closed = True
                return
            allowed, silence = deadline, Patience(deadline)
            self._buffer += chunk
            *lines, self._buffer = self._buffer.split(b"\n")
            yield from map(json.loads, lines)

    def tell(self, text: str = "go") -> None:
        """Send the worker a line; one that is gone already is noticed by its events."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(text.encode() + b"\n")
            self.process.stdin.flush()

    def mark(self) -> None:
        """Forget what the worker has said so far: a later death has another cause."""
        with contextlib.suppress(OSError):
            self._offset = self._log.stat().st_size

    def end(self) -> str:
        """Kill whatever is left of the session and return how the worker ended ("" when well).

        A worker that has closed its pipe is on its way out and gets time for it; any other is ended at once.
        """
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=_GRACE_SECONDS if self._closed else 0)
        for kill, patience in ((signal.SIGTERM, 1.0), (signal.SIGKILL, _KILLED_SECONDS)):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.session, kill)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=patience)
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        os.close(self._read)
        return _ending(self.process.returncode) + self._last_words()

    def _last_words(self) -> str:
        """Return the last line that the worker wrote to standard error; drop an empty log."""
        try:
            with self._log.open("rb") as log:
                log.seek(self._offset)
                text = log.read().decode(errors="replace").strip()
            if not self._log.stat().st_size:
                self._log.unlink()
        except OSError:
            return ""
        return f" ({text.splitlines()[-1][:_LAST_WORDS]})" if text and self.process.returncode else ""


def _ending(code: int | None) -> str:
    if not code:
        return ""
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-code).name}"
        return f"killed by signal {-code}"
    return f"exit status {code}"


def _environment() -> dict[str, str]:
    """Return the environment of a worker: ours, with this iobench importable and one BLAS thread."""
    env = dict(os.environ)
    inherited = [env["PYTHONPATH"]] if env.get("PYTHONPATH") else []
    env["PYTHONPATH"] = os.pathsep.join([str(source_root()), *inherited])
    env.setdefault("PYTHONUNBUFFERED", "1")
    return env
