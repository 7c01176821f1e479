"""Runs nvbandwidth; what it prints is read by the importer of its logs."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence

from iobench.errors import IobenchError, UserError, WrongData
from iobench.importers.formats._nvbandwidth import NAME, WRONG, Case, parse
from iobench.units import MIB

VARIABLE = "PEER"
SOURCE = "https://github.com/NVIDIA/nvbandwidth"
_SECONDS = 300


def find() -> str:
    """Return the program: what the variable PEER names, else nvbandwidth from PATH; UserError where there is none."""
    named = os.environ.get(VARIABLE)
    found = shutil.which(named or NAME)
    if found is None:
        place = f"{VARIABLE}={named} is no program" if named else f"no {NAME} in PATH"
        raise UserError(f"{place}: build it from {SOURCE} and give its path, {VARIABLE}=/path/to/{NAME}")
    return found


def run(program: str, cases: Sequence[str], nbytes: int, samples: int = 2) -> dict[str, Case]:
    """Run ``cases`` with messages of ``nbytes`` (whole MiB) in one process; return them by name.

    A case that the program does not know has a reason. Raises WrongData where nvbandwidth's own check of the bytes
    failed, IobenchError with its words where it failed.
    """
    command = [program, "-j", "-i", str(samples), "-b", str(nbytes // MIB), "-t", *cases]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False, errors="replace")
    except subprocess.TimeoutExpired as error:
        raise IobenchError(f"{NAME} did not end within {_SECONDS} s") from error
    except OSError as error:
        raise UserError(f"{program} does not run: {error.strerror}; set {VARIABLE} to {NAME}") from error
    text = done.stdout + "\n" + done.stderr
    if WRONG in text:
        raise WrongData(f"{NAME}: {_line_with(text, WRONG)}")
    found = parse(done.stdout)
    if not any(case.matrices for case in found.values()):
        raise IobenchError(f"{NAME} gave no results (status {done.returncode}): {_last_words(text)}")
    return {name: found.get(name, Case(name, reason="not in its output")) for name in cases}


def _line_with(text: str, words: str) -> str:
    return next(line.strip() for line in text.splitlines() if words in line)


def _last_words(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip() and line.strip() not in "{}"]
    return lines[-1][:200] if lines else "it printed nothing"
