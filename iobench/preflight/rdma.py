"""What keeps verbs from an RDMA port: device files, pyverbs, addresses, lanes that are missing, locked memory."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator

from iobench.preflight.host import Finding, Host
from iobench.rdma import ports
from iobench.topology.graph import Node
from iobench.units import MIB, format_rate, format_size

SUBJECT = "rdma"
_DEVICES = "dev/infiniband"
_LEAST_MEMLOCK = 64 * MIB
_FULL_LANES = 4
_RATE = re.compile(r"([0-9.]+) Gb/sec \(([0-9]+)X")


def find(host: Host) -> list[Finding]:
    """Return all findings; none where the machine has no RDMA device."""
    if not host.topology.of("port"):
        return []
    checks = (_device_files, _pyverbs, _addresses, _lanes, _slot, _memlock)
    return [finding for check in checks for finding in check(host)]


def _device_files(host: Host) -> Iterator[Finding]:
    """A container sees the devices in sysfs and may still have no way to open them."""
    names = [name for name in host.tree.names(_DEVICES) if name.startswith("uverbs")]
    if not names:
        yield _finding(
            "the machine has RDMA ports and no /dev/infiniband/uverbs*: modprobe ib_uverbs; in a container give "
            "--device=/dev/infiniband",
            stops=True,
        )
    elif host.tree.live and not any(os.access(f"/{_DEVICES}/{name}", os.R_OK | os.W_OK) for name in names):
        yield _finding(
            "/dev/infiniband/uverbs* may not be opened by this user: add it to the group rdma, or run as root",
            stops=True,
        )


def _pyverbs(host: Host) -> Iterator[Finding]:
    from iobench.rdma import verbs

    if host.tree.live and importlib.util.find_spec(verbs.NAME) is None and not verbs.places():
        yield _finding(f"this Python has no pyverbs: {verbs.INSTALL}", stops=True)


def _addresses(host: Host) -> Iterator[Finding]:
    """An Ethernet port that is up needs an address before anything can be sent to it."""
    for port in ports.read(host.tree):
        if not port.active or not port.ethernet:
            continue
        if not port.gids:
            yield _finding(f"{port.name} has no GID: give its network interface an IP address", stops=True)
        elif port.gid().kind and port.gid().kind != ports.ROCE_V2:
            yield _finding(f"{port.name} has GIDs of RoCE v1 only: they are not routed; give its interface an address")
        elif port.gid().link_local:
            yield _finding(
                f"{port.name} has link-local GIDs only: they reach one subnet; give its interface an address"
            )


def _lanes(host: Host) -> Iterator[Finding]:
    """A cable or transceiver with fewer lanes than the others' is most often damaged."""
    found: dict[str, tuple[float, int]] = {}
    for port in ports.read(host.tree):
        match = _RATE.match(
            host.tree.text("sys/class/infiniband", port.device, "ports", str(port.number), "rate") or ""
        )
        if match and port.active:
            found[port.name] = float(match[1]), int(match[2])
    most = max((lanes for _, lanes in found.values()), default=0)
    for name, (rate, lanes) in found.items():
        if lanes < min(most, _FULL_LANES):
            yield _finding(f"{name} runs on {lanes} of {most} lanes ({rate:g} Gb/s): look at its cable and both ends")


def _slot(host: Host) -> Iterator[Finding]:
    """A port that is faster than its slot can never show its rate."""
    for port in host.topology.of("port"):
        line, slot = port.get("line_bytes_per_s"), _slot_rate(host, port)
        if line and slot and slot < line:
            yield _finding(
                f"{port.id.removeprefix('port:')} sends {format_rate(line)} and its PCIe link carries "
                f"{format_rate(slot)}: the slot is the limit; look whether it has all lanes and the newest generation"
            )


def _slot_rate(host: Host, port: Node) -> float | None:
    link = next((link for there, link in host.topology.neighbours(str(port.get("pci"))) if link.kind == "pcie"), None)
    return link.bytes_per_s if link else None


def _memlock(host: Host) -> Iterator[Finding]:
    if host.memlock is not None and host.memlock < _LEAST_MEMLOCK and ports.usable(host.topology):
        yield _finding(
            f"this process may lock {format_size(host.memlock)} of memory, and a buffer must be locked whole: "
            "ulimit -l unlimited (container: --ulimit memlock=-1)"
        )


def _finding(sentence: str, stops: bool = False) -> Finding:
    return Finding(SUBJECT, sentence, stops, ("rdma",))
