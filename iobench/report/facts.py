"""The machine in one paragraph and in a table, from the header alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from iobench.check import topology_of
from iobench.record import Run
from iobench.report.charts import cache_sizes
from iobench.topology.graph import Node, Topology
from iobench.units import format_size

_DEVICES = (("gpu", "GPU"), ("nic", "network device"), ("block", "block device"), ("cxl", "CXL memory device"))
_MODEL_NAMES = ("model_name", "model", "product", "name")
_LONGEST_VALUE = 200


def paragraph(run: Run) -> str:
    """Return one paragraph: processors, memory, caches, devices, and the versions that measured."""
    graph = topology_of(run)
    parts = _hardware(graph, run) if graph else ["The run holds no topology"]
    return ". ".join(part for part in parts if part) + f". Measured by iobench {run.header.version}{_system(run)}."


def _hardware(graph: Topology, run: Run) -> list[str]:
    caches = ", ".join(f"{name} {format_size(nbytes)}" for name, nbytes in cache_sizes(run))
    return [_processors(graph), _memory(graph), f"Caches: {caches}" if caches else "", *_devices(graph)]


def _processors(graph: Topology) -> str:
    names = Counter(_model(node) or "processor of unknown model" for node in graph.of("socket"))
    sockets = ", ".join(f"{count} × {name}" if count > 1 else name for name, count in names.items())
    cpus = graph.of("cpu")
    allowed = [cpu for cpu in cpus if cpu.get("allowed") is not False]
    limited = f", {len(allowed)} of them allowed" if len(allowed) < len(cpus) else ""
    return f"{sockets or 'Processor unknown'}, {_count(len(cpus), 'CPU')}{limited}"


def _memory(graph: Topology) -> str:
    nodes = graph.of("numa")
    known = [node.get("memory_bytes") for node in nodes if isinstance(node.get("memory_bytes"), int)]
    size = f"{format_size(sum(known))} memory" if known else "memory of unknown size"
    return f"{size} on {_count(len(nodes), 'NUMA node')}" if nodes else size


def _devices(graph: Topology) -> list[str]:
    found = []
    for kind, word in _DEVICES:
        nodes = graph.of(kind)
        names = Counter(_model(node) or node.id.partition(":")[2] for node in nodes)
        listed = ", ".join(f"{count} × {name}" if count > 1 else name for name, count in list(names.items())[:6])
        more = ", …" if len(names) > 6 else ""
        found.append(f"{_count(len(nodes), word)}: {listed}{more}" if nodes else "")
    return found


def _model(node: Node) -> str:
    return next((str(node.get(name)).strip() for name in _MODEL_NAMES if node.get(name)), "")


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _system(run: Run) -> str:
    kernel = _find(run.header.machine, ("kernel", "release", "kernel_release"))
    return f" on Linux {kernel.removeprefix('Linux ')}" if kernel else ""


def _find(data: Mapping[str, Any], names: tuple[str, ...]) -> str:
    for name in names:
        if isinstance(data.get(name), str):
            return str(data[name])
    return next((found for value in data.values() if isinstance(value, dict) and (found := _find(value, names))), "")


def rows(data: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Return nested facts flat: ("memory.total_bytes", "8 GiB"); unknown ones are left out."""
    found: list[tuple[str, str]] = []
    for name, value in data.items():
        if isinstance(value, Mapping):
            found += rows(value, f"{prefix}{name}.")
        elif value not in (None, "", []):
            found.append((f"{prefix}{name}", _short(name, value)))
    return found


def _listed(values: list[Any]) -> str:
    """Return "a, b", or "total 2, free 1; total 0, free 0" of entries that have names."""
    if not any(isinstance(one, Mapping) for one in values):
        return ", ".join(map(str, values))
    named = [one if isinstance(one, Mapping) else {"": one} for one in values]
    return "; ".join(", ".join(f"{name} {_short(name, value)}".strip() for name, value in one.items()) for one in named)


def _short(name: str, value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and name.endswith("bytes"):
        return format_size(value)
    text = _listed(value) if isinstance(value, list) else str(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"
