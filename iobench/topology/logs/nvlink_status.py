"""``nvidia-smi nvlink -s``: how many links of each GPU are active, and the signalling rate of one."""

from __future__ import annotations

import re
from dataclasses import replace

from iobench.topology import limits
from iobench.topology.graph import Topology
from iobench.topology.logs.nvidia_smi import add_gpu
from iobench.topology.logs.text import finding

_GPU = re.compile(r"^\s*GPU ([0-9]{1,3}): (.+?)(?: \(UUID: [^)]*\))?\s*$")
_LINK = re.compile(r"^\s*Link ([0-9]{1,2}): (?:<?(inactive)>?|([0-9]{1,6}(?:\.[0-9]{1,6})?) GB/s)\s*$")
_LEFT_OUT = re.compile(r"^[ \t]*\[?(?:\.{3,}|\u2026)\]?[ \t]*$")
# what one link of a generation signals per direction, GB/s: its payload rate and a little more
_RATES = ((15.0, 20.5, 1), (26.0, 27.0, 4), (49.0, 54.0, 5))
_SHARED_RATE = (24.0, 26.0)  # generations 2 and 3: the product tells which


def add(text: str, graph: Topology) -> bool:
    """Add the links' state to each GPU; say whether the text shows any."""
    gpu: int | None = None
    active: dict[int, dict[int, float]] = {}
    inactive: dict[int, set[int]] = {}
    names: dict[int, str] = {}
    cut, left_out = False, set[int]()
    for line in text.split("\n"):
        if match := _GPU.match(line):
            gpu = int(match[1])
            names[gpu] = match[2]
        elif gpu is not None and (match := _LINK.match(line)):
            if match[2] or not float(match[3]):
                inactive.setdefault(gpu, set()).add(int(match[1]))
            else:
                active.setdefault(gpu, {})[int(match[1])] = float(match[3])
        elif gpu is not None and _LEFT_OUT.match(line):
            left_out.add(gpu)
    for number in sorted({*active, *inactive}):
        add_gpu(graph, number, model_name=names.get(number))
        if number in left_out or _cut(active.get(number, {}), inactive.get(number, set())):
            finding(graph, f"gpu:{number}: the list of its NVLinks was cut: how many are active is unknown")
            active.pop(number, None)
            inactive.pop(number, None)
            cut = True
            continue
        _add_state(graph, number, active.get(number, {}), len(inactive.get(number, ())))
    _compare(graph, {number: len(links) for number, links in active.items()}, inactive)
    return bool(active or inactive or cut)


def _cut(active: dict[int, float], inactive: set[int]) -> bool:
    """Tell whether numbers are missing: people leave out the middle ("[...]") where they paste such a list."""
    numbers = {*active, *inactive}
    return len(numbers) <= max(numbers)


def generation(rates: list[float], known: int | None) -> int | None:
    """Return the generation that signals at these rates; None where they differ or fit none."""
    found = {number for rate in rates for low, high, number in _RATES if low <= rate <= high}
    if rates and all(_SHARED_RATE[0] <= rate <= _SHARED_RATE[1] for rate in rates):
        return known if known in {2, 3} else None
    return found.pop() if len(found) == 1 else None


def _add_state(graph: Topology, number: int, links: dict[int, float], inactive: int) -> None:
    from iobench.topology.logs.nvidia_topo import generation_of

    node = graph.add(f"gpu:{number}", "gpu", nvlinks_active=len(links), nvlinks_inactive=inactive or None)
    rates = list(links.values())
    which = generation(rates, generation_of(node.get("model_name")))
    for place, link in enumerate(graph.links):
        if link.kind != "nvlink" or node.id not in (link.a, link.b):
            continue
        count = int(link.attrs.get("links", 0))
        if link.b == "nvswitch:0":
            count = len(links)
        limit = limits.nvlink(which, count)
        if limit:
            source = f"nvidia-smi nvlink -s: {len(links)} active links; {limit.source}"
            attrs = {**link.attrs, "links": count, "generation": which}
            graph.links[place] = replace(link, bytes_per_s=limit.bytes_per_s, source=source, attrs=attrs)


def _compare(graph: Topology, counts: dict[int, int], inactive: dict[int, set[int]]) -> None:
    most = max(counts.values(), default=0)
    for number in sorted({*counts, *inactive}):
        count, off = counts.get(number, 0), len(inactive.get(number, ()))
        if off:
            finding(graph, f"gpu:{number}: {off} of {count + off} NVLinks are inactive")
        elif count < most:
            finding(graph, f"gpu:{number} has {count} active NVLinks, others have {most}")
