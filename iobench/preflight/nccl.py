"""What makes NCCL hang, fail or crawl: shared memory, GPUs named twice, locked memory, ACS and IOMMU, ports, names."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Iterator

from iobench.preflight.host import Finding, Host
from iobench.topology.graph import Node, Topology
from iobench.units import MIB, format_rate, format_size

SUBJECT = "nccl"
# one segment per channel and direction between neighbours: 9,637,888 bytes each (nccl#342, #290); 32 channels at most
SHM_SEGMENT_NBYTES, MOST_CHANNELS = 9_637_892, 32
_LEAST_MEMLOCK = 64 * MIB
_ACS_CAPABILITY = 0x000D
_ACS_REDIRECTS = 0b0010_1100  # request redirect, completion redirect, upstream forwarding (PCIe base spec, ACS control)
_EXTENDED = 0x100
_BRIDGE = "0x0604"
_ROCE_V2 = "RoCE v2"


def find(host: Host) -> list[Finding]:
    """Return all findings for NCCL on this host."""
    return [
        dataclasses.replace(finding, concerns=concerns)
        for check, concerns in _CHECKS.items()
        for finding in check(host)
    ]


def versions(built: str, loaded: str) -> list[Finding]:
    """Compare the version of NCCL's headers with that of the library in use: "2.27.0" and "2.23.4"."""
    if not built or not loaded or built.split(".")[:2] == loaded.split(".")[:2]:
        return []
    return [
        _finding(
            f"NCCL's headers are {built} and the library in use is {loaded}: they may not fit together; "
            "look at LD_LIBRARY_PATH for another libnccl.so.2"
        )
    ]


def shm_needed(ranks: int) -> int:
    """Return the bytes of /dev/shm that NCCL may take when all neighbours talk through shared memory."""
    return ranks * MOST_CHANNELS * SHM_SEGMENT_NBYTES


def _shared_memory(host: Host) -> Iterator[Finding]:
    ranks = len(_gpus(host.topology))
    if host.shm_free is None or ranks < 2:
        return
    needed = shm_needed(ranks)
    if host.shm_free < ranks * SHM_SEGMENT_NBYTES:
        yield _finding(
            f"/dev/shm has {format_size(host.shm_free)} left and NCCL's transport shm needs {format_size(needed)} for "
            f"{ranks} GPUs: start the container with --shm-size=1g or --ipc=host, or remove old /dev/shm/nccl-* files",
            stops=True,
        )
    elif host.shm_free < needed:
        yield _finding(
            f"/dev/shm has {format_size(host.shm_free)} left; with all {MOST_CHANNELS} channels NCCL's transport shm "
            f"takes {format_size(needed)} for {ranks} GPUs: --shm-size=1g or more makes sure"
        )
    left = [name for name in host.tree.names("dev/shm") if name.startswith("nccl-")]
    if left:
        yield _finding(f"/dev/shm holds {len(left)} files nccl-*: of a running job, or left by one that was killed")


def _visible(host: Host) -> Iterator[Finding]:
    value = host.environment.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return
    names = [name.strip() for name in value.split(",") if name.strip()]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        yield _finding(
            f"CUDA_VISIBLE_DEVICES names {', '.join(twice)} more than once: two ranks on one GPU make NCCL fail; "
            "name each GPU once",
            stops=True,
        )
    missing = [name for name in names if name.isdecimal() and int(name) >= len(_gpus(host.topology)) > 0]
    if missing:
        yield _finding(
            f"CUDA_VISIBLE_DEVICES names {', '.join(missing)}, and the machine has {len(_gpus(host.topology))} GPUs: "
            "CUDA hides all that follow a wrong number",
            stops=True,
        )


def _memlock(host: Host) -> Iterator[Finding]:
    if host.memlock is not None and host.memlock < _LEAST_MEMLOCK and _active(host.topology):
        yield _finding(
            f"this process may lock {format_size(host.memlock)} of memory, too little for RDMA: ulimit -l unlimited "
            "(in a container --ulimit memlock=-1, in systemd LimitMEMLOCK=infinity)",
            stops=True,
        )


