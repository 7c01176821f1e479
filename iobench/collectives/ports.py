"""What the network ports of this node sent meanwhile: the proof of InfiniBand and RoCE, and which rails took part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from iobench.topology.sysfs import Tree
from iobench.units import format_size

if TYPE_CHECKING:
    from iobench.topology.graph import Topology

_WORD = 4  # port_xmit_data counts words of four bytes (InfiniBand, PortXmitData)
_IDLE = 0.01  # a port that sent less than this part of the most is no rail


@dataclass(frozen=True)
class Sent:
    """Bytes that each active port sent since some moment of the past."""

    by_port: Mapping[str, int]

    def since(self, before: Sent) -> Sent:
        """Return what came on top of ``before``."""
        return Sent({name: count - before.by_port.get(name, 0) for name, count in self.by_port.items()})

    @property
    def rails(self) -> list[str]:
        """The ports that carried the traffic."""
        most = max(self.by_port.values(), default=0)
        return [name for name, count in self.by_port.items() if count > _IDLE * most]


def read(topology: Topology, tree: Tree | None = None) -> Sent:
    """Return the counters of this node's active ports; a port without one is left out."""
    tree, found = tree or Tree(), {}
    for port in topology.of("port"):
        device, number = str(port.get("device", "")), port.get("port")
        if port.get("state") != "ACTIVE" or not device or number is None:
            continue
        words = tree.number("sys/class/infiniband", device, "ports", str(number), "counters", "port_xmit_data")
        if words is not None:
            found[f"{device}/{number}"] = words * _WORD
    return Sent(found)


def proof(sent: Sent, least: int, provable: int) -> tuple[str, bool]:
    """Return what the counters say in words, and whether they agree that ``least`` bytes left this node."""
    if not sent.by_port or least < provable:
        return "", True
    total = sum(sent.by_port.values())
    if total < least / 2:
        return f"ports not proven: their counters show {format_size(total)} of {format_size(least)}", False
    rails = sent.rails
    return f"{len(rails)} rail{'s' if len(rails) > 1 else ''} ({', '.join(rails)}) sent {format_size(total)}", True
