"""CUDA's sample p2pBandwidthLatencyTest: matrices of bandwidth and latency, peer access off and on.

The sample itself says that it is no benchmark. What its numbers count: off the diagonal a copy once, for bidirectional
matrices both directions together; on the diagonal, a copy within a GPU, what it reads and writes. The size of a copy is
not printed (40,000,000 elements of 4 bytes unless changed), and the data is never checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from iobench.importers.formats._rows import keep, number, rated, timed, untag
from iobench.importers.imported import Imported
from iobench.importers.log import Log
from iobench.record import Leg
from iobench.topology.graph import Topology
from iobench.units import GB, US

TITLE = "p2pBandwidthLatencyTest"
STATE = False

_TITLE = re.compile(
    r"^(Unidirectional|Bidirectional) P2P=(Enabled|Disabled) Bandwidth (?:\(P2P (Writes|Reads)\) )?(?:Matrix )?\(GB/s\)"
)
_LATENCY = re.compile(r"^(?:P2P=(Enabled|Disabled) Latency (?:\(P2P (Writes|Reads)\) )?Matrix \(us\))")
_HEADER = re.compile(r"^\s*(GPU|CPU|D\\D)((?:\s+[0-9]+)+)\s*$")
_ROW = re.compile(r"^\s*([0-9]{1,3})((?:\s+\S+)+)\s*$")
_DEVICE = re.compile(r"^Device: ([0-9]{1,3}), (.+?), pciBusID: ([0-9a-f]{1,2}), pciDeviceID: ([0-9a-f]{1,2}), pciDomainID: ?([0-9a-f]{1,8})")  # fmt: skip  # noqa: E501
_AGGREGATE = "mean over the sample's repetitions of one copy"


@dataclass
class Table:
    """One matrix: its title's words, where it stands, its columns and rows."""

    title: str
    number: int
    latency: bool
    both: bool = False
    peer: bool = False
    direction: str = ""
    source: str = "GPU"
    columns: list[int] = field(default_factory=list)
    rows: dict[int, tuple[int, list[str]]] = field(default_factory=dict)


def recognise(head: str) -> float:
    """Tell it by its banner or the titles of its matrices."""
    if "[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]" in head:
        return 1.0
    if "P2P=" not in head:
        return 0.0
    return (
        0.95
        if re.search(r"directional P2P=(?:En|Dis)abled Bandwidth .*\(GB/s\)", head)
        else (0.9 if re.search(r"\bP2P=(?:En|Dis)abled Latency .*Matrix \(us\)", head) else 0.0)
    )


def read(log: Log) -> Imported:
    """Read every cell of every matrix."""
    imported = Imported()
    lines = [untag(line) for line in log.lines]
    last = 0
    for table in _tables(lines, imported):
        _take(imported, table)
        last = table.number
    if not last:
        _miss(imported, "no matrix is in the log")
    elif not any("Latency" in line and "CPU" not in line and _LATENCY.match(line) for line in lines):
        _miss(imported, "the log ends before the matrices of latency")
    imported.normalise("copies between GPUs count their bytes once; sums of both directions are halved")
    _devices(lines, imported)
    return imported


def _tables(lines: list[str], imported: Imported) -> Iterator[Table]:
    table: Table | None = None
    title = latency = None
    for place, line in enumerate(lines, start=1):
        found, found_latency = _TITLE.match(line), _LATENCY.match(line)
        header = _HEADER.match(line)
        row = _ROW.match(line)
        if found or found_latency:
            if table:
                yield table
            table, title, latency = None, found, found_latency
        elif header and (title or latency):
            if table:
                yield table
            table = _table(title, latency, place, header)
        elif row and table and int(row[1]) in table.columns:
            table.rows[int(row[1])] = (place, row[2].split())
        elif line.strip() and table:
            if row:
                imported.skip(place, line, "a row of a matrix whose GPU is not in its header")
            yield table
            table, title, latency = None, None, None
    if table:
        yield table


def _table(title: re.Match[str] | None, latency: re.Match[str] | None, number: int, header: re.Match[str]) -> Table:
    columns = [int(word) for word in header[2].split()]
    source = "CPU" if header[1] == "CPU" else "GPU"
    if title:
        return Table(title[0], number, False, title[1] == "Bidirectional", title[2] == "Enabled", _way(title[3]), source, columns)  # fmt: skip  # noqa: E501
    assert latency is not None
    return Table(latency[0], number, True, False, latency[1] == "Enabled", _way(latency[2]), source, columns)


def _way(words: str | None) -> str:
    return {"Writes": "write", "Reads": "read"}.get(words or "", "")


def _miss(imported: Imported, sentence: str) -> None:
    imported.incomplete = f"{imported.incomplete}; {sentence}" if imported.incomplete else sentence


def _take(imported: Imported, table: Table) -> None:
    missing = [column for column in table.columns if column not in table.rows]
    if missing:
        _miss(imported, f"{table.title}: no row for GPU {', '.join(map(str, missing))}")
    for row, (place, cells) in table.rows.items():
        imported.rows += 1
        if len(cells) != len(table.columns):
            imported.skip(place, " ".join(cells), f"{len(cells)} cells under {len(table.columns)} columns")
            continue
        for column, text in zip(table.columns, cells, strict=True):
            _cell(imported, table, place, row, column, text)


def _cell(imported: Imported, table: Table, place: int, row: int, column: int, text: str) -> None:
    value = number(text)
    point: dict[str, Any] = {"op": "copy", "gpu": row, "peer": column, "peer_access": table.peer}
    if table.direction:
        point["direction"] = table.direction
    evidence = {"row": place, "cell": [row, column], "printed": text, "unit": "us" if table.latency else "GB/s", "title": table.title}  # fmt: skip  # noqa: E501
    if table.latency:
        point |= {"op": "copy", "clock": "the host's" if table.source == "CPU" else "the GPU's"}
        point["within"] = row == column
        line = timed("p2p", point, (value or 0.0) * US, aggregate=_AGGREGATE, evidence=evidence, mode="small-copy")
    elif row == column:
        point = {"kernel": "memcpy", "gpu": row, "buffers": "one", "measured": table.title[:60]}
        line = rated("hbm", point, (value or 0.0) * GB / 2, factor=2, aggregate=_AGGREGATE, evidence=evidence,
                     moved_rule="read and written, as printed", mode="events")  # fmt: skip
        if line is not None:
            line.legs = [Leg(f"vram:{row}", f"gpu:{row}")]
    else:
        point |= {"traffic": "both" if table.both else "one", "mode": "events"}
        share = 0.5 if table.both else 1.0  # the sample prints the sum of both directions
        rule = "one direction: half of the printed sum of both" if table.both else "the copy's bytes, once"
        rate = (value or 0.0) * share * GB
        line = rated("p2p", point, rate, aggregate=_AGGREGATE, evidence=evidence, mode="events", moved_rule=rule)
    keep(imported, line, place, f"GPU {row}, {column}: {text}", "no positive number")


def _devices(lines: list[str], imported: Imported) -> None:
    from iobench.topology.logs.nvidia_smi import add_gpu

    graph = Topology("from-p2pBandwidthLatencyTest")
    graph.add("machine", "machine")
    for line in lines:
        if match := _DEVICE.match(line):
            where = f"{int(match[5], 16):04x}:{int(match[3], 16):02x}:{int(match[4], 16):02x}.0"
            add_gpu(graph, int(match[1]), model_name=match[2], address=where)
    if graph.of("gpu"):
        imported.topology = graph.to_dict()
