"""GPUs from ``nvidia-smi`` (the table) and ``nvidia-smi -q``: products, addresses, memory and the PCIe link's best.

The link's current state is of an idle machine and stands beside the limit, never in its place.
"""

from __future__ import annotations

import re
from typing import Any

from iobench.topology import limits
from iobench.topology.graph import Topology
from iobench.topology.logs.text import address, finding, whole
from iobench.units import MIB

_ROW = re.compile(
    r"^\|\s+([0-9]{1,3})\s+(\S.*?)\s{2,}(?:On|Off|N/A)\s*\|\s+([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])",
    re.MULTILINE,
)
_MEMORY = re.compile(r"([0-9]+)MiB\s*/\s*([0-9]+)MiB")
_GPU = re.compile(r"^GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])[ \t]*$", re.MULTILINE)
_FIELD = re.compile(r"^( *)(\S.*?)\s*(?: : (.*))?$")


def add(text: str, graph: Topology) -> bool:
    """Add ``gpu:N`` and ``vram:N`` of the tables in the text; say whether there was one."""
    found = False
    lines = text.split("\n")
    for number, line in enumerate(lines):
        match = _ROW.match(line)
        if match:
            memory = _MEMORY.search(lines[number + 1]) if number + 1 < len(lines) else None
            nbytes = int(memory[2]) * MIB if memory else None
            name = match[2] if not match[2].endswith("...") else None  # cut by a narrow column
            add_gpu(graph, int(match[1]), address=address(match[3]), model_name=name, memory_bytes=nbytes)
            found = True
    return _add_queries(text, graph) or found


def number_of(graph: Topology, where: str | None) -> int | None:
    """Return N of the ``gpu:N`` at a PCI address."""
    for node in graph.of("gpu"):
        if where is not None and node.get("address") == where:
            return int(node.id.partition(":")[2])
    return None


def add_gpu(graph: Topology, number: int, **known: Any) -> None:
    """Add one GPU, its memory and the limit of its memory where the product has a row."""
    vendor = known.pop("vendor", "NVIDIA")
    node = graph.add(f"gpu:{number}", "gpu", vendor=vendor, **known)
    graph.add(f"vram:{number}", "vram", gpu=node.id, memory_bytes=known.get("memory_bytes"))
    old = next((link for link in graph.links if link.a == f"vram:{number}" and link.kind == "hbm"), None)
    limit = limits.gpu_memory(node.get("model_name"))
    if old is not None and old.bytes_per_s is None:
        graph.links.remove(old)
    if old is None or old.bytes_per_s is None:
        source = limit.source if limit else "unknown: limits.toml has no row for this product"
        graph.link(f"vram:{number}", node.id, "hbm", limit.bytes_per_s if limit else None, duplex=False, source=source)


def _add_queries(text: str, graph: Topology) -> bool:
    starts = list(_GPU.finditer(text))
    for place, match in enumerate(starts):
        end = starts[place + 1].start() if place + 1 < len(starts) else len(text)
        where = address(match[1])
        number = number_of(graph, where)
        if number is None:
            number = len(graph.of("gpu"))
        _add_query(graph, number, where, _fields(text[match.end() : end]))
    attached = re.search(r"^Attached GPUs[ \t]+: ([0-9]{1,6})\b", text, re.MULTILINE)
    shown = len({address(match[1]) for match in starts})  # once each: a log may hold several queries
    if attached and starts and int(attached[1]) > shown:
        finding(graph, f"nvidia-smi -q says {attached[1]} GPUs and shows {shown}: the log is cut")
    return bool(starts)


def _fields(block: str) -> dict[str, str]:
    """Return the values by their path of headings ("PCI/GPU Link Info/PCIe Generation/Max")."""
    found: dict[str, str] = {}
    above: list[tuple[int, str]] = []
    for line in block.split("\n"):
        match = _FIELD.match(line)
        if match is None or not match[1]:
            if line.strip():
                break  # back at the margin: another tool's output
            continue
        depth = len(match[1])
        while above and above[-1][0] >= depth:
            above.pop()
        if match[3] is None:
            above.append((depth, match[2]))
        else:
            found["/".join([*(name for _, name in above), match[2]])] = match[3].strip()
    return found


def _add_query(graph: Topology, number: int, where: str | None, fields: dict[str, str]) -> None:
    memory = re.fullmatch(r"([0-9]+) MiB", fields.get("FB Memory Usage/Total", ""))
    add_gpu(
        graph,
        number,
        address=where,
        model_name=known(fields.get("Product Name")),
        memory_bytes=int(memory[1]) * MIB if memory else None,
    )
    link = "PCI/GPU Link Info"
    attrs = {
        "max_generation": whole(fields.get(f"{link}/PCIe Generation/Max")),
        "max_width": width(fields.get(f"{link}/Link Width/Max")),
        "current_generation": whole(fields.get(f"{link}/PCIe Generation/Current")),
        "current_width": width(fields.get(f"{link}/Link Width/Current")),
    }
    graph.add(f"gpu:{number}", "gpu", pcie={name: value for name, value in attrs.items() if value} or None)


def known(text: str | None) -> str | None:
    """Return a value that is one, not N/A or Unknown."""
    return text if text and text not in {"N/A", "Unknown", "Unknown Error", "[N/A]", "None"} else None


def width(text: str | None) -> int | None:
    """Return the lanes of "16x"."""
    return whole((text or "").removesuffix("x"))
