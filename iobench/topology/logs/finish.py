"""Joins what the readers left apart: GPUs to their PCI functions, ports to theirs, host bridges to NUMA nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from iobench.topology import limits
from iobench.topology.graph import Node, Topology
from iobench.topology.naming import name as machine_name


def finish(graph: Topology) -> None:
    """Complete the graph of logs: every GPU has a way to the NUMA nodes it may be at, every port a line."""
    for gpu in graph.of("gpu"):
        _join_gpu(graph, gpu)
        _name_peers(graph, gpu)
    for port in graph.of("port"):
        _join_port(graph, port)
    for node in list(graph.of("pci")):
        if node.get("host_bridge"):
            _join_bridge(graph, node)
    graph.name = f"{machine_name(graph)}-from-logs" if len(graph.nodes) > 1 else "unknown-machine"


def _join_gpu(graph: Topology, gpu: Node) -> None:
    """Link a GPU to its PCI function, made from nvidia-smi -q where no PCI tree was given."""
    where = gpu.get("address")
    pcie = gpu.get("pcie") or {}
    if where is None or any(link.kind == "function" for _, link in graph.neighbours(gpu.id)):
        return
    device = f"pci:{where}"
    if device not in graph.nodes and pcie:
        root = f"pci:{where[:7]}"
        if root not in graph.nodes:
            graph.add(root, "pci", host_bridge=True)
        graph.add(device, "pci", vendor="0x10de", numa=gpu.get("numa"))
        limit = limits.pcie(pcie.get("max_generation"), pcie.get("max_width"))
        attrs: dict[str, Any] = dict(pcie)
        if limit:
            attrs["warn_bytes_per_s"] = limit.warn_bytes_per_s
        source = f"nvidia-smi -q: the link's best; {limit.source}" if limit else "unknown: nvidia-smi -q shows no link"
        graph.link(root, device, "pcie", limit.bytes_per_s if limit else None, source=source, attrs=attrs)
    if device in graph.nodes:
        graph.add(gpu.id, "gpu", pci=device)
        if graph.nodes[device].get("numa") is None and gpu.get("numa") is not None:
            graph.add(device, "pci", numa=gpu.get("numa"))
        graph.link(gpu.id, device, "function", source="the same device")


def _name_peers(graph: Topology, gpu: Node) -> None:
    """Turn peer access told by GPU numbers into PCI addresses, the graph's way."""
    peers = gpu.get("peer_gpus") or {}
    named = {}
    for other, works in peers.items():
        where = graph.nodes[other].get("address") if other in graph.nodes else None
        if where:
            named[f"pci:{where}"] = works
    if named:
        graph.add(gpu.id, "gpu", peers=named)


def _join_port(graph: Topology, port: Node) -> None:
    """Link a port to its PCI function, whose NUMA node is the port's: that of the GPU beside it may be another one."""
    at = graph.node(str(port.get("pci")))
    if at is not None and port.get("numa") is None and at.get("numa") is not None:
        graph.add(port.id, "port", numa=at.get("numa"))
    if port.get("pci") in graph.nodes and not any(link.kind == "line" for _, link in graph.neighbours(port.id)):
        limit, source = port.get("line_bytes_per_s"), port.get("rate_source") or "unknown: no rate in the log"
        graph.link(port.id, port.get("pci"), "line", limit, source=source)


def _join_bridge(graph: Topology, bridge: Node) -> None:
    """Join a host bridge to the node of what is below it; to every node with CPUs where none says."""
    if any(link.kind == "host bridge" for _, link in graph.neighbours(bridge.id)):
        return
    below = _below(graph, bridge.id)
    numbers = {node.get("numa") for node in below if node.get("numa") is not None}
    numbers = {number for number in numbers if f"numa:{number}" in graph.nodes}
    known = len(numbers) == 1
    nodes = [f"numa:{number}" for number in numbers] if known else _initiators(graph)
    for node in nodes:
        attrs = {} if known else {"assumed": True}
        reason = "NUMA node in the log" if known else "the NUMA node is unknown"
        graph.link(bridge.id, node, "host bridge", source=f"{reason}; no limit known", attrs=attrs)
    if known:
        graph.nodes[bridge.id] = replace(bridge, attrs={**bridge.attrs, "numa": numbers.pop()})


def _initiators(graph: Topology) -> list[str]:
    nodes = graph.of("numa")
    return [node.id for node in nodes if node.get("has_cpu")] or [node.id for node in nodes]


def _below(graph: Topology, top: str) -> list[Node]:
    found: list[Node] = []
    todo, seen = [top], {top}
    while todo:
        here = todo.pop()
        for link in graph.links:
            if link.a == here and link.kind in {"pcie", "internal"} and link.b not in seen:
                seen.add(link.b)
                found.append(graph.nodes[link.b])
                todo.append(link.b)
    return found
