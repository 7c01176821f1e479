"""The matrix of ``nvidia-smi topo -m`` (and of ``topo -p2p``): NVLinks between GPUs, what lies between the others.

Columns are told by the header, a row by the X on the diagonal. NVLink counts that differ between the two directions
of a pair are a finding. NUMA affinity of several nodes, N/A or -1 is unknown. Relations over PCIe (PIX, PXB, PHB, NODE,
SYS) have no rate: they stand in the attribute ``relations`` of each end.
"""

from __future__ import annotations

import re
from typing import Any

from iobench.topology import limits
from iobench.topology.graph import Topology
from iobench.topology.logs.nvidia_smi import add_gpu
from iobench.topology.logs.text import finding, one_node
from iobench.topology.sysfs import cpu_list

_DEVICE = re.compile(
    r"GPU[0-9]+|NIC[0-9]+|(?:roce|rdma|irdma|ib)[a-z0-9]*[0-9]|[a-z][a-z0-9]*_[a-z0-9_]*[0-9]+|mlx[0-9]+_[0-9]+|hfi[0-9_]+"
)
_RELATION = re.compile(r"X|NV[0-9]+|PIX|PXB|PHB|NODE|SYS|SOC|N/A|XPB|C2C")
_PEER = re.compile(r"X|OK|CNS|GNS|TNS|NS|U|DR|N/A")
_PEER_WORDS = {"OK", "CNS", "GNS", "TNS", "NS", "U", "DR"}
_TITLES = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
_LIKE_HEADER = re.compile(r"^[ \t]*GPU0[ \t]+GPU1[ \t]", re.MULTILINE)
_LEGEND = re.compile(r"^[ \t]*(NIC[0-9]+): (\S+)[ \t]*$", re.MULTILINE)
_MOST_MIG = 64  # rows of instances below the GPUs
_MOST_LINKS = 18  # of one GPU, of any generation
_MOST_DIRECT = 12  # between two GPUs wired to each other


def add(text: str, graph: Topology) -> bool:
    """Add what every matrix in the text shows; say whether there was one."""
    lines = text.split("\n")
    names = {match[1]: match[2] for match in _LEGEND.finditer(text)}
    found = False
    for number, line in enumerate(lines):
        header = _header(line)
        if header:
            titles = sum(title in line for title in _TITLES)
            rows = _rows(header, titles, lines[number + 1 : number + 4 + len(header) + _MOST_MIG], graph)
            words = {cell for cells, _ in rows.values() for cell in cells}
            if words & _PEER_WORDS and all(_PEER.fullmatch(cell) for cell in words):
                _add_peers(graph, header, rows)
                found = True
            elif rows:
                _add_matrix(graph, header, rows, names)
                found = True
    rocm = "between two GPUs" in text  # rocm-smi's matrices have such headings
    if not found and not rocm and _LIKE_HEADER.search(text) and not graph.facts.get("findings"):
        finding(graph, "nvidia-smi topo: the heading is not nvidia-smi's: columns were renamed or left out")
    return found


Rows = dict[str, tuple[list[str], list[str]]]


def _header(line: str) -> list[str]:
    """Return the names of the columns that are devices; none where the line is no header."""
    words = line.split()
    if not words or not words[0].startswith("GPU"):
        return []
    names: list[str] = []
    for word in words:
        if not _DEVICE.fullmatch(word):
            break
        names.append(word)
    rest = line.split(names[-1], 1)[1] if names else "?"
    trailing = rest.replace("CPU Affinity", "").replace("NUMA Affinity", "").replace("GPU NUMA ID", "").strip()
    return names if names[:1] == ["GPU0"] and not trailing and len(set(names)) == len(names) else []


