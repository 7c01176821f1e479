"""The ways that the bytes of a point took, for its limit: reads come in, writes go out, each by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from iobench.record import Leg
from iobench.topology.graph import Topology


def legs(
    topology: Topology, shares: Mapping[str, float], cpus: Sequence[int], read: int, written: int, working_set: int
) -> list[Leg]:
    """Return a leg per memory and direction, with the least that must have crossed it.

    That is the working set less what all caches together can keep from one pass to the next. CXL links are full
    duplex: a mix may rightly exceed what one direction can do, so the directions are never added up here.
    """
    missed = 1 - _caches(topology, cpus) / working_set
    if missed <= 0:
        return []
    cpu = f"cpu:{cpus[0]}"
    found = [Leg(memory, cpu, 1, int(read * missed * part)) for memory, part in shares.items()]
    found += [Leg(cpu, memory, 1, int(written * missed * part)) for memory, part in shares.items()]
    return [leg for leg in found if leg.moved]


def _caches(topology: Topology, cpus: Sequence[int]) -> int:
    """Return the bytes of all caches that any of the CPUs can fill."""
    caches = [node for node in topology.of("cache") if node.get("nbytes") and node.get("type") != "Instruction"]
    return sum(int(cache.get("nbytes")) for cache in caches if set(cache.get("cpus") or ()) & set(cpus))
