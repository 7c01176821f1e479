"""The class of a machine, from the names in a run's header, and the limits that follow from it.

For records without legs: imported logs and published curves say "8 x H100" and no more. The rows are those of
topologies/classes.toml; the rates come from limits.toml. What no row matches has no limit.
"""

from __future__ import annotations

import functools
import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from iobench import busbytes
from iobench.check import collective
from iobench.check.bottleneck import Limit
from iobench.paths import data_dir
from iobench.record import Line, Run
from iobench.topology import limits
from iobench.topology.graph import Topology
from iobench.units import GB, from_gigabits

FILE = "classes.toml"
_LANES = 16
_MOST_WORDS = 400
_NVLS_OFF = re.compile(r"\bNVLS\b[^.;,]*\b(off|disabled)\b|NCCL_NVLS_ENABLE=0", re.IGNORECASE)


@dataclass(frozen=True)
class Machine:
    """A class of machines (``row`` of classes.toml), the ports between its nodes, and whether NVLS was turned off."""

    id: str
    row: Mapping[str, Any]
    port: Mapping[str, Any]
    nvls_off: bool = False

    def limit(self, line: Line) -> Limit | None:
        """Return the least time that the line's bytes need on this class of machine, None where that is unknown."""
        if not line.moved > 0:
            return None
        if str(line.point.get("op", "")) in busbytes.OPS:
            return self._collective(line)
        found = _COPIES.get(line.probe, lambda _machine, _line: None)(self, line)
        if found is None:
            return None
        where = f"{found[0]}{self.of}"
        rate = found[1]
        return Limit(line.moved / rate.bytes_per_s, line.moved, rate.bytes_per_s, where, rate.source,
                     rate.warn_bytes_per_s)  # fmt: skip

    @property
    def nvlink(self) -> limits.Limit | None:
        """The NVLinks of one GPU, per direction."""
        return limits.nvlink(self.row.get("nvlink_generation"), int(self.row.get("nvlinks", 0)))

    @property
    def host(self) -> limits.Limit | None:
        """What joins one GPU to its host, per direction."""
        if "host_gigabytes_per_s" in self.row:
            return limits.Limit(self.row["host_gigabytes_per_s"] * GB, f"{FILE}: {self.row['host_source']}")
        return limits.pcie(self.row.get("pcie_generation"), _LANES)

    @property
    def network(self) -> limits.Limit | None:
        """One port to other nodes, per direction."""
        if "gigabits" not in self.port:
            return None
        return limits.Limit(from_gigabits(self.port["gigabits"]), f"{FILE}: {self.port['source']}")

    def algorithm(self, line: Line) -> str:
        """Return the algorithm as far as the line or the environment tells it, "" for unknown."""
        tuning = line.evidence.get("tuning")
        named = line.point.get("algo") or (tuning.get("algo") if isinstance(tuning, Mapping) else None)
        if named:
            return str(named)
        off = self.nvls_off or any(_NVLS_OFF.search(note) for note in line.notes)
        return "ring or tree (NVLS off)" if off else ""

    def _collective(self, line: Line) -> Limit | None:
        op, point = str(line.point["op"]), line.point
        ranks, nodes = point.get("ranks"), point.get("nodes") or 1
        if not (isinstance(ranks, int) and isinstance(nodes, int) and ranks >= 2 and nodes >= 1):
            return None
        found = self.cap(op, ranks, nodes, str(point.get("transport", "")), self.algorithm(line))
        if found is None:
            return None
        cap, source = found
        if not point.get("transport") and nodes == 1 and not self._must_be_nvlink(line):
            return None  # the log does not prove the way, and the bytes may have gone by the host
        return Limit(line.moved / cap.bytes_per_s, line.moved, cap.bytes_per_s, f"{cap.where}{self.of}",
                     source)  # fmt: skip

    def _must_be_nvlink(self, line: Line) -> bool:
        """Tell whether the line is faster than this class's host links: then no other way is left."""
        others = self.host.bytes_per_s if self.host else 0.0
        return line.moved > others * _fastest(line)

    def cap(self, op: str, ranks: int, nodes: int, transport: str, algo: str) -> tuple[collective.Cap, str] | None:
        """Return the highest bus bandwidth of a collective and its source, None where the links are unknown."""
        if nodes > 1 and transport != "nvlink":
            port = self.network if collective.is_network(transport) or not transport else None
            return (collective.network_cap(op, ranks, nodes, port.bytes_per_s, algo), port.source) if port else None
        if transport in ("nvlink", "") and self.nvlink:
            switch = bool(self.row.get("in_switch")) and not algo.endswith("(NVLS off)")
            return collective.nvlink_cap(op, ranks, self.nvlink.bytes_per_s, algo, switch), self.nvlink.source
        if transport == "pcie" and self.host:
            return collective.Cap(self.host.bytes_per_s, "PCIe"), self.host.source
        return None

    @property
    def of(self) -> str:
        """Words to stand behind a link's name."""
        return f" of class {self.id}" if self.id else ""


