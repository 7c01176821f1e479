"""The machine as one graph: nodes, links with limits, and the bottleneck between two nodes.

Node ids and kinds (the attribute names that other modules rely on stand in brackets):
``machine`` · ``socket:0`` [vendor, family, model, model_name] · ``numa:0`` [cpus, has_cpu, has_memory,
memory_bytes] · ``mem:0`` (the memory of NUMA node 0) · ``cpu:3`` [numa, socket, allowed] ·
``cache:L3:0`` [level, type, nbytes, cpus, line_nbytes] · ``pci:0000:00:02.0`` · ``gpu:0`` · ``nic:eth0`` ·
``port:mlx5_0/1`` · ``block:vda`` [mounts] · ``mount:/path`` [fstype, block] · ``cxl:mem0`` · ``dax:dax0.0`` ·
``vram:0`` (the memory of gpu:0) · ``nvswitch:0`` (all NVLink switches together) · ``net:lo`` (the loopback).
A missing attribute means unknown; unknown is never written as 0.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

SCHEMA = 1


@dataclass(frozen=True)
class Node:
    """One thing in the machine."""

    id: str
    kind: str
    attrs: dict[str, Any] = field(default_factory=dict)

    def get(self, name: str, default: Any = None) -> Any:
        return self.attrs.get(name, default)


@dataclass(frozen=True)
class Link:
    """What joins two nodes. ``bytes_per_s`` is the physical limit, None where unknown.

    ``duplex`` True: the limit holds in each direction by itself; False: for both together.
    ``source`` says where the limit comes from (a row of topologies/limits.toml, sysfs, NVML).
    """

    a: str
    b: str
    kind: str
    bytes_per_s: float | None = None
    duplex: bool = True
    source: str = ""
    attrs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Path:
    """The way from one node to another: its links in order."""

    src: str
    dst: str
    links: tuple[Link, ...]

    @property
    def bottleneck(self) -> Link | None:
        """The link with the lowest known limit, None where no limit on the way is known."""
        known = [link for link in self.links if link.bytes_per_s is not None]
        return min(known, key=lambda link: link.bytes_per_s or 0.0) if known else None

    @property
    def bytes_per_s(self) -> float | None:
        """The bottleneck's limit: an upper bound even where other links' limits are unknown."""
        link = self.bottleneck
        return link.bytes_per_s if link else None

    @property
    def complete(self) -> bool:
        """True where every link's limit is known."""
        return all(link.bytes_per_s is not None for link in self.links)


class Topology:
    """A machine's nodes and links."""

    def __init__(self, name: str = "", facts: dict[str, Any] | None = None) -> None:
        self.name = name
        self.facts: dict[str, Any] = facts or {}
        self.nodes: dict[str, Node] = {}
        self.links: list[Link] = []

    def add(self, id: str, kind: str, **attrs: Any) -> Node:
        """Add a node, or merge known attributes into the one that is there; unknown (None) is left out."""
        known = {name: value for name, value in attrs.items() if value is not None}
        old = self.nodes.get(id)
        node = Node(id, kind, {**(old.attrs if old else {}), **known})
        self.nodes[id] = node
        return node

    def link(self, a: str, b: str, kind: str, bytes_per_s: float | None = None, **more: Any) -> Link:
        """Join two nodes that are in the graph already."""
        for end in (a, b):
            if end not in self.nodes:
                raise KeyError(f"link {a} - {b}: no node {end}")
        link = Link(a, b, kind, bytes_per_s, **more)
        self.links.append(link)
        return link

    def of(self, kind: str) -> list[Node]:
        """Return the nodes of one kind in the order they were added."""
        return [node for node in self.nodes.values() if node.kind == kind]

    def node(self, id: str) -> Node | None:
        return self.nodes.get(id)

    def neighbours(self, id: str) -> Iterator[tuple[str, Link]]:
        for link in self.links:
            if link.a == id:
                yield link.b, link
            elif link.b == id:
                yield link.a, link

    def path(self, src: str, dst: str) -> Path | None:
        """Return the way with the fewest links from ``src`` to ``dst``, the widest among equals.

        None where there is none or one of the two is not in the graph.
        """
        if src not in self.nodes or dst not in self.nodes:
            return None
        adjacent: dict[str, list[tuple[str, Link]]] = {}
        for link in self.links:
            adjacent.setdefault(link.a, []).append((link.b, link))
            adjacent.setdefault(link.b, []).append((link.a, link))
        queue: list[tuple[int, float, int, str, tuple[Link, ...]]] = [(0, 0.0, 0, src, ())]
        seen: set[str] = set()
        ticket = 0
        while queue:
            hops, narrow, _, here, links = heapq.heappop(queue)
            if here == dst:
                return Path(src, dst, links)
            if here in seen:
                continue
            seen.add(here)
            for there, link in adjacent.get(here, ()):
                ticket += 1
                # -limit of the narrowest link so far: wider ways come first among equally long ones
                width = max(narrow if links else float("-inf"), -(link.bytes_per_s or float("inf")))
                heapq.heappush(queue, (hops + 1, width, ticket, there, (*links, link)))
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "schema": SCHEMA,
            "name": self.name,
            "facts": self.facts,
            "nodes": [asdict(node) for node in self.nodes.values()],
            "links": [asdict(link) for link in self.links],
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Topology:
        """Rebuild a graph from ``to_dict``'s data; ValueError where it is not such data."""
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            raise ValueError(f"not a topology of schema {SCHEMA}")
        graph = cls(data.get("name", ""), data.get("facts"))
        try:
            for node in data["nodes"]:
                graph.nodes[node["id"]] = Node(**node)
            graph.links = [Link(**link) for link in data["links"]]
        except (KeyError, TypeError) as error:
            raise ValueError(f"damaged topology: {error}") from error
        return graph
