"""A machine's graph as text for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from iobench.topology.graph import Link, Node, Topology
from iobench.units import format_rate, format_size

_UNKNOWN = "unknown"


def describe(topology: Topology) -> str:
    """Return the graph as a tree of text: memory and CPUs by NUMA node, then PCI hop by hop, then files and ports."""
    parts = [_head(topology), _nodes(topology), _interconnects(topology), _pci(topology), _gpus(topology)]
    parts += [_ports(topology), _storage(topology), _cxl(topology), _facts(topology)]
    return "\n".join(line for part in parts for line in part) + "\n"


def ranges(numbers: Iterable[int]) -> str:
    """Return ids as a list of ranges: "0-3,8"."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in found) or "none"


def _head(topology: Topology) -> Iterator[str]:
    words: dict[Any, str] = {True: ", a virtual machine", False: ""}
    virtual = words.get(topology.facts.get("virtual"), ", virtual or not: unknown")
    yield f"{topology.name or 'machine'}{virtual}"
    for socket in topology.of("socket"):
        cpus = [cpu for cpu in topology.of("cpu") if f"socket:{cpu.get('socket')}" == socket.id]
        yield f"  {socket.id}  {socket.get('model_name') or 'model unknown'}, {len(cpus)} CPUs"


def _nodes(topology: Topology) -> Iterator[str]:
    for node in topology.of("numa"):
        assumed = " (assumed: the kernel shows none)" if node.get("assumed") else ""
        cpus = node.get("cpus")
        yield f"  {node.id}{assumed}  CPUs {_UNKNOWN if cpus is None else ranges(cpus)}{_not_allowed(topology, node)}"
        for there, link in topology.neighbours(node.id):
            if there.startswith("mem:"):
                nbytes = topology.nodes[there].get("memory_bytes")
                yield f"    {there}  {format_size(nbytes) if nbytes else 'size unknown'}, {link.kind} {_limit(link)}"
        if node.get("has_memory") is False:
            yield "    no memory"
        yield from _caches(topology, node)


def _not_allowed(topology: Topology, node: Node) -> str:
    cpus = [topology.node(f"cpu:{number}") for number in node.get("cpus") or ()]
    barred = [int(cpu.id[4:]) for cpu in cpus if cpu is not None and cpu.get("allowed") is False]
    return f" (not allowed here: {ranges(barred)})" if barred else ""


def _caches(topology: Topology, node: Node) -> Iterator[str]:
    mine = set(node.get("cpus") or ())
    groups: dict[tuple[str, int | None, int], list[Node]] = {}
    for cache in topology.of("cache"):
        if mine & set(cache.get("cpus")):
            key = (cache.id.split(":")[1], cache.get("nbytes"), len(cache.get("cpus")))
            groups.setdefault(key, []).append(cache)
    for (name, nbytes, shared), caches in groups.items():
        size = format_size(nbytes) if nbytes else "size unknown"
        core = next((link for _, link in topology.neighbours(caches[0].id)), None)
        yield f"    {len(caches)} x {name} {size}, {shared} CPU{'s' if shared > 1 else ''} each, core {_limit(core)}"


def _interconnects(topology: Topology) -> Iterator[str]:
    for link in topology.links:
        if link.kind == "interconnect":
            yield f"  {link.a} - {link.b}  distance {link.attrs.get('distance', _UNKNOWN)}, {_limit(link)}"


def _pci(topology: Topology) -> Iterator[str]:
    below = {link.b for link in topology.links if link.kind in {"pcie", "internal"}}
    for node in topology.of("pci"):
        if node.id not in below:
            numa = node.get("numa")
            yield f"  {node.id}  host bridge, NUMA node {_UNKNOWN if numa is None else numa}"
            yield from _hops(topology, node.id, "    ")


def _hops(topology: Topology, top: str, indent: str) -> Iterator[str]:
    for link in topology.links:
        if link.a == top and link.kind in {"pcie", "internal"}:
            yield f"{indent}{link.b}{_what(topology, link.b)}  {_hop(link)}"
            yield from _hops(topology, link.b, indent + "  ")


