"""Captures what discovery reads of the lab in each state of its CXL memory: python -m lab.capture FOLDER.

The trees become fixtures: tests/fixtures/sysfs holds them, tests/machines.py lists them. Run it from tests/, with
the environment of ``make lab``; it takes a few minutes.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

from lab import cli, machine, setup
from lab.vm import SHARED, Guest

# name -> what is done before
STATES = {
    "lab-four-nodes-cxl-not-mapped": setup.MODULES,
    "lab-four-nodes-cxl-devdax": setup.DEVICES,
    "lab-four-nodes-cxl-system-ram": setup.SYSTEM_RAM,
    "lab-four-nodes-cxl-partly-online": setup.PARTLY,
    "lab-four-nodes-cxl-offline": setup.OFFLINE,
}


def main(folder: str) -> None:
    values = " ".join(f"{name}={shlex.quote(value)}" for name, value in cli.environment().items())
    tool = cli.CHECKOUT / "tests/capture_tree.py"
    with Guest(machine.LAB) as guest:
        for name, before in STATES.items():
            done = guest.run(f"{before}\nenv {values} {sys.executable} {tool} {SHARED}/{name}.tar.gz")
            if done.code:
                sys.exit(f"{name}: {done.text}")
            shutil.copy(guest.shared / f"{name}.tar.gz", Path(folder) / f"{name}.tar.gz")


if __name__ == "__main__":
    main(*sys.argv[1:])
