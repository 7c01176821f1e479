"""Which way NCCL is made to take, and which way its own log says that it took.

Forced by NCCL's variables (docs.nvidia.com/deeplearning/nccl, "Environment Variables"), proven afterwards by the lines
on its channels (iobench.nccl.log) and, where bytes enough have moved, by the counters of NVLinks and network ports.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from iobench.errors import IobenchError
from iobench.nccl.log import Told

TRANSPORTS = ("nvlink", "pcie", "shm", "socket", "ib")
AUTO = "auto"
_NETWORKS = ("ib", "roce", "efa")
_NO_GDR, _ANY_GDR = "LOC", "SYS"
_FORCED: dict[str, dict[str, str]] = {
    "nvlink": {"NCCL_P2P_DISABLE": "0", "NCCL_P2P_LEVEL": "NVL", "NCCL_SHM_DISABLE": "1"},
    "pcie": {"NCCL_P2P_DISABLE": "0", "NCCL_P2P_LEVEL": "SYS", "NCCL_SHM_DISABLE": "1"},
    "shm": {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "0"},
    "socket": {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1"},
    # the network is not named: NCCL takes InfiniBand before sockets, and says why where it does not
    "ib": {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_IB_DISABLE": "0"},
}
_INSIDE = ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE")  # with several nodes these are for the way between GPUs of one
_REASONS = (
    re.compile(r"NET/IB ?: (No device found)"),
    re.compile(r"(Failed to open libibverbs\S*)"),
    re.compile(r"(P2P is disabled between \S+ \S+ and \S+ \S+)"),
    re.compile(r"(failed to extend /dev/shm/\S+ to \d+ bytes[^\n]{0,60})"),
    re.compile(r"(Error while creating shared memory segment [^\n]{0,80})"),
    re.compile(r"(Could not enable P2P between [^\n]{0,60})"),
    re.compile(r"(Duplicate GPU detected : [^\n]{0,60})"),
    re.compile(r"(NET/Plugin: Could not find: \S+)"),
)


class NotTaken(IobenchError):
    """A transport was asked for and NCCL took another: never a number under the wrong name."""


@dataclass(frozen=True)
class Way:
    """What is asked of NCCL; it reads its variables once per process, so each Way needs processes of its own."""

    transport: str
    algo: str = AUTO
    proto: str = AUTO
    gdr: str = AUTO
    nodes: int = 1
    tuning: bool = True

    @property
    def networked(self) -> bool:
        """Whether the way leads through network ports that count."""
        return self.transport == "ib"

    def environment(self, log: str) -> dict[str, str]:
        """Return NCCL's variables; each process's log goes to ``log``.<pid>.

        The line on the algorithm of every operation costs the launching host time, so it is left out (``tuning``)
        where operations are launched one by one.
        """
        forced = dict(_FORCED[self.transport])
        if self.nodes > 1 and self.transport in ("ib", "socket"):
            forced = {name: value for name, value in forced.items() if name not in _INSIDE}
        if self.algo != AUTO:
            forced["NCCL_ALGO"] = self.algo
        if self.proto != AUTO:
            forced["NCCL_PROTO"] = self.proto
        if self.gdr != AUTO:
            forced["NCCL_NET_GDR_LEVEL"] = _ANY_GDR if self.gdr == "on" else _NO_GDR
        subsystems = "INIT,ENV,GRAPH,P2P,SHM,NET" + (",TUNING" if self.tuning else "")
        about = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": subsystems, "NCCL_DEBUG_FILE": f"{log}.%p"}
        return {**forced, **about}

    def overridden(self, environment: Mapping[str, str]) -> list[str]:
        """Return sentences on variables of the user's that the Way sets otherwise."""
        own = self.environment("")
        return [
            f"your {name}={environment[name]} was set to {value} for transport {self.transport}"
            for name, value in own.items()
            if name in environment and environment[name] != value and not name.startswith("NCCL_DEBUG")
        ]


@dataclass
class Log:
    """What the ranks' logs said so far, and the lines that may explain why another way was taken."""

    told: Told = field(default_factory=Told)
    reasons: dict[str, None] = field(default_factory=dict)
    gdr: bool = False

    def add(self, texts: Iterable[str]) -> Log:
        """Take what the ranks' logs say further, one text for each rank; return this log."""
        for line in (line for text in texts for line in text.splitlines()):
            self.told.add(line)
            self.gdr = self.gdr or "/GDRDMA" in line
            for pattern in _REASONS:
                if match := pattern.search(line):
                    self.reasons[match[1]] = None
        return self

    @property
    def transport(self) -> str:
        """The way the channels take; P2P between GPUs without NVLink is PCIe; "" where nothing tells."""
        if self.told.transport or not self.told.channels:
            return self.told.transport
        peer = all(medium.startswith("P2P") for medium in self.told.channels)
        return "pcie" if peer and self.told.gpu_paths and "NVL" not in self.told.gpu_paths else ""


def proof(way: Way, log: Log) -> tuple[str, bool]:
    """Return the way taken in words and whether the log proves it; NotTaken where it proves another.

    Between several nodes the slowest way counts: the network's.
    """
    chosen = log.transport
    if not log.told.channels:
        return f"{way.transport} asked for; NCCL's log names no channel", False
    if not chosen:
        return f"{way.transport} asked for; {log.told.path}", False
    if not _same(way.transport, chosen):
        why = "; ".join(log.reasons) or log.told.path
        raise NotTaken(f"asked {way.transport}, NCCL chose {chosen} ({why})")
    if way.gdr == "on" and chosen in _NETWORKS and not log.gdr:
        raise NotTaken(f"asked GPUDirect RDMA, NCCL went through host memory over {chosen} (no channel says GDRDMA)")
    if way.gdr == "off" and log.gdr:
        raise NotTaken(f"asked {chosen} without GPUDirect RDMA, NCCL used it")
    direct = ", GPUDirect RDMA" if log.gdr else ""
    return f"{chosen}{direct}: {log.told.path}", True


def _same(asked: str, chosen: str) -> bool:
    return asked == chosen or (asked == "ib" and chosen in _NETWORKS)