def _what(topology: Topology, pci: str) -> str:
    """Return what a PCI function is, by the nodes that hang on it."""
    kinds = {"gpu", "nic", "port", "block", "cxl"}
    names = [there for there, _ in topology.neighbours(pci) if topology.nodes[there].kind in kinds]
    if names:
        return f" [{', '.join(names)}]"
    return "" if topology.nodes[pci].get("bridge") else f" [class {topology.nodes[pci].get('class', _UNKNOWN)}]"


def _hop(link: Link) -> str:
    if link.kind == "internal":
        return "inside the root complex or a switch"
    now = _generation(link.attrs, "current")
    return f"now {now}, maximum {_generation(link.attrs, 'max')}, {_limit(link)}"


def _generation(attrs: dict[str, Any], which: str) -> str:
    generation, width = attrs.get(f"{which}_generation"), attrs.get(f"{which}_width")
    if generation is None and width is None:
        return _UNKNOWN
    return f"gen {generation or '?'} x{width or '?'}"


def _gpus(topology: Topology) -> Iterator[str]:
    for gpu in topology.of("gpu"):
        numa = gpu.get("numa")
        place = f"NUMA node {_UNKNOWN if numa is None else numa}"
        yield f"  {gpu.id}  {gpu.get('model_name') or 'model unknown'}, {place}"
        for there, link in topology.neighbours(gpu.id):
            if link.kind == "hbm":
                nbytes = gpu.get("memory_bytes")
                yield f"    {there}  {format_size(nbytes) if nbytes else 'size unknown'}, {_limit(link)}"
            elif link.kind == "nvlink":
                yield f"    {link.attrs.get('links')} NVLinks to {there}, {_limit(link)} per direction"


def _ports(topology: Topology) -> Iterator[str]:
    for node in [*topology.of("nic"), *topology.of("port")]:
        link = next((link for _, link in topology.neighbours(node.id) if link.kind == "line"), None)
        numa = node.get("numa")
        place = f"NUMA node {_UNKNOWN if numa is None else numa}"
        yield f"  {node.id}  {(node.get('state') or 'state unknown').lower()}, {_limit(link)}, {place}"


def _storage(topology: Topology) -> Iterator[str]:
    for block in topology.of("block"):
        nbytes, mounts = block.get("nbytes"), block.get("mounts")
        where = f", mounted on {', '.join(mounts)}" if mounts else ""
        under = [link.b for link in topology.links if link.a == block.id]
        yield f"  {block.id}  {block.get('type')}, {format_size(nbytes) if nbytes else 'size unknown'}{where}, on " + (
            ", ".join(under) or _UNKNOWN
        )


def _cxl(topology: Topology) -> Iterator[str]:
    for node in [*topology.of("cxl"), *topology.of("dax")]:
        told = [node.get("type"), node.get("mode"), node.get("state")]
        if node.get("target_numa") is not None:
            told.append(f"memory of NUMA node {node.get('target_numa')}")
        yield f"  {node.id}  {', '.join(str(word) for word in told if word)}"


def _facts(topology: Topology) -> Iterator[str]:
    if "nvml" in topology.facts:
        yield f"  NVML {topology.facts['nvml']}"
    yield from _modules(topology)
    for key in ("assumptions", "findings"):
        yield from (f"  note: {text}" for text in topology.facts.get(key, ()))


def _modules(topology: Topology) -> Iterator[str]:
    """Yield what the firmware says of the memory modules, and EDAC or the slots' names of the channels."""
    found, channels = topology.facts.get("memory_modules"), topology.facts.get("memory_channels")
    if isinstance(found, dict):
        speed = f" at {found['megatransfers']} MT/s" if found.get("megatransfers") else ", speed unknown"
        yield f"  {found['count']} memory modules, {format_size(found['nbytes'])}{speed} ({found['source']})"
    if isinstance(channels, dict):
        yield f"  {channels['count']} memory channels in use ({channels['source']})"


def _limit(link: Link | None) -> str:
    return f"limit {format_rate(link.bytes_per_s)}" if link and link.bytes_per_s else "limit unknown"
