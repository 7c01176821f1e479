"""Discovers the machine below a root: each source adds to one graph."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from iobench.topology import cpu, cxl, dimms, mounts, net, numa, nvidia, nvml, pci, rdma, storage
from iobench.topology.graph import Topology
from iobench.topology.naming import name
from iobench.topology.sysfs import Tree


def discover(root: str | Path = "/", told: Sequence[nvml.Gpu] | None = None) -> Topology:
    """Return the machine whose sysfs and procfs lie below ``root`` as one graph.

    Nothing in the tree can make it fail: what is missing or odd is unknown. NVML is asked only for the root "/";
    ``told`` takes its place.
    """
    tree, graph = Tree(root), Topology()
    cpu.add(tree, graph)
    dimms.add(tree, graph)
    numa.add(tree, graph)
    pci.add(tree, graph)
    nvidia.add(tree, graph, told)
    net.add(tree, graph)
    rdma.add(tree, graph)
    storage.add(tree, graph)
    mounts.add(tree, graph)
    cxl.add(tree, graph)
    graph.facts = {name: value for name, value in graph.facts.items() if value is not None}
    graph.name = name(graph)
    return graph