def _fastest(line: Line) -> float:
    """Return the least seconds of one operation, infinity where nothing was measured."""
    return min((min(row) for row in line.seconds if row), default=math.inf) / line.ops


def machine_of(run: Run, topology: Topology | None) -> Machine | None:
    """Return the class of the run's machine; None where neither its GPUs nor its ports are known."""
    words = " ; ".join(_words(run, topology))
    row, port = _first("class", words), _first("port", words)
    if not row and not port:
        return None
    environment = run.header.environment
    forced = environment.get("NCCL_ALGO", "")
    off = environment.get("NCCL_NVLS_ENABLE") == "0" or bool(forced and "nvls" not in forced.lower())
    return Machine(str(row.get("id", "")), row, port, off)


def machine_named(words: str) -> Machine | None:
    """Return the class that ``words`` ("A100 HDR") tell, None for an unknown one."""
    row, port = _first("class", words), _first("port", words)
    return Machine(str(row.get("id", "")), row, port) if row or port else None


@functools.cache
def table() -> dict[str, Any]:
    """Return classes.toml as plain data."""
    with (data_dir("topologies") / FILE).open("rb") as file:
        return tomllib.load(file)


def _first(kind: str, words: str) -> Mapping[str, Any]:
    return next((row for row in table()[kind] if re.search(row["name"], words)), {})


def _words(run: Run, topology: Topology | None) -> list[str]:
    """Return the names that may tell the class: of the GPUs first, then everything the header says of the machine."""
    gpus = [str(node.get("model_name", "")) for node in (topology.of("gpu") if topology else [])]
    told = list(_strings({name: value for name, value in run.header.machine.items() if name != "packages"}))
    return [*dict.fromkeys(gpus), *told[:_MOST_WORDS]]


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _strings(item)


def _pcie(machine: Machine, line: Line) -> tuple[str, limits.Limit] | None:
    host = machine.host
    return ("the host link", host) if host and line.point.get("op", "copy") == "copy" else None


def _p2p(machine: Machine, line: Line) -> tuple[str, limits.Limit] | None:
    link = machine.nvlink
    return ("NVLink", link) if link and line.point.get("op", "copy") == "copy" else None


def _hbm(machine: Machine, line: Line) -> tuple[str, limits.Limit] | None:
    if line.evidence.get("memory_nbytes_at_least") == 0:
        return None  # a working set that stays in the L2 crosses no memory bus
    memory = limits.gpu_memory(machine.row.get("product"))
    return ("the GPU's memory", memory) if memory and line.quantity == "bandwidth" else None


def _rdma(machine: Machine, line: Line) -> tuple[str, limits.Limit] | None:
    port = machine.network
    both = 2.0 if port and line.point.get("direction") in ("both", "bidirectional") else 1.0
    return ("the port", limits.Limit(port.bytes_per_s * both, port.source)) if port else None


_COPIES = {"pcie": _pcie, "p2p": _p2p, "hbm": _hbm, "rdma": _rdma}