def _rows(header: list[str], titles: int, lines: list[str], graph: Topology) -> Rows:
    rows: Rows = {}
    for line in lines:
        words = line.split()
        if not words:
            if rows:
                break
            continue
        if words[0] == "MIG":
            finding(graph, "nvidia-smi topo: MIG instances stand below their GPU: they are parts of it, and left out")
            continue
        if words[0] not in header or len(words) < 2:
            break
        row = _row(header, titles, words[0], line)
        if row is None and not any(_RELATION.fullmatch(word) for word in words[1:]):
            break  # another tool's matrix, as rocm-smi's
        if row is None:
            finding(graph, f"nvidia-smi topo: the row of {words[0]} does not fit the header and was left out")
        else:
            rows[words[0]] = row
    missing = [name for name in header if name not in rows]
    if rows and missing:
        finding(graph, f"nvidia-smi topo: no row for {', '.join(missing)}: the matrix is incomplete")
    return rows


def _row(header: list[str], titles: int, name: str, line: str) -> tuple[list[str], list[str]] | None:
    """Return a row's cells and what stands behind them; None where the X is not on the diagonal."""
    words = line.split()[1:]
    cells, rest = words[: len(header)], words[len(header) :]
    if "\t" in line:  # an empty cell has its tab: what follows is not what it would be by words
        rest = [cell.strip() for cell in line.rstrip("\n").split("\t")[1 + len(header) :]]
    elif len(rest) < titles and not re.search(r"[0-9][-,][0-9]", rest[0] if rest else ""):
        rest = []  # tabs became spaces and a cell is empty: which one can't be told
    place = header.index(name)
    if len(cells) < len(header) or cells[place] != "X" or cells.count("X") != 1:
        return None
    if not all(_RELATION.fullmatch(cell) or _PEER.fullmatch(cell) for cell in cells):
        return None
    return cells, rest


def _add_peers(graph: Topology, header: list[str], rows: Rows) -> None:
    for name, (cells, _) in rows.items():
        peers = {node_of(other, {}): cell == "OK" for other, cell in zip(header, cells, strict=True) if cell not in {"X", "U", "N/A"}}  # fmt: skip  # noqa: E501
        graph.add(node_of(name, {}), "gpu", peer_gpus=peers or None)


def _add_matrix(graph: Topology, header: list[str], rows: Rows, names: dict[str, str]) -> None:
    for name in header:
        if name.startswith("GPU"):
            add_gpu(graph, int(name[3:]))  # also where its own row is missing
    for name, (cells, rest) in rows.items():
        relations = {
            node_of(other, names): cell
            for other, cell in zip(header, cells, strict=True)
            if cell not in {"X", "N/A"} and not cell.startswith("NV")
        }
        if name.startswith("GPU"):
            cpus = cpu_list(rest[0]) if rest and rest[0] else None
            numa = one_node(rest[1]) if len(rest) > 1 else None
            add_gpu(graph, int(name[3:]), numa=numa, cpu_affinity=list(cpus) if cpus else None)
            graph.add(node_of(name, names), "gpu", relations=relations or None)
        else:
            graph.add(node_of(name, names), "port", device=names.get(name, name), relations=relations or None)
    _add_links(graph, header, rows)


def node_of(name: str, names: dict[str, str]) -> str:
    """Return the node of a column: ``gpu:0`` for GPU0, ``port:mlx5_0/1`` for a NIC by its name in the legend."""
    return f"gpu:{int(name[3:])}" if name.startswith("GPU") else f"port:{names.get(name, name)}/1"


