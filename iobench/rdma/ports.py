"""RDMA ports and their GIDs as sysfs shows them, and which GID a connection is to use.

A RoCE port has several GIDs: version 1 is not routed, a link-local address reaches no other subnet, and a bonded or
virtual port shows the addresses of all its interfaces. The first of version 2 with an IPv4 address is right nearly
always; which one was taken stands in the evidence.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from iobench.errors import Unavailable
from iobench.topology.graph import Node, Topology
from iobench.topology.sysfs import Tree

_CLASS = "sys/class/infiniband"
ROCE_V2 = "RoCE v2"
_ANY = "auto"


@dataclass(frozen=True)
class Gid:
    """One entry of a port's table. ``kind`` is "RoCE v2", "IB/RoCE v1" or "" where the kernel does not say."""

    index: int
    address: str
    kind: str
    interface: str = ""

    @property
    def ip(self) -> str:
        """The IP address that a RoCE GID stands for: 10.0.0.1, fe80::1."""
        address = ipaddress.IPv6Address(self.address)
        return str(address.ipv4_mapped or address)

    @property
    def link_local(self) -> bool:
        return ipaddress.IPv6Address(self.address).is_link_local

    @property
    def rank(self) -> tuple[bool, bool, bool, int]:
        """How good an entry is, the least is the best."""
        four = ipaddress.IPv6Address(self.address).ipv4_mapped is not None
        return self.kind != ROCE_V2, self.link_local, not four, self.index

    def __str__(self) -> str:
        where = f" on {self.interface}" if self.interface else ""
        reach = "link-local" if self.link_local else "routable"
        return f"GID {self.index}{where} ({self.kind or 'of unknown kind'}, {reach})"


@dataclass(frozen=True)
class Port:
    """One port of one device."""

    device: str
    number: int
    state: str
    ethernet: bool
    gids: tuple[Gid, ...]
    interfaces: tuple[str, ...] = ()
    virtual: bool = False  # a virtual function (SR-IOV)
    software: bool = False  # soft-RoCE and the like, on an ordinary network interface

    @property
    def name(self) -> str:
        return f"{self.device}/{self.number}"

    @property
    def active(self) -> bool:
        return self.state == "ACTIVE"

    def gid(self, index: int = -1) -> Gid:
        """Return the GID at ``index``, or the best one; Unavailable where there is none."""
        if index >= 0:
            found = [gid for gid in self.gids if gid.index == index]
            if not found:
                have = ", ".join(str(gid.index) for gid in self.gids) or "none"
                raise Unavailable(f"{self.name} has no GID {index}: it has {have}")
            return found[0]
        if not self.gids:
            step = "give its network interface an IP address and set it up" if self.ethernet else "look at ibstat"
            raise Unavailable(f"{self.name} has no GID: {step}")
        return min(self.gids, key=lambda gid: gid.rank) if self.ethernet else self.gids[0]


def read(tree: Tree) -> list[Port]:
    """Return every port; what a partial listing lacks (no state, no table) is empty."""
    return [
        _port(tree, device, int(number))
        for device in tree.names(_CLASS)
        for number in tree.names(_CLASS, device, "ports")
        if number.isascii() and number.isdigit()
    ]


def choose(found: Sequence[Port], wanted: str = _ANY) -> Port:
    """Return the port that ``wanted`` names ("mlx5_0", "mlx5_0/2"), for "auto" the first active one.

    Unavailable with the states of all ports where it is not there or not active.
    """
    device, _, number = wanted.partition("/")
    mine = [
        port
        for port in found
        if wanted == _ANY or (port.device == device and (not number or str(port.number) == number))
    ]
    active = [port for port in mine if port.active]
    # a virtual function that is up is a port like others, but the machine's own come first
    if active:
        return min(active, key=lambda port: port.virtual)
    states = ", ".join(f"{port.name} is {port.state.lower() or 'in an unknown state'}" for port in found)
    if wanted == _ANY:
        raise Unavailable(f"needs an active RDMA port: {states or 'this machine has none'}")
    raise Unavailable(f"needs {wanted} as an active RDMA port: {states or 'this machine has none'}")


def usable(topology: Topology) -> list[Node]:
    """Return the graph's ports that can carry traffic, soft-RoCE among them."""
    return [port for port in topology.of("port") if port.get("state") == "ACTIVE"]


def why_none(topology: Topology) -> str:
    """Return one line that says why no port can be used."""
    ports = topology.of("port")
    states = ", ".join(f"{node.id.removeprefix('port:')} is {str(node.get('state')).lower()}" for node in ports)
    return f"needs an active RDMA port: {states}" if ports else "needs an RDMA port: this machine has none"


def _port(tree: Tree, device: str, number: int) -> Port:
    folder = f"{_CLASS}/{device}/ports/{number}"
    parent, gids = tree.text(_CLASS, device, "parent"), tuple(_gids(tree, folder))
    return Port(
        device,
        number,
        (tree.text(folder, "state") or "").rpartition(":")[2].strip(),
        tree.text(folder, "link_layer") == "Ethernet",
        gids,
        (parent,) if parent else tuple(_interfaces(tree, device, number, gids)),
        tree.real(_CLASS, device, "device/physfn") is not None,
        parent is not None,
    )


def _interfaces(tree: Tree, device: str, number: int, gids: Sequence[Gid]) -> list[str]:
    """Return the interfaces that carry a port's frames: its own one of a device of several ports, a bond's members."""
    have = tree.names(_CLASS, device, "device/net")
    own = [name for name in have if tree.number("sys/class/net", name, "dev_port") == number - 1] or have
    named = {gid.interface for gid in gids}
    members = [
        name for one in sorted(named) for name in (tree.text("sys/class/net", one, "bonding/slaves") or "").split()
    ]
    # a switch device also lists the other ends of its virtual functions: the one with the port's addresses is its own
    return members or [name for name in own if name in named] or own


def _gids(tree: Tree, folder: str) -> list[Gid]:
    found = []
    for name in sorted(tree.names(folder, "gids"), key=lambda text: (len(text), text)):
        text = tree.text(folder, "gids", name) or ""
        if not name.isdigit() or not text.replace(":", "").strip("0"):
            continue  # an empty entry
        try:
            ipaddress.IPv6Address(text)
        except ValueError:
            continue
        kind = tree.text(folder, "gid_attrs/types", name) or ""
        found.append(Gid(int(name), text, kind, tree.text(folder, "gid_attrs/ndevs", name) or ""))
    return found
