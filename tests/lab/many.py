"""Runs several iobench command lines in one process: python -m lab.many 'run dram --quick' 'topology'.

Each is what a shell would run; only the interpreter's start and the imports are shared, which take longer than anything
else under emulation. Prints "exit N" after each and exits with the highest status.
"""

from __future__ import annotations

import shlex
import sys

from iobench.cli import main


def status(line: str) -> int:
    """Run one command line; return its exit status."""
    sys.argv = ["iobench", *shlex.split(line)]
    try:
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def run(lines: list[str]) -> int:
    codes = []
    for line in lines:
        codes.append(status(line))
        sys.stdout.write(f"exit {codes[-1]}\n")
        sys.stdout.flush()
    return max(codes, default=0)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
