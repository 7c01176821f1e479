"""Emulated hardware: what works there works, but its times are an emulator's and say nothing of any machine."""

from __future__ import annotations

from typing import Any

from iobench.record import Record, Run
from iobench.topology.graph import Node, Topology

# PCI vendor and device of what exists only in QEMU. Virtio is not among them: it is how real clouds attach disks.
DEVICES = {
    ("0x1b36", "0x0010"): "QEMU's NVMe disk",
    ("0x8086", "0x5845"): "QEMU's NVMe disk",
    ("0x8086", "0x0d93"): "QEMU's CXL memory device",
}


def emulator_of(run: Run) -> str:
    """Return what executes the instructions of an emulated machine ("QEMU TCG"), "" for a real or virtual one."""
    virtual = run.header.machine.get("virtual")
    found = virtual.get("emulator") if isinstance(virtual, dict) else None
    return found if isinstance(found, str) else ""


def emulated(record: Record, topology: Topology | None, emulator: str) -> str:
    """Return the sentence for a record that an emulator made or whose bytes went through an emulated device."""
    if not emulator and not record.first.legs:
        return ""
    device = f"this machine's processor is an emulator ({emulator})" if emulator else _device(record, topology)
    if not device:
        return ""
    return f"emulated: no performance; {device}: that the path works and the data is right is all it shows"


def _device(record: Record, topology: Topology | None) -> str:
    for leg in record.first.legs if topology else ():
        path = topology.path(leg.src, leg.dst) if topology else None
        ends = {end for link in path.links for end in (link.a, link.b)} if path else {leg.src, leg.dst}
        for node in (topology.nodes.get(end) for end in sorted(ends)) if topology else ():
            name = DEVICES.get(_ids(node)) if node else None
            if node and name:
                return f"{node.id} is {name}"
    return ""


def _ids(node: Node) -> tuple[Any, Any]:
    return node.get("vendor"), node.get("device")
