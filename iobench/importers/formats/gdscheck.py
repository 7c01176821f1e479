"""gdscheck -p: which ways of GPUDirect Storage a machine has, in the old grammar and the new one.

Old: " NVMe               : Unsupported" or "Supported", new: " NVMe               : c2c, nvfs, compat". What it says is
what is installed, not the way that a read takes. A failed verification of the platform outranks all of it.
"""

from __future__ import annotations

import re
from typing import Any

from iobench.importers.imported import Imported
from iobench.importers.log import Log

TITLE = "gdscheck"
STATE = True

_DRIVER = re.compile(r"^[ \t]*(NVMe P2PDMA|NVMe|NVMeOF|SCSI|ScaleFlux CSD|NVMesh|DDN EXAScaler|IBM Spectrum Scale|NFS|BeeGFS|ScaTeFS|WekaFS|Userspace RDMA|BlockDev|VAST NFS)\s*: *(\S.*?)[ \t]*$", re.MULTILINE)  # fmt: skip  # noqa: E501
_PROPERTY = re.compile(r"^[ \t]*properties\.(use_compat_mode|force_compat_mode|use_pci_p2pdma|force_odirect_mode) *: *(true|false)[ \t]*$", re.MULTILINE)  # fmt: skip  # noqa: E501
_RELEASE = re.compile(r"^[ \t]*GDS release version: *([\w.]+)", re.MULTILINE)
_PLATFORM = re.compile(r"^[ \t]*Platform verification (succeeded|error.*)$", re.MULTILINE)
_IOMMU = re.compile(r"^[ \t]*IOMMU *: *(\w+)[ \t]*$", re.MULTILINE)
_NO_OPS = {("NFS", "p2pdma")}  # the new grammar lists it, and cuFile never takes it


def recognise(head: str) -> float:
    """Tell it by the heading of its driver configuration."""
    return 0.9 if re.search(r"DRIVER CONFIGURATION:", head) and _DRIVER.search(head) else 0.0


def read(log: Log) -> Imported:
    """Return the ways as facts of the machine, each driver with a list."""
    imported = Imported()
    ways = {match[1]: _ways(match[1], match[2]) for match in _DRIVER.finditer(log.text)}
    facts: dict[str, Any] = {"ways": ways}
    for name, pattern in (("release", _RELEASE), ("iommu", _IOMMU)):
        if match := pattern.search(log.text):
            facts[name] = match[1]
    facts |= {match[1]: match[2] == "true" for match in _PROPERTY.finditer(log.text)}
    platform = _PLATFORM.search(log.text)
    facts["platform_verified"] = platform[1] == "succeeded" if platform else None
    imported.machine["gds"] = facts
    if platform and platform[1] != "succeeded":
        imported.problem(f"gdscheck: {platform[0].strip()[:160]}: GPUDirect Storage does not work here")
    if not platform:
        imported.incomplete = "gdscheck's output ends before its verification of the platform"
    if facts.get("iommu") == "enabled":
        imported.problem("gdscheck: the IOMMU is enabled, which slows or stops copies between devices")
    return imported


def _ways(driver: str, text: str) -> list[str]:
    """Return the ways of one driver: none for Unsupported, "supported" where the old grammar says no more."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if words in (["Unsupported"], ["Supported"]):
        return [] if words == ["Unsupported"] else ["supported"]
    return [word for word in words if (driver, word) not in _NO_OPS]
