"""Where the latency of far memory goes: local memory, link, switches, device; beside what the platform declares. Pure.

Only sums can be measured from the CPU: the chase in local memory, and the same chase in far memory. The link's part is
computed from its rate; what is left is the ports, the switches and the device with its own memory, together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from iobench.check import judge, topology_of
from iobench.record import Record, Run
from iobench.topology.graph import Link, Topology
from iobench.units import format_seconds

FLIT_NBYTES = 68  # a 64-byte slot set with header and CRC: CXL 1.1 and 2.0 send these (CXL specification 2.0, 4.2)
_FLITS = 2  # one carries the request out, one the line in


@dataclass(frozen=True)
class Stage:
    """One part of the latency: median seconds with an interval, and how it is known.

    ``how`` is "measured", "computed" or "rest".
    """

    name: str
    seconds: float
    low: float
    high: float
    how: str


@dataclass(frozen=True)
class Path:
    """The stages of one load from far memory; ``declared`` is what the firmware says of the whole, None: nothing."""

    name: str
    stages: tuple[Stage, ...]
    switches: int | None
    declared: float | None
    declared_local: float | None

    @property
    def seconds(self) -> float:
        return sum(stage.seconds for stage in self.stages)

    def text(self) -> str:
        """Return one sentence: every stage, the sum, and the declared latency beside it."""
        parts = [
            f"{stage.name} {format_seconds(stage.seconds)} ({stage.how}, {format_seconds(max(stage.low, 0.0))} to "
            f"{format_seconds(stage.high)})"
            for stage in self.stages
        ]
        said = f"the firmware (HMAT) declares {format_seconds(self.declared)}" if self.declared else "HMAT says nothing"
        if self.declared_local:
            said += f", {format_seconds(self.declared_local)} for local memory"
        count = "unknown" if self.switches is None else str(self.switches)
        return (
            f"a load takes {format_seconds(self.seconds)} = {' + '.join(parts)}; switches on the way: {count}; {said}"
        )


def paths(run: Run) -> list[Path]:
    """Return the stages of each far memory that the run chased beside local memory, of equal sizes and pages.

    Records that are not usable (impossible, emulated, wrong) take no part.
    """
    verdicts, topology = judge(run), topology_of(run)
    chases = [record for record in run if record.mode == "dependent loads" and "declared" in record.first.evidence]
    usable = [record for record in chases if record.used and verdicts[record.key].usable]
    local = {_key(record): record for record in usable if record.point.get("form") == "local"}
    found = []
    for record in usable:
        near = local.get(_key(record))
        if record.point.get("form") != "local" and near is not None:
            found.append(_path(near, record, topology))
    return found


def sentences(run: Run) -> Iterator[tuple[str, str]]:
    """Yield (which memory, its stages in one sentence) for the report."""
    yield from ((path.name, path.text()) for path in paths(run))


def _key(record: Record) -> tuple[Any, ...]:
    cpus = record.first.evidence.get("cpus")
    return record.probe, record.point.get("nbytes"), record.point.get("pages"), tuple(cpus or ())


def _path(near: Record, far: Record, topology: Topology | None) -> Path:
    local = Stage("local memory", near.time.median, near.time.low, near.time.high, "measured")
    rate = _rate(far, topology)
    link = _FLITS * FLIT_NBYTES / rate if rate else 0.0
    rest = Stage(
        "ports, switches and device" if rate else "link, switches and device",
        far.time.median - local.seconds - link,
        far.time.low - local.high - link,
        far.time.high - local.low - link,
        "rest",
    )
    computed = [Stage("link, two flits", link, link, link, "computed")] if rate else []
    where = far.point.get("device") or f"node {far.point.get('node')}"
    return Path(
        f"{far.probe} {far.point.get('form')}, {where}",
        (local, *computed, rest),
        _switches(far, topology),
        _declared(far),
        _declared(near),
    )


def _declared(record: Record) -> float | None:
    told = record.first.evidence.get("declared")
    value = told.get("read_seconds") if isinstance(told, dict) else None
    return float(value) if isinstance(value, (int, float)) and value > 0 else None


def _rate(record: Record, topology: Topology | None) -> float | None:
    """Return the bytes/s of one CXL link in front of a NUMA node, None where unknown: a line comes over one of them."""
    links, devices = _links(record, topology), _devices(record, topology)
    total = links[0].bytes_per_s if links else None
    return total / len(devices) if total and devices else None


def _switches(record: Record, topology: Topology | None) -> int | None:
    """Return the bridges between root port and device on the longest way to the region's devices."""
    counts = [_bridges_above(topology, device) for device in _devices(record, topology)] if topology else []
    return max((max(count - 1, 0) for count in counts), default=None)


def _links(record: Record, topology: Topology | None) -> list[Link]:
    memory = f"mem:{record.point.get('node')}"
    return [link for link in topology.links if link.kind == "cxl" and link.a == memory] if topology else []


def _devices(record: Record, topology: Topology | None) -> list[str]:
    """Return the PCI devices that the node's regions interleave over, as far as they are known."""
    if topology is None:
        return []
    found = [
        str(topology.nodes[there].get("pci"))
        for link in _links(record, topology)
        for region in link.attrs.get("regions", ())
        for there, joint in topology.neighbours(region)
        if joint.kind == "interleave"
    ]
    return [device for device in found if device in topology.nodes]


def _bridges_above(topology: Topology, device: str) -> int:
    """Return how many bridges stand above a PCI device, its root port among them."""
    here, count = device, 0
    while True:
        above = next((link.a for link in topology.links if link.b == here and link.a.startswith("pci:")), None)
        if above is None or topology.nodes[above].get("host_bridge"):
            return count
        here, count = above, count + 1