def _iommu(host: Host) -> Iterator[Finding]:
    """A translating IOMMU sends peer-to-peer traffic through the root complex."""
    if not _gpus(host.topology) or not host.tree.names("sys/class/iommu"):
        return
    words = (host.tree.text("proc/cmdline") or "").split()
    if "iommu=pt" in words or "iommu.passthrough=1" in words:
        return
    asked = {"intel_iommu=on", "amd_iommu=on", "iommu=on", "iommu=force"} & set(words)
    if asked:
        yield _finding(
            f"the IOMMU translates ({', '.join(sorted(asked))} without iommu=pt): copies between devices take half or "
            "a tenth of the rate, or hang; boot with iommu=pt"
        )


def _acs(host: Host) -> Iterator[Finding]:
    """ACS on a bridge above a GPU or NIC redirects peer-to-peer traffic to the root complex."""
    redirecting = [
        name
        for name in host.tree.names("sys/bus/pci/devices")
        if (host.tree.text("sys/bus/pci/devices", name, "class") or "").startswith(_BRIDGE)
        and acs_control(_config(host, name)) & _ACS_REDIRECTS
    ]
    if redirecting and len(_gpus(host.topology)) + len(_active(host.topology)) > 1:
        shown = ", ".join(redirecting[:3]) + (f" and {len(redirecting) - 3} more" if len(redirecting) > 3 else "")
        yield _finding(
            f"ACS redirects peer-to-peer traffic at {len(redirecting)} PCIe bridges ({shown}): copies between GPUs and "
            "NICs go through the root complex; switch ACS off in the firmware or with setpci (ECAP_ACS+6.w=0000)"
        )


def acs_control(config: bytes) -> int:
    """Return the ACS control word of a device's configuration space; 0 where it has none or it is cut off."""
    at = _EXTENDED
    for _ in range(64):  # a damaged list may go round
        if at < _EXTENDED or at + 8 > len(config):
            return 0
        header = int.from_bytes(config[at : at + 4], "little")
        if header & 0xFFFF == _ACS_CAPABILITY:
            return int.from_bytes(config[at + 6 : at + 8], "little")
        at = header >> 20
    return 0


def _ports(host: Host) -> Iterator[Finding]:
    ports = [port for port in host.topology.of("port") if not port.get("software")]
    down = [port for port in ports if port.get("state") not in ("ACTIVE", None)]
    if ports and not _active(host.topology):
        states = ", ".join(f"{_short(port)} {_state(port)}" for port in ports)
        yield _finding(f"no RDMA port is active ({states}): look at the cable and the subnet manager", stops=True)
    elif down:
        states = ", ".join(f"{_short(port)} {_state(port)}" for port in down)
        yield _finding(f"{states}: NCCL leaves it out; NCCL_IB_HCA must not name it")
    rates = Counter(port.get("line_bytes_per_s") for port in _active(host.topology))
    if len(rates) > 1 and None not in rates:
        words = ", ".join(f"{count} at {format_rate(rate)}" for rate, count in sorted(rates.items()))
        yield _finding(f"the active ports differ in rate ({words}): every rail goes at the slowest one's pace")


def _gids(host: Host) -> Iterator[Finding]:
    """A RoCE port needs a routable GID of version 2; NCCL takes one by itself since 2.21."""
    for port in _active(host.topology):
        folder = f"sys/class/infiniband/{port.get('device')}/ports/{port.get('port')}"
        kinds = host.tree.names(folder, "gid_attrs/types")
        if port.get("link_layer") != "Ethernet" or not kinds:
            continue
        routable = [n for n in kinds if _routable(host, folder, n)]
        if not routable:
            yield _finding(
                f"{_short(port)} has no GID for RoCE v2 with an address: give its interface an IP address", stops=True
            )
            continue
        asked = host.environment.get("NCCL_IB_GID_INDEX")
        if asked is not None and asked not in routable:
            yield _finding(
                f"NCCL_IB_GID_INDEX={asked} is no RoCE v2 GID with an address on {_short(port)}: it has "
                f"{', '.join(routable)}; leave the variable out or choose one of these",
                stops=True,
            )


