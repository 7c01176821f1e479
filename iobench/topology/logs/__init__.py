"""A machine's graph from the text that tools printed about it: one file per tool, all merged into one graph.

A file may hold the output of several tools one below the other; each reader takes its own parts and leaves the rest.
What a log does not say is unknown. ``merge`` is pure: it reads no file and asks no machine.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from iobench import files
from iobench.errors import UserError
from iobench.topology.graph import Topology
from iobench.topology.logs.text import clean
from iobench.units import MIB

# In this order: who knows addresses comes before who knows numbers only, who knows nodes before who links them.
READERS = (
    "numactl", "sysfs_listing", "nvidia_smi", "nvidia_query", "nccl_xml", "lspci", "nvidia_topo", "nvlink_status",
    "infiniband", "iblinkinfo", "cxl_list",
)  # fmt: skip
_MOST_BYTES = 64 * MIB
_KNOWN = (
    "nvidia-smi, nvidia-smi -q, nvidia-smi --query-gpu, nvidia-smi topo -m, nvidia-smi nvlink -s, ibstat, ibv_devinfo, "
    "iblinkinfo, numactl -H, lspci -vv, daxctl list, cxl list, or the file of NCCL_TOPO_DUMP_FILE"
)

Reader = Callable[[str, Topology], bool]


def read(paths: Iterable[str | Path]) -> Topology:
    """Return the graph that the logs of ``paths`` show together; UserError where one of them shows nothing."""
    texts = {str(path): _text(Path(path)) for path in paths}
    silent = [name for name, text in texts.items() if not tools(text)]
    if silent:
        from iobench.importers import foreign

        if why := _oddities(texts[silent[0]]):
            raise UserError(f"{silent[0]}: nothing could be read: {why}: give the tool's whole output")
        if other := foreign.known(texts[silent[0]]):
            raise UserError(f"{silent[0]} is {other[0]}: iobench does not read it; {other[1]}")
        raise UserError(f"{silent[0]}: no output about a machine that iobench knows: give that of {_KNOWN}")
    return merge(list(texts.values()))


def merge(texts: Sequence[str]) -> Topology:
    """Return one graph of all texts. Which tools were found stands in ``facts["read"]``, oddities in ``findings``."""
    from iobench.topology.logs.finish import finish

    graph = Topology("from-logs")
    graph.add("machine", "machine")
    found: list[str] = []
    cleaned = [clean(text) for text in texts]
    for name in READERS:
        add = _reader(name)
        if sum(add(text, graph) for text in cleaned):  # every text, not only up to the first that has some
            found.append(name)
    graph.facts["read"] = found
    finish(graph)
    return graph


def tools(text: str) -> list[str]:
    """Return the readers that find something of theirs in a text."""
    cleaned = clean(text)
    return [name for name in READERS if _reader(name)(cleaned, _scratch())]


def _oddities(text: str) -> str:
    """Return what the readers say of a text in which they find nothing."""
    graph, cleaned = _scratch(), clean(text)
    for name in READERS:
        _reader(name)(cleaned, graph)
    return "; ".join(str(sentence) for sentence in graph.facts.get("findings", ())[:3])


def _scratch() -> Topology:
    graph = Topology()
    graph.add("machine", "machine")
    return graph


def _reader(name: str) -> Reader:
    function: Reader = importlib.import_module(f"iobench.topology.logs.{name}").add
    return function


def _text(path: Path) -> str:
    try:
        with files.plain(path, "a tool's output") as file:
            data = file.read(_MOST_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        why = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"cannot read {str(path)!r}: {why}; give a file with a tool's output") from error
    if len(data) > _MOST_BYTES:
        raise UserError(f"{path} is larger than any output about one machine: cut out the part that is")
    return data.decode("utf-8", "replace")
