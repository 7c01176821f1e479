"""CXL memory and device-dax from the JSON of ``cxl list`` and ``daxctl list``, however it is nested.

Numbers may be text ("-u" prints "256.00 MiB (268.44 MB)") or negative (seen: max_available_extent); what is no size is
unknown. ``numa_node`` of a memory device is where the device sits, not where its memory is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from iobench import jsontext
from iobench.topology.graph import Topology
from iobench.topology.logs.text import address, finding
from iobench.units import GIB, KIB, MIB, TIB

_UNITS = {"KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": TIB}
_MOST_DEPTH = 40
_MOST_STARTS = 200
_NO_COMMA = re.compile(
    r'(true|false|null|[0-9"}\]])(?=[ \t]{0,40}\n[ \t]{0,40}"[a-z_ ]{1,40}"[ \t]{0,4}:)'
)  # written by hand


def add(text: str, graph: Topology) -> bool:
    """Add ``cxl:memN``, ``cxl:regionN`` and ``dax:`` nodes of every such list in the text."""
    if not re.search(r'"(memdev|memdevs|chardev|regions?|target_node)"', text):
        return False
    text, mended = _NO_COMMA.subn(r"\1,", text)
    if mended:
        finding(graph, "cxl or daxctl list: a comma was missing: it was written or changed by hand")
    found = [entry for _, data in jsontext.documents(text, _MOST_STARTS, "{[") for entry in _entries(data, _MOST_DEPTH)]
    memory = [entry for entry in found if re.fullmatch(r"mem[0-9]{1,6}", _word(entry, "memdev")) and "decoder" not in entry]  # fmt: skip  # noqa: E501
    for entry in memory:
        _add_memory(graph, entry)
    told = set(re.findall(r'"memdev"[ \t]*:[ \t]*"(mem[0-9]{1,6})"', text))
    if lost := told - {_word(entry, "memdev") for entry in memory}:
        names = ", ".join(sorted(lost)[:8])
        finding(graph, f"cxl list: {names} named, but not described: its JSON is damaged or only a part of the list")
    regions = [entry for entry in found if re.fullmatch(r"region[0-9]{1,6}", _word(entry, "region")) and "size" in entry]  # fmt: skip  # noqa: E501
    for entry in regions:
        _add_region(graph, entry)
    daxes = [entry for entry in found if re.fullmatch(r"dax[0-9]{1,6}\.[0-9]{1,6}", _word(entry, "chardev"))]
    for entry in daxes:
        _add_dax(graph, entry)
    return bool(memory or regions or daxes)


def _entries(data: Any, depth: int) -> Iterator[dict[str, Any]]:
    if depth == 0:
        return
    if isinstance(data, dict):
        yield data
    for value in data.values() if isinstance(data, dict) else data if isinstance(data, list) else ():
        if isinstance(value, (dict, list)):
            yield from _entries(value, depth - 1)


def _word(entry: dict[str, Any], name: str) -> str:
    value = entry.get(name)
    return value if isinstance(value, str) else ""


def number(value: Any) -> int | None:
    """Return a size or an id: None for a negative one, for text that is none, and for a fraction."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value if 0 <= value < 2**63 else None
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,3})?) ?([KMGT]iB)\b.*", value) if isinstance(value, str) else None
    if match:
        return round(float(match[1]) * _UNITS[match[2]])
    if isinstance(value, str) and re.fullmatch(r"0x[0-9a-fA-F]{1,15}|[0-9]{1,18}", value):
        return int(value, 0)
    return None


def _add_memory(graph: Topology, entry: dict[str, Any]) -> None:
    where = address(_word(entry, "host"))
    device = f"pci:{where}" if where else None
    node = graph.add(
        f"cxl:{entry['memdev']}",
        "cxl",
        type="memory device",
        volatile_bytes=number(entry.get("ram_size")) or None,
        persistent_bytes=number(entry.get("pmem_size")) or None,
        pci=device if device in graph.nodes else None,
        device_numa=_known(graph, number(entry.get("numa_node"))),
    )
    if device in graph.nodes and not any(link.kind == "function" for _, link in graph.neighbours(node.id)):
        graph.link(node.id, str(device), "function", source="the same device")


def _add_region(graph: Topology, entry: dict[str, Any]) -> None:
    name = f"cxl:{entry['region']}"
    new = name not in graph.nodes
    state = _word(entry, "decode_state")
    graph.add(
        name,
        "cxl",
        type="region",
        nbytes=number(entry.get("size")) or None,
        mode=_word(entry, "type") or None,
        interleave_ways=number(entry.get("interleave_ways")) or None,
        interleave_nbytes=number(entry.get("interleave_granularity")) or None,
        committed={"commit": True, "reset": False}.get(state),
    )
    mappings = entry.get("mappings")
    for mapping in mappings if new and isinstance(mappings, list) else ():
        target = f"cxl:{_word(mapping, 'memdev')}" if isinstance(mapping, dict) else ""
        if target in graph.nodes:
            graph.link(name, target, "interleave", source="no limit of its own")


def _add_dax(graph: Topology, entry: dict[str, Any]) -> None:
    mode = _word(entry, "mode")
    online, total = number(entry.get("online_memblocks")), number(entry.get("total_memblocks"))
    state = None
    if mode == "system-ram" and online is not None and total:
        state = "online" if online == total else "partly online" if online else "offline"
    graph.add(
        f"dax:{entry['chardev']}",
        "dax",
        nbytes=number(entry.get("size")) or None,
        mode=mode or None,
        target_numa=number(entry.get("target_node")),
        align_nbytes=number(entry.get("align")) or None,
        state=state,
        memory_blocks=total,
        memory_blocks_online=online,
    )
    if state in {"offline", "partly online"}:
        finding(graph, f"dax:{entry['chardev']}: {online} of {total} memory blocks are online")


def _known(graph: Topology, value: int | None) -> int | None:
    return value if f"numa:{value}" in graph.nodes else None
