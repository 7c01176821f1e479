"""What keeps reads of files from going straight into GPU memory: libraries, modules, mounts, BAR1, distance.

Nothing here says that GPUDirect Storage works: only the counters of a run do (storage/cufile.py). ``about`` judges the
folder that files lie in; ``find`` the machine, and the folder this process runs in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from iobench.preflight.host import Finding, Host
from iobench.storage.cufile import STATS, parse_nvfs
from iobench.topology.graph import Node
from iobench.topology.mounts import Mount, table
from iobench.units import format_size

SUBJECT = "gds"
_CUFILE_JSON, _JSON_VARIABLE = "etc/cufile.json", "CUFILE_ENV_PATH_JSON"
_LIBRARIES = (
    "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/local/lib",
    "usr/local/cuda/targets/x86_64-linux/lib", "usr/local/cuda/targets/sbsa-linux/lib", "usr/local/cuda/lib64",
)  # fmt: skip
_IN_MEMORY = {"tmpfs", "ramfs", "hugetlbfs"}
_TAKEN = {"ext4", "xfs"}  # local filesystems that nvidia-fs takes (GPUDirect Storage overview, "supported filesystems")
_NETWORK = {"nfs", "nfs4", "lustre", "gpfs", "wekafs", "beegfs", "scatefs"}  # with RDMA of their own
_ORDERED = re.compile(r"\bdata=(journal|writeback)\b")
_BAR1 = 1  # its place in a GPU's resource file: BAR0 holds the registers, in 32 bits


def find(host: Host) -> list[Finding]:
    """Return all findings for GPUDirect Storage; none on a machine without NVIDIA GPUs."""
    if not _gpus(host):
        return []
    where = str(Path.cwd()) if host.tree.live else "/"
    return [*(finding for check in _CHECKS for finding in check(host)), *about(host, where)]


def about(host: Host, folder: str | Path) -> list[Finding]:
    """Return what keeps files in ``folder`` from being read straight into GPU memory."""
    mount = mount_of(host, folder)
    if mount is None:
        return []
    return [*map(_finding, _filesystem(mount, str(folder))), *_device(host, mount)]


def about_file(host: Host, file: Path) -> list[Finding]:
    """Return what keeps this file on the running machine from it: its folder, and whether O_DIRECT takes it."""
    from iobench.storage.filesystem import direct_access

    real = file.resolve()
    access = direct_access(real)
    refused = [_finding(f"{file.name}: {access.reason}, and cuFile needs O_DIRECT")] if access.reason else []
    return [*about(host, real.parent), *refused]


def mount_of(host: Host, folder: str | Path) -> Mount | None:
    """Return the mount that a folder is below: the longest, the last where several are stacked."""
    text, best = str(folder), None
    for mount in table(host.tree):
        inside = text == mount.point or text.startswith(mount.point.rstrip("/") + "/")
        if inside and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def p2pdma_lacks(host: Host) -> list[str]:
    """Return what P2PDMA (CUDA 12.8 and later, no nvidia-fs needed) still lacks here; none where all is set.

    It needs two settings of cuFile and one of the driver, and only works with all of them.
    """
    path = host.environment.get(_JSON_VARIABLE, _CUFILE_JSON).lstrip("/")
    settings = _settings(host.tree.text(path) or "")
    lacks = [name for name in ("properties.use_pci_p2pdma", "block.nvme.use_pci_p2pdma") if name not in settings]
    if "RMForceStaticBar1=1" not in (host.tree.text("proc/driver/nvidia/params") or "").replace(" ", ""):
        lacks.append("NVreg_RegistryDwords=RMForceStaticBar1=1")
    return lacks


def _settings(text: str) -> set[str]:
    """Return the full names of use_pci_p2pdma settings that are true; the file is JSON with comments."""
    found: set[str] = set()
    path: list[str] = []
    bare = re.sub(r"//[^\n]*", "", text)
    for match in re.finditer(r'"([\w.]+)"\s*:\s*(\{|[^,{}\[\]\s]+)|([{}])', bare):
        name, value, brace = match.groups()
        if brace == "}":
            path = path[:-1]
        elif brace == "{":
            path.append("")
        elif value == "{":
            path.append(name)
        elif name == "use_pci_p2pdma" and value.strip('"').lower() == "true":
            found.add(".".join([*filter(None, path), name]))
    return found


def _wsl(host: Host) -> Iterator[Finding]:
    if "icrosoft" in (host.tree.text("proc/sys/kernel/osrelease") or ""):
        yield _finding(
            "this is WSL, where GPUDirect Storage does not exist: files are read through host memory; "
            "measure on Linux itself for anything else"
        )


def _udev(host: Host) -> Iterator[Finding]:
    """Without udev's database cuFile can't tell which device holds a file (kvikio#283)."""
    if not host.tree.names("run/udev") and not Path(host.tree.path("run/udev")).is_dir():
        yield _finding(
            "/run/udev is not there, so cuFile does not find the drive behind a file and kvikio reads by POSIX: "
            "start the container with --volume /run/udev:/run/udev:ro"
        )


def _library(host: Host) -> Iterator[Finding]:
    if any(name.startswith("libcufile.so") for folder in _LIBRARIES for name in host.tree.names(folder)):
        return
    if host.tree.live and _wheel():
        return
    yield _finding(
        "libcufile is not installed, so kvikio reads by POSIX: pip install nvidia-cufile (or the CUDA toolkit)"
    )


def _wheel() -> bool:
    """Whether a Python package brings libcufile; which one is loaded in the end is recorded with every run."""
    from importlib import metadata

    names = {(found.metadata["Name"] or "").lower() for found in metadata.distributions()}
    return any(name.startswith("nvidia-cufile") for name in names)


def _modules(host: Host) -> Iterator[Finding]:
    stats = host.tree.text(STATS)
    if stats is not None:
        if not parse_nvfs(stats).counting:
            yield _finding(
                "nvidia-fs is loaded and counts no reads, so nothing can prove that a read went through it: "
                "echo 1 > /sys/module/nvidia_fs/parameters/rw_stats_enabled (as root)"
            )
        return
    lacks = p2pdma_lacks(host)
    if lacks:
        yield _finding(
            "nvidia-fs is not loaded, so cuFile reads by POSIX (compat): modprobe nvidia-fs (package nvidia-fs-dkms), "
            f"or with CUDA 12.8 and later set up P2PDMA, which lacks {', '.join(lacks)}"
        )


def _bar1(host: Host) -> Iterator[Finding]:
    """Registering a buffer takes as much of BAR1 (gds-nvidia-fs#4)."""
    for gpu in _gpus(host):
        nbytes, memory = bar1_nbytes(host, str(gpu.get("address"))), gpu.get("memory_bytes")
        if nbytes and memory and nbytes < memory / 2:
            yield _finding(
                f"{gpu.id} shows {format_size(nbytes)} of its {format_size(memory)} through BAR1: larger buffers can't "
                "be registered (cuFile error 5016); switch Resizable BAR on in the firmware, or read in smaller buffers"
            )


def bar1_nbytes(host: Host, address: str) -> int | None:
    """Return the size of a GPU's BAR1 by its PCI address, None where sysfs doesn't tell."""
    lines = (host.tree.text("sys/bus/pci/devices", address, "resource") or "").splitlines()
    if len(lines) <= _BAR1:
        return None
    try:
        first, last, _ = (int(word, 16) for word in lines[_BAR1].split())
    except ValueError:
        return None
    return last - first + 1 if last > first else None


def _distance(host: Host) -> Iterator[Finding]:
    """A drive on another NUMA node than every GPU; -1 in sysfs is unknown and says nothing."""
    nodes = {gpu.get("numa") for gpu in _gpus(host)}
    if None in nodes:
        return
    far = [
        block.id.removeprefix("block:")
        for block in host.topology.of("block")
        if block.get("numa") is not None and block.get("type") == "disk" and block.get("numa") not in nodes
    ]
    if far:
        yield _finding(
            f"{', '.join(far)} hang{'s' if len(far) == 1 else ''} on another NUMA node than every GPU: reads cross the "
            "sockets' link; put the checkpoint on a drive nearer to them"
        )


def _filesystem(mount: Mount, folder: str) -> Iterator[str]:
    kind = mount.fstype
    if kind in _IN_MEMORY:
        yield f"{folder} is on {kind}, in memory: no storage is read there; choose a folder on a drive"
    elif kind == "overlay":
        yield (
            f"{folder} is on overlay, whose files have no device that cuFile could find (compat): mount the drive's "
            "own folder into the container"
        )
    elif kind in _NETWORK:
        yield (
            f"{folder} is on {kind}: only with RDMA set up for it cuFile reads straight into GPU memory, and the "
            "server's cache stays warm; see what gdscheck -p says of it"
        )
    elif kind not in _TAKEN:
        yield f"{folder} is on {kind}, which nvidia-fs does not take (compat): use ext4 or XFS on NVMe"
    if kind == "ext4" and (found := _ORDERED.search(mount.options)):
        yield f"{folder} is mounted with data={found[1]}, and nvidia-fs needs data=ordered: remount it so"


def _device(host: Host, mount: Mount) -> Iterator[Finding]:
    """Say what kind of device is below a mount, where cuFile may not take it."""
    block = next((node for node in host.topology.of("block") if mount.point in (node.get("mounts") or ())), None)
    if block is None or mount.fstype not in _TAKEN:
        return
    name, kind = block.id.removeprefix("block:"), block.get("type")
    if kind in ("device mapper", "loop", "memory", "network"):
        yield _finding(
            f"{mount.point} lies on {name}, a {kind} device: cuFile takes NVMe and RAID 0 or 1 of it, and reads others "
            "by POSIX (compat); use a partition of the drive itself"
        )
    elif not name.startswith(("nvme", "md")):
        yield _finding(f"{mount.point} lies on {name}, no NVMe drive: cuFile reads it by POSIX (compat)")


def _gpus(host: Host) -> list[Node]:
    return [node for node in host.topology.of("gpu") if node.get("vendor") == "NVIDIA"]


def _finding(sentence: str) -> Finding:
    return Finding(SUBJECT, sentence, concerns=(SUBJECT,))


_CHECKS: tuple[Callable[[Host], Iterator[Finding]], ...] = (_wsl, _udev, _library, _modules, _bar1, _distance)
