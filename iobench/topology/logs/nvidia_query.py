"""``nvidia-smi --query-gpu=... --format=csv``: GPUs by their columns, and the PCIe link in the state that it had.

Columns are told by the heading, or by the command line above rows without one. A link trains down when its GPU idles
(P8, 1, 4): only a row under load (P0 or a busy GPU) says something of the link, and a link that stays below its best
there is one that the slot limits or that came down. The best is the limit, as everywhere.
"""

from __future__ import annotations

import re

from iobench.topology.graph import Topology
from iobench.topology.logs.nvidia_smi import add_gpu, known, number_of
from iobench.topology.logs.text import address, finding, whole
from iobench.units import MIB

_COMMAND = re.compile(r"nvidia-smi\b[^\n]{0,300}?--query-gpu[= ]([a-z_.,0-9]{3,2000})")
_NAMES = {
    "index": "index", "name": "name", "gpu_name": "name", "pci.bus_id": "address", "gpu_bus_id": "address",
    "pstate": "pstate", "memory.total": "memory", "utilization.gpu": "load",
    "pcie.link.gen.current": "generation", "pcie.link.gen.gpucurrent": "generation",
    "pcie.link.gen.max": "max_generation", "pcie.link.width.current": "width", "pcie.link.width.max": "max_width",
}  # fmt: skip
_COLUMN = re.compile(r"[a-z_]+(?:\.[a-z_0-9]+)*(?: \[[\w%/ ]{1,12}\])?")
_LEAST_LOAD = 50  # percent of the time with a kernel running
_MOST_ROWS = 100_000


def add(text: str, graph: Topology) -> bool:
    """Add the GPUs of every such table in the text; say whether there was one."""
    columns: list[str] = []
    found = False
    links: dict[int, dict[str, int]] = {}
    for place, line in enumerate(text.split("\n")):
        cells = [cell.strip() for cell in line.split(",")]
        if command := _COMMAND.search(line):
            columns = command[1].strip(",").split(",")
        elif _is_heading(cells):
            columns = [cell.split(" [")[0] for cell in cells]
        elif columns and len(cells) == len(columns) and place < _MOST_ROWS:
            row = {_NAMES[name]: cell for name, cell in zip(columns, cells, strict=True) if name in _NAMES}
            found = _add_row(graph, row, links) or found
        elif line.strip():
            columns = []
    for number, link in links.items():
        _judge(graph, number, link)
    return found


def _is_heading(cells: list[str]) -> bool:
    return all(_COLUMN.fullmatch(cell) for cell in cells) and sum(c.split(" [")[0] in _NAMES for c in cells) > 1


def _add_row(graph: Topology, row: dict[str, str], links: dict[int, dict[str, int]]) -> bool:
    """Add one row's GPU; without index and address it is the only one, or the row tells nothing."""
    where = address(row.get("address"))
    at = number_of(graph, where)
    index = whole(row.get("index"))
    number = at if at is not None else index if index is not None else None if where else 0
    if number is None:
        number = len(graph.of("gpu"))
    facts = {name: whole(row.get(name)) for name in ("generation", "max_generation", "width", "max_width")}
    product, memory = known(row.get("name")), whole((row.get("memory") or "").removesuffix(" MiB"))
    if number > 1024 or not (product or memory or where or any(facts.values())):
        return False
    add_gpu(graph, number, address=where, model_name=product, memory_bytes=memory * MIB if memory else None)
    attrs = {"max_generation": facts["max_generation"], "max_width": facts["max_width"]}
    attrs |= {"current_generation": facts["generation"], "current_width": facts["width"]}
    graph.add(f"gpu:{number}", "gpu", pcie={name: value for name, value in attrs.items() if value} or None)
    link = links.setdefault(number, {})
    load = whole((row.get("load") or "").removesuffix(" %"))
    busy = row.get("pstate") == "P0" if load is None else load >= _LEAST_LOAD
    for name, value in facts.items():
        if value is not None and (busy or name.startswith("max_")):
            link[name] = max(link.get(name, 0), value)
    return True


def _judge(graph: Topology, number: int, link: dict[str, int]) -> None:
    """Say where a link was below its best under load; rows of an idle GPU say nothing."""
    for name, unit in (("generation", "Gen"), ("width", "x")):
        now, best = link.get(name), link.get(f"max_{name}")
        if now and best and now < best:
            finding(
                graph,
                f"gpu:{number}: its PCIe link is {unit}{now} of {unit}{best} under load: the slot or a switch above "
                "limits it, or it came down in training (look at the LnkSta of every bridge above it)",
            )
