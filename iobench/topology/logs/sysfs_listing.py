"""A plain listing of sysfs: one line per NUMA node and one per PCI function, as a collecting script prints them.

    /sys/devices/system/node/node0 0-31 dist=10 Node 0 MemTotal: 4812272 kB
    0000:00:06.0 v=0x10de d=0x2335 c=0x030200 cur=32.0 GT/s PCIex16 max=32.0 GT/s PCIex16 numa=-1 drv=nvidia

The link's best (``max``) is the limit; what is emulated has none; numa=-1 is unknown.
"""

from __future__ import annotations

import re
from typing import Any

from iobench.topology import limits
from iobench.topology.graph import Topology
from iobench.topology.logs.numactl import add_node
from iobench.topology.logs.nvidia_smi import add_gpu, number_of
from iobench.topology.logs.text import whole
from iobench.topology.pci import speed, width
from iobench.topology.sysfs import cpu_list
from iobench.units import KIB

_NODE = re.compile(r"^/sys/devices/system/node/node([0-9]{1,4}) ([0-9,-]*) dist=([0-9 ]+) Node [0-9]+ MemTotal: *([0-9]{1,15}) kB", re.MULTILINE)  # fmt: skip  # noqa: E501
_PCI = re.compile(
    r"^([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) v=(0x[0-9a-f]{4}) d=(0x[0-9a-f]{4}) c=(0x[0-9a-f]{6}) "
    r"cur=(.*?)x([0-9]*) max=(.*?)x([0-9]*) numa=(-?[0-9]*) drv=(\S*)\s*$",
    re.MULTILINE,
)
_EMULATED = {"0x1af4", "0x1b36", "0x1234", "0x15ad", "0x1414", "0x80ee"}
_KEPT = re.compile(r"0x(01|02|03|12|0502|0680)")


def add(text: str, graph: Topology) -> bool:
    """Add the nodes and functions of such a listing; say whether the text has any."""
    found = False
    for match in _NODE.finditer(text):
        cpus = cpu_list(match[2])
        add_node(graph, int(match[1]), None if cpus is None else list(cpus), int(match[4]) * KIB)
        graph.add(f"numa:{match[1]}", "numa", distance=[int(word) for word in match[3].split()])
        found = True
    for match in _PCI.finditer(text):
        found = True
        if _KEPT.match(match[4]):
            _add_pci(graph, match)
    return found


def _add_pci(graph: Topology, match: re.Match[str]) -> None:
    where, vendor, device, kind = match[1], match[2], match[3], match[4]
    root, node = f"pci:{where[:7]}", f"pci:{where}"
    emulated = vendor in _EMULATED
    if root not in graph.nodes:
        graph.add(root, "pci", host_bridge=True)
    graph.add(
        node, "pci", **{"class": kind}, vendor=vendor, device=device, driver=match[10] or None,
        emulated=emulated or None, numa=whole(match[9]),
    )  # fmt: skip
    limit = None if emulated else limits.pcie(speed(match[7]), width(match[8]))
    values = (("max_generation", speed(match[7])), ("max_width", width(match[8])), ("current_generation", speed(match[5])), ("current_width", width(match[6])))  # fmt: skip  # noqa: E501
    attrs: dict[str, Any] = {name: value for name, value in values if value}
    if limit:
        attrs["warn_bytes_per_s"] = limit.warn_bytes_per_s
    source = limit.source if limit else "an emulated device's link is not physical" if emulated else "unknown: no link"
    if not any(link.b == node for link in graph.links):
        graph.link(root, node, "pcie", limit.bytes_per_s if limit else None, source=source, attrs=attrs)
    if vendor == "0x10de" and kind.startswith(("0x0300", "0x0302")):
        number = number_of(graph, where)
        add_gpu(
            graph, len(graph.of("gpu")) if number is None else number, address=where, numa=whole(match[9]),
            model_name=limits.gpu_product(vendor, device),
        )  # fmt: skip