def _add_links(graph: Topology, header: list[str], rows: Rows) -> None:
    gpus = [name for name in header if name.startswith("GPU") and name in rows]
    counts = {
        (a, b): int(cell[2:])
        for a in gpus
        for b, cell in zip(header, rows[a][0], strict=True)
        if cell.startswith("NV") and int(cell[2:]) > 0 and b.startswith("GPU")
    }
    for a in gpus:
        for b, cell in zip(header, rows[a][0], strict=True):
            if cell.startswith("NV") and not b.startswith("GPU"):
                finding(graph, f"{a} shows {cell} to {b}, which is no GPU: the columns of that row are shifted")
    odd = sorted((a, b) for a, b in counts if a < b and b in rows and counts.get((b, a)) != counts[a, b])
    odd += sorted((a, b) for a, b in counts if a > b and (b, a) not in counts and b in rows)
    for a, b in odd:
        finding(graph, f"{a} shows {counts[a, b]} NVLinks to {b}, which shows {counts.get((b, a), 0)} back")
    _find_partial(graph, counts)
    switched = _switched(gpus, counts)
    if switched:
        _add_switch(graph, gpus, counts, assumed=switched == "assumed")
        return
    for (a, b), count in counts.items():
        if int(a[3:]) < int(b[3:]) or (b, a) not in counts:
            lower = min(count, counts.get((b, a), count))
            _nvlink(graph, f"gpu:{int(a[3:])}", f"gpu:{int(b[3:])}", lower)


def _find_partial(graph: Topology, counts: dict[tuple[str, str], int]) -> None:
    """Name bridged pairs with fewer links than the others: a bridge may be half seated (nccl#557).

    Only where every GPU has one such partner: in a mesh of GPUs different counts are the design.
    """
    bridged = {(a, b): count for (a, b), count in counts.items() if sum(pair[0] == a for pair in counts) == 1}
    if len(bridged) < len(counts) or len(counts) < 2:
        return
    most = max(counts.values())
    for (a, b), count in sorted(counts.items()):
        if count < most and int(a[3:]) < int(b[3:]):
            finding(
                graph, f"partial links: {a} and {b} have {count} NVLinks, other pairs {most}: is their bridge seated?"
            )


def _switched(gpus: list[str], counts: dict[tuple[str, str], int]) -> str:
    """Tell whether the links lead to switches: no GPU has as many links as the sum over its peers would need."""
    totals = [sum(count for (a, _), count in counts.items() if a == gpu) for gpu in gpus]
    if any(total > _MOST_LINKS for total in totals):
        return "yes"
    return "assumed" if any(count > _MOST_DIRECT for count in counts.values()) else ""


def _add_switch(graph: Topology, gpus: list[str], counts: dict[tuple[str, str], int], assumed: bool) -> None:
    graph.add("nvswitch:0", "nvswitch", assumed=assumed or None)
    for gpu in gpus:
        mine = [count for (a, _), count in counts.items() if a == gpu]
        if mine:
            _nvlink(graph, f"gpu:{int(gpu[3:])}", "nvswitch:0", max(mine))
    most = max(counts.values())
    for gpu in gpus:
        mine = [count for (a, _), count in counts.items() if a == gpu]
        if mine and max(mine) < most:
            finding(graph, f"gpu:{int(gpu[3:])} has {max(mine)} active NVLinks, others have {most}")


def _nvlink(graph: Topology, a: str, b: str, count: int) -> None:
    generation = generation_of(graph.nodes[a].get("model_name"))
    limit = limits.nvlink(generation, count)
    attrs: dict[str, Any] = {"links": count}
    if generation:
        attrs["generation"] = generation
    source = f"nvidia-smi topo: NV{count}; "
    source += limit.source if limit else "unknown: the log does not name the NVLink version"
    old = [link for link in graph.links if link.kind == "nvlink" and {link.a, link.b} == {a, b}]
    for link in old:
        graph.links.remove(link)
    graph.link(a, b, "nvlink", limit.bytes_per_s if limit else None, source=source, attrs=attrs)


_GENERATIONS = ((r"\bP100\b", 1), (r"\bV100", 2), (r"\b(A100|A800|A30|A40|A6000|A5000|3090)\b", 3), (r"\b(H100|H200|H800|H20|GH200)\b", 4), (r"\b(B100|B200|B300|GB200|GB300)\b", 5))  # fmt: skip  # noqa: E501


def generation_of(product: str | None) -> int | None:
    """Return the NVLink generation of a product."""
    return next((number for pattern, number in _GENERATIONS if re.search(pattern, product or "")), None)
