"""What tools printed about a machine (nvidia-smi, ibstat, numactl, lspci, cxl list, NCCL's file) as its topology."""

from __future__ import annotations

import re

from iobench.importers.imported import Imported
from iobench.importers.log import Log
from iobench.units import MIB

TITLE = "a machine's state"
_MOST = 2 * MIB  # characters; no tool prints more about one machine
STATE = True

_MARKS = re.compile(
    r"^[ \t>]*(?:GPU0[ \t]+X\b|available: \d+ nodes \(|node \d+ (?:cpus|size):|Attached GPUs\s+: |CA '[^']+'$|"
    r"hca_id:\s|Infiniband device '|Link \d+: (?:[\d.]+ GB/s|<?inactive)|LnkCap:|<system version=|"
    r"(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] "
    r"(?:Host bridge|PCI bridge|3D controller|VGA compatible controller)[^\n]{0,20}: |"
    r"/sys/devices/system/node/node\d+ \S* ?dist=|"
    r"(?:[a-z_.]{2,40}(?: \[[\w%/ ]{1,12}\])?, ?){0,60}"
    r"(?:pstate|pcie\.link\.\w+\.\w+|pci\.bus_id|memory\.total \[MiB\])(?:,|$))"
    r"|==\( *\d+X +[\d.]+ +Gbps +\w+/|--query-gpu=\S*pcie\.link"
    r"|\"(?:memdev|chardev)\"\s*:|^\| NVIDIA-SMI ",
    re.MULTILINE,
)


def recognise(head: str) -> float:
    """Tell whether some part of the text is such output; the readers then take what is theirs."""
    return 0.6 if _MARKS.search(head) else 0.0


def read(log: Log) -> Imported:
    """Return the graph of all that the log says of the machine."""
    from iobench.topology import logs

    imported = Imported()
    graph = logs.merge([log.text[:_MOST]])
    if len(log.text) > _MOST:
        imported.problem("only the log's first 2 MiB were searched for a machine's state")
    if graph.facts.get("read"):
        imported.topology = graph.to_dict()
        imported.machine["name"] = graph.name
    else:
        imported.incomplete = "it looks like output about a machine, but no part of it could be read"
    for sentence in graph.facts.get("findings", ()):
        imported.problem(str(sentence))
    return imported
