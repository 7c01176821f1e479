"""Reads the table of NCCL's own model (NCCL_DEBUG_SUBSYS=TUNING): the latency and bandwidth it assumes of each way.

NCCL computes these from the graph it found and picks the way by them: they are no measurements. Cells are
"us/GB/s" (algorithm bandwidth, 1e9 bytes); one of bandwidth 0 is a way that NCCL does not take.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from iobench.units import GB

_CELL = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?) ?/ *([0-9]{1,9}(?:\.[0-9]{1,6})?)")
_US = 1e-6
_MOST = 1000  # a log can't make this grow without bounds; NCCL knows 5 operations, 7 algorithms, 3 protocols


@dataclass
class Model:
    """The tables read so far; ``ways`` has (op, algorithm, protocol) -> (seconds, bytes/s)."""

    ways: dict[tuple[str, str, str], tuple[float, float]] = field(default_factory=dict)
    _algorithms: list[str] = field(default_factory=list)
    _columns: list[tuple[str, str]] = field(default_factory=list)

    def add(self, said: str, op_of: Callable[[str], str | None]) -> None:
        """Take one line of a table: a heading gives the columns, an operation's row the cells below them."""
        title, *cells = (cell.strip() for cell in said.strip().strip("|").split("|"))
        if title == "Latency/AlgBw":  # NCCL before 2.10: one heading, "Tree/    LL"
            pairs = [cell.partition("/") for cell in cells]
            self._columns = [(algo.strip().lower(), proto.strip().lower()) for algo, _, proto in pairs]
        elif title == "Algorithm":
            self._algorithms, self._columns = cells, []
        elif title == "Protocol" and self._algorithms and len(cells) % len(self._algorithms) == 0:
            each = len(cells) // len(self._algorithms)
            self._columns = [(self._algorithms[n // each].lower(), proto.lower()) for n, proto in enumerate(cells)]
        elif (op := op_of(title)) and len(cells) == len(self._columns):
            self._row(op, cells)

    def _row(self, op: str, cells: list[str]) -> None:
        found = [_CELL.fullmatch(cell) for cell in cells]
        for (algo, proto), cell in zip(self._columns, found, strict=True):
            if cell and float(cell[2]) > 0 and len(self.ways) < _MOST:
                self.ways[op, algo, proto] = (float(cell[1]) * _US, float(cell[2]) * GB)

    def facts(self) -> list[dict[str, Any]]:
        """Return one entry per way, for a header's machine part."""
        return [
            {"op": op, "algo": algo, "proto": proto, "seconds": seconds, "bytes_per_s": bytes_per_s}
            for (op, algo, proto), (seconds, bytes_per_s) in self.ways.items()
        ]
