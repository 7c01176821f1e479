"""Where bytes lay and which CPUs moved them: read back after the fact, as proof and for the limit."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from iobench.hostmem import Pages
from iobench.record import Leg
from iobench.topology.graph import Node, Topology
from iobench.units import format_size


@dataclass(frozen=True)
class Placement:
    """Threads on ``cpus``, each with its slice's NUMA node -> pages in ``places`` (None: not told).

    ``affinity`` is what each thread read back; ``wanted`` the kind of pages that was asked for.
    """

    topology: Topology
    cpus: Sequence[int]
    affinity: Sequence[Sequence[int]]
    pages: Pages
    places: Sequence[Counter[int] | None]
    wanted: str

    @property
    def pinned(self) -> bool:
        return [list(cpus) for cpus in self.affinity] == [[cpu] for cpu in self.cpus]

    @property
    def proven(self) -> bool:
        """True only where threads, page size and nodes were all read back and are as asked."""
        return self.pinned and self.pages.kind() == self.wanted and None not in self.places

    @property
    def path(self) -> str:
        known = sorted({node for place in self.places for node in place or ()})
        nodes = ",".join(map(str, known)) if known and None not in self.places else "unknown"
        cpus = ",".join(map(str, self.cpus))
        return f"memory of node {nodes}, {format_size(self.pages.page_nbytes)} pages, CPU {cpus}"

    @property
    def evidence(self) -> dict[str, Any]:
        nodes = sum((place for place in self.places if place), Counter[int]())
        return {
            "cpus": list(self.cpus),
            "pinned": self.pinned,
            "pages": self.pages.evidence(),
            "pages_on_node": {str(node): count for node, count in sorted(nodes.items())},
        }

    def legs(self, moved: int, working_set: int) -> list[Leg]:
        """Return the cores' way to their first caches, and the memory's where the caches can't hold it all.

        The memory's share of ``moved`` is the least that must have crossed it: the working set less what
        all caches together can keep from one pass to the next. Lines that plain stores fetch are left
        out, because some CPUs write whole lines without fetching them.
        """
        caches = self._caches()
        first = min((c for c in caches if self.cpus[0] in c.get("cpus", ())), key=_level, default=None)
        legs = [Leg(first.id, f"cpu:{self.cpus[0]}", len(self.cpus), moved)] if first else []
        missed = 1 - sum(int(cache.get("nbytes")) for cache in caches) / working_set
        if not caches or missed <= 0 or None in self.places:
            return legs
        memory = [Leg(f"mem:{node}", f"cpu:{cpu}", 1, int(moved * missed * part)) for node, cpu, part in self._shares()]
        return legs + memory

    def _caches(self) -> list[Node]:
        """Return the caches with data that any of the CPUs can fill."""
        caches = [
            node for node in self.topology.of("cache") if node.get("nbytes") and node.get("type") != "Instruction"
        ]
        return [cache for cache in caches if set(cache.get("cpus", ())) & set(self.cpus)]

    def _shares(self) -> Iterator[tuple[int, int, float]]:
        """Yield each memory node, the first CPU that uses it and its part of the bytes."""
        parts: dict[int, float] = {}
        users: dict[int, int] = {}
        for cpu, place in zip(self.cpus, self.places, strict=True):
            for node, count in (place or {}).items():
                parts[node] = parts.get(node, 0.0) + count / sum((place or {}).values()) / len(self.places)
                users.setdefault(node, cpu)
        yield from ((node, users[node], part) for node, part in parts.items())


def _level(cache: Node) -> float:
    return float(cache.get("level", math.inf))
