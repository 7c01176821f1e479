"""Facts about the system: kernel, virtual machine, container, settings, Python and its packages."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

from iobench.machine import read
from iobench.machine.cpu import cpuinfo

# Whose version can change a number. Read from the packages' metadata: nothing is imported.
PACKAGES = (
    "numpy", "scipy", "numba", "llvmlite", "torch", "matplotlib", "safetensors",
    "cupy-cuda12x", "cupy-cuda13x", "kvikio-cu12", "kvikio-cu13", "nvidia-ml-py",
    "nvidia-nccl-cu12", "nvidia-nccl-cu13", "nccl4py", "pyverbs", "pandas",
)  # fmt: skip
_VIRTUAL_PRODUCTS = (
    "kvm", "qemu", "standard pc", "vmware", "virtualbox", "virtual machine", "bochs", "hvm domu", "xen",
    "google compute engine", "amazon ec2", "openstack", "firecracker", "cloud hypervisor", "parallels", "bhyve",
)  # fmt: skip


def kernel(root: Path) -> dict[str, Any]:
    """Return the kernel's release, its command line's relevant words and settings that bind us."""
    release = read.text(root / "proc/sys/kernel/osrelease")
    return read.known(
        system=platform.system() if release else None,
        release=release,
        architecture=platform.machine() if root == Path("/") else None,
        perf_event_paranoid=read.number(root / "proc/sys/kernel/perf_event_paranoid"),
        command_line=_command_line(root),
    )


def virtual(root: Path) -> dict[str, Any]:
    """Return kind "virtual", "physical" or "unknown", the product, hints of a container, and the emulator.

    An emulator executes the instructions itself (QEMU without KVM): times there say nothing of any machine.
    """
    flags = (cpuinfo(root).get("flags") or "").split()
    product = read.text(root / "sys/class/dmi/id/product_name")
    vendor = read.text(root / "sys/class/dmi/id/sys_vendor")
    named = f"{vendor or ''} {product or ''}".lower()
    if (
        "hypervisor" in flags
        or any(word in named for word in _VIRTUAL_PRODUCTS)
        or (root / "proc/device-tree/hypervisor").exists()
        or read.text(root / "sys/hypervisor/type")
    ):
        kind = "virtual"
    else:
        # x86 processors tell; on others only a product name shows that somebody looked.
        kind = "physical" if flags or product else "unknown"
    known = read.known(product=product, vendor=vendor, container=_container(root), emulator=_emulator(root))
    return {"kind": kind, **known}


def python() -> dict[str, Any]:
    """Return the interpreter's version and kind."""
    return {"version": platform.python_version(), "implementation": platform.python_implementation()}


def packages() -> dict[str, str]:
    """Return name -> version of the installed packages that can change a number."""
    found: dict[str, str] = {}
    for name in PACKAGES:
        try:
            version: str | None = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if version:  # None: damaged metadata
            found[name] = version
    return found


def tick_seconds() -> float:
    """Return the unit of /proc/stat's times in seconds, 0.01 on nearly every Linux."""
    return 1.0 / os.sysconf("SC_CLK_TCK")


_COMMAND_LINE = (
    "isolcpus", "nohz_full", "rcu_nocbs", "mitigations", "transparent_hugepage", "hugepages", "hugepagesz",
    "default_hugepagesz", "iommu", "intel_iommu", "amd_iommu", "pci", "numa_balancing", "intel_pstate",
    "amd_pstate", "idle", "processor.max_cstate", "intel_idle.max_cstate", "nosmt", "noht", "mem", "efi",
    "numa", "cgroup_disable", "swiotlb", "pcie_aspm",
)  # fmt: skip


def _emulator(root: Path) -> str | None:
    """Return "QEMU TCG" where the processor is QEMU's translator, which its model name says; None elsewhere."""
    return "QEMU TCG" if "TCG" in (cpuinfo(root).get("model name") or "") else None


def _command_line(root: Path) -> list[str]:
    """The words that change a measurement; the rest may name disks, hosts and addresses."""
    words = (read.text(root / "proc/cmdline") or "").split()
    return [word for word in words if word.partition("=")[0] in _COMMAND_LINE]


def _container(root: Path) -> list[str]:
    mounts = [line.split() for line in read.lines(root / "proc/self/mounts")]
    overlay = any(len(words) > 2 and words[1] == "/" and words[2] == "overlay" for words in mounts)
    marks = {".dockerenv": "docker", "run/.containerenv": "podman", "singularity": "singularity"}
    hints = [name for file, name in marks.items() if (root / file).exists()]
    return hints + (["overlay root"] if overlay else [])
