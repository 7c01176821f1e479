"""``iblinkinfo``: the links of an InfiniBand fabric. What crosses several is as fast as the slowest of them.

The rate is what each lane signals: 25.78125 Gb/s is EDR with its line code, 25 Gb/s of data. Nothing here belongs to
one machine, so no node is added: the counts stand in ``facts["fabric"]``. Names of nodes and switches are not kept.
"""

from __future__ import annotations

import re
from collections import Counter

from iobench.topology import limits
from iobench.topology.graph import Topology
from iobench.topology.logs.text import finding
from iobench.units import format_rate

_LINK = re.compile(
    r"==\( *(?:([0-9]{1,2})X +([0-9]{1,4}(?:\.[0-9]{1,6})?) +Gbps +)?(\w{1,12})/ *(\w{1,20}) *\)==>([^\n]*)"
)
_OWN = re.compile(r"([0-9]{1,6})[ \t]+([0-9]{1,4})\[[^\]\n]{0,4}\][ \t]*$")
_OTHER = re.compile(r"[ \t]*([0-9]{1,6})[ \t]+([0-9]{1,4})\[")
_BEFORE = 40
_COULD = re.compile(r"Could be ([0-9]{1,2}X|[0-9]{1,4}(?:\.[0-9]{1,6})?)")
# what one lane signals, Gb/s -> the generation and its data rate as the kernel counts it, before its line code
_LANES = (
    (2.5, "SDR", 2.5), (5.0, "DDR", 5.0), (10.0, "QDR", 10.0), (10.3125, "FDR10", 10.0), (14.0625, "FDR", 14.0),
    (25.78125, "EDR", 25.0), (53.125, "HDR", 50.0), (106.25, "NDR", 100.0), (212.5, "XDR", 200.0),
)  # fmt: skip


def add(text: str, graph: Topology) -> bool:
    """Count the links by their width and generation; say whether the text shows any."""
    active: Counter[tuple[str, float]] = Counter()
    down = slower = 0
    found = False
    seen: set[frozenset[tuple[str, str]]] = set()
    for match in _LINK.finditer(text):
        found = True
        ends = _ends(text, match)
        if ends in seen:
            continue  # each end shows it
        if ends:
            seen.add(ends)
        if match[3] != "Active":
            down += 1
            continue
        slower += bool(_COULD.search(match[5]))
        known = _of(int(match[1]), float(match[2])) if match[2] else None
        if known:
            active[known] += 1
    if not found:
        return False
    rates = sorted({rate for _, rate in active})
    graph.facts["fabric"] = {
        "links": {name: count for (name, _), count in sorted(active.items())},
        "down": down,
        "slowest_bytes_per_s": rates[0] if rates else None,
    }
    _judge(graph, active, rates, slower)
    return True


def _ends(text: str, match: re.Match[str]) -> frozenset[tuple[str, str]]:
    """Return a link's two ends by LID and port; none where the line shows not both."""
    own = _OWN.search(text[max(0, match.start() - _BEFORE) : match.start()])
    other = _OTHER.match(match[5])
    return frozenset({(own[1], own[2]), (other[1], other[2])}) if own and other else frozenset()


def _of(width: int, lane: float) -> tuple[str, float] | None:
    """Return "4X EDR" and its data rate; None for a rate of no generation."""
    for signalled, name, gigabits in _LANES:
        limit = limits.infiniband(width * gigabits, name) if abs(lane - signalled) < 0.01 else None
        if limit:
            return f"{width}X {name}", limit.bytes_per_s
    return None


def _judge(graph: Topology, active: Counter[tuple[str, float]], rates: list[float], slower: int) -> None:
    if len(rates) > 1:
        slow = ", ".join(f"{count} {name}" for (name, rate), count in sorted(active.items()) if rate == rates[0])
        finding(
            graph,
            f"iblinkinfo: {slow} of {sum(active.values())} active links: what crosses one of them is limited to "
            f"{format_rate(rates[0])} by the slowest, not by its own port",
        )
    if slower:
        finding(graph, f"iblinkinfo: {slower} active links run below what both ends can do (Could be ...)")
