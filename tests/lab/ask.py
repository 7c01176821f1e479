"""Runs iobench command lines in the lab's guest and shows what they print: python -m lab.ask 'crosscheck rdma'.

From the folder tests, with the checkout on PYTHONPATH. For what is to be read and takes a quiet machine, as the bars
do; a figure of an emulator is compared with nothing but another of the same guest.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from lab import cli, machine, setup
from lab.vm import SHARED, Guest

_OUTPUT, _SECONDS, _LOOK_SECONDS = "asked.txt", 3600.0, 0.5


def ask(lines: list[str]) -> int:
    """Boot, run the lines in one process, print as they print; return their highest exit status."""
    cli.prepare()
    with Guest(machine.LAB) as guest:
        done = guest.run(setup.DEVICES)
        if done.code == 0:
            ended = threading.Event()
            shown = threading.Thread(target=_follow, args=(guest.shared / _OUTPUT, ended))
            shown.start()
            done = guest.run(f"{cli.script(*lines)} > {SHARED}/{_OUTPUT} 2>&1", timeout=_SECONDS)
            ended.set()
            shown.join()
        sys.stdout.write(done.err)
        return done.code


def _follow(file: Path, ended: threading.Event) -> None:
    """Print what is added to a file until ``ended``."""
    at, last = 0, False
    while not last:
        last = ended.wait(_LOOK_SECONDS)
        text = file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
        sys.stdout.write(text[at:])
        sys.stdout.flush()
        at = len(text)


if __name__ == "__main__":
    sys.exit(ask(sys.argv[1:]))
