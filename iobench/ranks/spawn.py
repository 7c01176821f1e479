"""Starts one rank's process with the pipes it is commanded by; used by the lead and by other nodes' agents."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

_LOG_NBYTES = 4096
_ROOT = str(Path(__file__).resolve().parents[2])
_BOOT = (  # iobench from the parent's own place, which must not shadow anything else: so it goes last
    "import sys; sys.path.insert(0, sys.argv[1]); from iobench.ranks.{module} import main;"
    " sys.path.append(sys.path.pop(0)); main()"
)


@dataclass
class Process:
    """One running rank and the parent's ends of its pipes."""

    popen: subprocess.Popen[bytes]
    commands: int
    answers: int
    log: IO[bytes]
    received: bytearray = field(default_factory=bytearray)

    def tail(self) -> str:
        """Return the last thing the rank printed."""
        size = os.fstat(self.log.fileno()).st_size
        return os.pread(self.log.fileno(), _LOG_NBYTES, max(0, size - _LOG_NBYTES)).decode("utf-8", "replace").strip()

    def close(self) -> None:
        """Reap the process, which has ended or is about to, and close the pipes."""
        self.popen.wait()
        os.close(self.commands)
        os.close(self.answers)
        self.log.close()


def spawn(environment: Mapping[str, str], shared_fd: int, watched: int, module: str = "child") -> Process:
    """Start Python with the main function of iobench.ranks.``module``; OSError where it can't be started.

    ``watched``: the process with whose end the rank is to end too, 0 for none.
    """
    commands_read, commands_write = os.pipe()
    answers_read, answers_write = os.pipe()
    log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
    given = (commands_read, answers_write, shared_fd)
    try:
        popen = subprocess.Popen(
            [sys.executable, "-P", "-c", _BOOT.format(module=module), _ROOT, *map(str, given), str(watched)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=given,
            env=dict(environment),
        )
    except OSError:
        os.close(commands_write)
        os.close(answers_read)
        log.close()
        raise
    finally:
        os.close(commands_read)
        os.close(answers_write)
    os.set_blocking(commands_write, False)
    return Process(popen, commands_write, answers_read, log)
