"""cufile.log: what cuFile said of the way that it took. One line of compatibility mode outranks every label "GDS".

Reasons are told from the lines: no udev entry for the file's device (major 0: overlay, tmpfs or another file system
without a device), drives that nvidia-fs was not patched for, a BAR1 too small for the buffers. numa_node:-1 is unknown.
"""

from __future__ import annotations

import re
from typing import Any

from iobench.importers.imported import Imported
from iobench.importers.log import Log
from iobench.units import format_size

TITLE = "cuFile's log"
STATE = True

_LINE = re.compile(r"\b(?:NOTICE|ERROR|WARN|INFO|DEBUG|TRACE) +cufio[\w-]{0,20}: ?\d{1,6} ")
_COMPAT = re.compile(r"running in compatib(?:le|ility) mode", re.IGNORECASE)
_UDEV = re.compile(r"error creating udev_device for block device dev_no: *(\d{1,9}):(\d{1,9})")
_BAR1 = re.compile(r"Inc-bar-usage failed: size (\d{1,18}) remaining bytes (\d{1,18})")
_NUMA = re.compile(r"numa_node: ?(-?\d{1,4})\b")
_JOURNAL = re.compile(r"ext4_journal_mode: ?(\w{1,20})")
_NOT_REGISTERED = "NVMe Driver not registered with nvidia-fs"
_VOLUME = "--volume /run/udev:/run/udev:ro"
_MOST = 1 << 24  # characters; cuFile writes a line per failed call


def recognise(head: str) -> float:
    """Tell it by the words before a message: its level, its source file and line."""
    lines = "cufio" in head and _LINE.search(head)
    return 0.7 if lines or ("Inc-bar-usage" in head and _BAR1.search(head)) else 0.0


def read(log: Log) -> Imported:
    """Return path and reasons as facts of the machine, each reason with what to do."""
    imported, text = Imported(), log.text[:_MOST]
    facts: dict[str, Any] = {}
    reasons = [*_udev(text), *_drives(text)]
    if _COMPAT.search(text) or reasons:
        facts["path"] = "compat"
        imported.problem("cuFile ran in compatibility mode: what was measured beside this log is no GPUDirect Storage")
    for name, sentence in reasons:
        facts.setdefault("reasons", []).append(name)
        imported.problem(sentence)
    facts |= _bar1(text, imported)
    if numa := _NUMA.search(text):
        facts["numa"] = int(numa[1]) if int(numa[1]) >= 0 else None
    if journal := _JOURNAL.search(text):
        facts["ext4_journal"] = journal[1]
    imported.machine["cufile"] = facts
    return imported


def _udev(text: str) -> list[tuple[str, str]]:
    found = _UDEV.search(text)
    if not found:
        return []
    device = f"{found[1]}:{found[2]}"
    if found[1] != "0":
        return [("udev", f"udev does not know device {device}: start the container with {_VOLUME}")]
    why = f"the file lies on device {device}, which no drive has (overlay, tmpfs or a network file system)"
    return [("overlay", f"{why}: mount the drive's own file system into the container")]


def _drives(text: str) -> list[tuple[str, str]]:
    if _NOT_REGISTERED not in text:
        return []
    remedy = "install the patched one (MLNX_OFED or DOCA with NVMe), or use PCI P2PDMA (properties.use_pci_p2pdma)"
    return [("nvme not patched", f"the NVMe driver is not registered with nvidia-fs: {remedy}")]


def _bar1(text: str, imported: Imported) -> dict[str, Any]:
    found = _BAR1.search(text)
    if not found:
        return {}
    wanted, left = int(found[1]), int(found[2])
    imported.problem(
        f"a buffer of {format_size(wanted)} does not fit into the {format_size(left)} that are left of the GPU's BAR1: "
        "register fewer or smaller buffers"
    )
    return {"bar1_wanted_bytes": wanted, "bar1_free_bytes": left}