def _routable(host: Host, folder: str, number: str) -> bool:
    if _ROCE_V2 not in (host.tree.text(folder, "gid_attrs/types", number) or ""):
        return False
    gid = host.tree.text(folder, "gids", number) or ""
    return bool(gid.replace(":", "").strip("0")) and not gid.startswith("fe80:0000")


def _distance(host: Host) -> Iterator[Finding]:
    """A GPU whose nearest port hangs on another NUMA node reaches the network at a half or a quarter of the rate."""
    ports = _active(host.topology)
    nodes = {port.get("numa") for port in ports}
    if not ports or None in nodes:
        return
    far = [gpu.id for gpu in _gpus(host.topology) if gpu.get("numa") is not None and gpu.get("numa") not in nodes]
    if far:
        yield _finding(
            f"{', '.join(far)} {'has' if len(far) == 1 else 'have'} no RDMA port on the same NUMA node: traffic "
            "crosses the sockets' link"
        )


def _adapters(host: Host) -> Iterator[Finding]:
    yield from _trapped(host, "NCCL_IB_HCA", sorted({str(port.get("device")) for port in host.topology.of("port")}))


def _interfaces(host: Host) -> Iterator[Finding]:
    yield from _trapped(host, "NCCL_SOCKET_IFNAME", host.tree.names("sys/class/net"))


def _trapped(host: Host, variable: str, names: list[str]) -> Iterator[Finding]:
    """NCCL takes a name for a prefix unless it starts with "=" (nccl PR#236, nccl#177)."""
    value = host.environment.get(variable, "")
    if not value or value[0] in "=^":
        return
    for part in (re.sub(r":\d+$", "", part.strip()) for part in value.split(",")):
        taken = [name for name in names if name.startswith(part)] if part else []
        if part in taken and len(taken) > 1:
            others = ", ".join(name for name in taken if name != part)
            yield _finding(f"{variable}={part} also takes {others}, because it is a prefix: write {variable}=={part}")
        elif part and not taken:
            there = ", ".join(names) or "none"
            yield _finding(f"{variable}={part} names nothing here (there is {there}): NCCL would find no device", True)


def _config(host: Host, name: str) -> bytes:
    try:
        with open(host.tree.path("sys/bus/pci/devices", name, "config"), "rb") as file:
            return file.read(4096)
    except OSError:
        return b""


def _gpus(topology: Topology) -> list[Node]:
    return [node for node in topology.of("gpu") if node.get("vendor") == "NVIDIA"]


def _active(topology: Topology) -> list[Node]:
    return [port for port in topology.of("port") if port.get("state") == "ACTIVE" and not port.get("software")]


def _short(port: Node) -> str:
    return port.id.removeprefix("port:")


def _state(port: Node) -> str:
    physical = port.get("physical_state")
    return f"is {str(port.get('state') or 'in an unknown state').lower()}" + (f" ({physical})" if physical else "")


def _finding(sentence: str, stops: bool = False) -> Finding:
    return Finding(SUBJECT, sentence, stops)


_NETWORK, _PEERS = ("ib",), ("nvlink", "pcie", "ib")
_CHECKS: dict[Callable[[Host], Iterator[Finding]], tuple[str, ...]] = {
    _shared_memory: ("shm",),
    _visible: (),
    _memlock: _NETWORK,
    _iommu: _PEERS,
    _acs: _PEERS,
    _ports: _NETWORK,
    _gids: _NETWORK,
    _distance: _NETWORK,
    _adapters: _NETWORK,
    _interfaces: ("socket", "ib"),
}
