"""The configuration file of NCCL's example tuner plugin.

Format: NVIDIA/nccl ext-tuner/example/README.md and nccl_tuner.conf (2.27 and newer): one CSV line
collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks per range of bytes, both ends
inside; "#" begins a comment, no blanks after commas, lines below 256 characters, the first line that matches
counts. channels -1 keeps NCCL's choice. Sizes are NCCL's nBytes: S of all-reduce, of broadcast and of reduce, and the
total of all-gather and reduce-scatter.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from iobench.errors import UserError
from iobench.export.format import Format, Options, Source
from iobench.fit.scale import gather
from iobench.record import Record

_NAMES = {
    "all_reduce": "allreduce", "all_gather": "allgather", "reduce_scatter": "reducescatter",
    "broadcast": "broadcast", "reduce": "reduce",
}  # fmt: skip
ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
PROTOCOLS = ("ll", "ll128", "simple")
_SPELLINGS = {"nvlstree": "nvls_tree", "collnetdirect": "collnet_direct", "collnetchain": "collnet_chain"}
_HEAD = "# collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks"


def write(source: Source, options: Options) -> str:
    """Return the lines that pin the fastest algorithm and protocol measured at each size."""
    if source.run is None:
        raise UserError(f"{source.name} keeps no algorithms of single records: export the run it was fitted to")
    found: dict[tuple[str, int, int], list[Record]] = {}
    for group in gather.collectives(source.run):
        if group.axes["op"] in _NAMES and (not options.op or group.axes["op"] == options.op):
            for (ranks, nodes), records in group.by_count.items():
                known = [record for record in records if _choice(record)]
                found.setdefault((str(group.axes["op"]), nodes, ranks), []).extend(known)
    lines = [line for key, records in sorted(found.items()) for line in _lines(key, records)]
    if not lines:
        raise UserError(
            f"{source.name} holds no time whose algorithm and protocol are known, so no tuner file can rest on it: "
            "measure with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,TUNING, or force NCCL_ALGO and NCCL_PROTO in turn"
        )
    head = [
        f"# written by iobench out of {source.name} on {source.models.machine}; outside these ranges NCCL decides",
        _HEAD,
    ]
    return "\n".join([*(line[:250] for line in head), *lines]) + "\n"


def _lines(key: tuple[str, int, int], records: Iterable[Record]) -> Iterator[str]:
    op, nodes, ranks = key
    best: dict[int, Record] = {}
    for record in records:
        nbytes = record.point["nbytes"]
        if nbytes not in best or record.time.median < best[nbytes].time.median:
            best[nbytes] = record
    sizes = sorted(best)
    for first, last, choice in _ranges(sizes, [_choice(best[size]) for size in sizes]):
        yield f"{_NAMES[op]},{first},{last},{choice[0]},{choice[1]},-1,{nodes},{ranks}"


def _ranges(sizes: list[int], choices: list[tuple[str, str]]) -> Iterator[tuple[int, int, tuple[str, str]]]:
    """Yield (first, last, choice) of neighbours with one choice; two choices meet at their sizes' geometric mean."""
    first = sizes[0] if sizes else 0
    for index, size in enumerate(sizes):
        if index + 1 < len(sizes) and choices[index + 1] == choices[index]:
            continue
        last = math.isqrt(size * sizes[index + 1]) if index + 1 < len(sizes) else size
        yield first, last, choices[index]
        first = last + 1


def _choice(record: Record) -> tuple[str, str]:
    """Return (algorithm, protocol) as the file spells them; () as a falsy pair where the record does not say.

    What the user forced is in the point, what NCCL chose by itself in the evidence that its tuning lines left.
    """
    for named in (record.point, *_logged(record)):
        algorithm, protocol = (str(named.get(name, "")).lower() for name in ("algo", "proto"))
        algorithm = _SPELLINGS.get(algorithm, algorithm)
        if algorithm in ALGORITHMS and protocol in PROTOCOLS:
            return algorithm, protocol
    return ()  # type: ignore[return-value]


def _logged(record: Record) -> Iterator[Mapping[str, Any]]:
    """Yield what the tuning log says of the record's own size."""
    told = record.first.evidence.get("tuning")
    for entry in told if isinstance(told, list) else [told]:
        if isinstance(entry, Mapping) and entry.get("nbytes", record.nbytes) == record.nbytes:
            yield entry


FORMAT = Format("nccl-tuner", "NCCL's example tuner plugin", write)
