"""What the lab needs of the system, and the command that installs what is missing."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

# package -> a program or file that shows it is there
PACKAGES = {
    "qemu-system-x86": "qemu-system-x86_64",
    "busybox-static": "/bin/busybox",
    "kmod": "modprobe",
    "cpio": "cpio",
    "ndctl": "ndctl",
    "daxctl": "daxctl",
    "iproute2": "ip",
    "e2fsprogs": "mkfs.ext4",
    "util-linux": "setpriv",
    "numactl": "numactl",
    "rdma-core": "/usr/lib/udev/rules.d/60-rdma-ndd.rules",
    "ibverbs-providers": "/etc/libibverbs.d",
    "ibverbs-utils": "ibv_devices",
    "python3-pyverbs": "/usr/lib/python3/dist-packages/pyverbs",
    "perftest": "ib_write_lat",
}
SYSTEM_FOLDERS = ":/usr/local/sbin:/usr/sbin:/sbin"
INSTALL = "apt-get install -y --no-install-recommends " + " ".join(PACKAGES)


def program(name: str) -> str | None:
    """Return where a program is; the folders of system programs count, whatever the user's PATH says."""
    return shutil.which(name, path=os.environ.get("PATH", os.defpath) + SYSTEM_FOLDERS)


def missing() -> list[str]:
    """Return the packages that are not installed here."""
    return [
        name for name, mark in PACKAGES.items() if not (Path(mark).exists() if mark.startswith("/") else program(mark))
    ]


def why_not() -> str:
    """Return "" where the lab can run, else one sentence with the command that installs what it needs."""
    if not program("apt-get") or not program("dpkg-deb"):
        return "the lab needs Debian's packages (apt-get, dpkg-deb): run make lab on Debian or in a Debian container"
    lacking = missing()
    return f"the lab needs {', '.join(lacking)}: {INSTALL}" if lacking else ""


if __name__ == "__main__":
    sys.stdout.write(INSTALL + "\n")
