"""Discovers the machine below a root: each source adds to one graph."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from iobench.topology import cpu, cxl, dimms, mounts, net, numa, nvidia, nvml, pci, rdma, storage
from iobench.topology.graph import Topology
from iobench.topology.sysfs import Tree

# words of a processor's name that tell nothing, and what is in brackets
_NOISE = re.compile(r"\([^)]*\)|@.*|\b(CPU|Processor|[0-9]+-Core|with .*|v[0-9]+ @.*)\b", re.IGNORECASE)
_MOST_NAME = 40


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


def name(graph: Topology) -> str:
    """Return a slug of the hardware that is the same at every start: no memory size, which varies.

    "2x-nvidia-h200-32cpu" with GPUs, "amd-epyc-fam25-2cpu" without, "-2s" where there are two sockets.
    """
    cpus, sockets = len(graph.of("cpu")), len(graph.of("socket"))
    tail = f"{cpus}cpu" + (f"-{sockets}s" if sockets > 1 else "")
    gpus = Counter(gpu.get("model_name") or f"{gpu.get('vendor') or 'unknown'}-gpu" for gpu in graph.of("gpu"))
    if gpus:
        return "-".join([*(f"{count}x-{slug(model)}" for model, count in sorted(gpus.items())), tail])
    first = next(iter(graph.of("socket")), graph.nodes["machine"])
    maker = first.get("model_name") or first.get("vendor") or "unknown"
    family = f"-fam{first.get('family')}" if first.get("family") is not None else ""
    return f"{slug(maker)}{family}-{tail}"


def slug(text: str) -> str:
    """Return lower-case words joined by hyphens, fit for a file's name."""
    words = re.sub(r"[^a-z0-9]+", "-", _NOISE.sub(" ", text).lower()).strip("-")
    return words[:_MOST_NAME].strip("-") or "unknown"
