"""What both sides of a measurement agree on and tell each other; checked, since it may come from another host."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from iobench.errors import UserError
from iobench.units import GIB, MIB

VERBS = ("write", "write_imm", "send", "read", "atomic_fadd", "atomic_cas")
ATOMICS = ("atomic_fadd", "atomic_cas")
TWO_SIDED = ("send", "write_imm")  # the other side has to post receives
TRANSPORTS = ("RC", "UC", "UD")
ALLOWED = {"RC": VERBS, "UC": ("write", "write_imm", "send"), "UD": ("send",)}
GRH_NBYTES = 40  # before the payload of a UD message (InfiniBand Architecture Specification, global route header)
MTU = {256: 1, 512: 2, 1024: 3, 2048: 4, 4096: 5}  # bytes -> ibv_mtu
_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,64}(?:/[0-9]{1,3})?")
_MOST = {
    "nbytes": 2 * GIB,
    "qps": 1024,
    "depth": 1 << 15,
    "every": 1 << 15,
    "mtu": 4096,
    "service_level": 15,
    "traffic_class": 255,
    "rnr_retry": 7,
    "flows": 64,
    "flow_class": 255,
    "flow_nbytes": 64 * MIB,
}
_LEAST = {"gid": -1, "node": -1, "nbytes": 1, "qps": 1, "depth": 1, "every": 1}
_DEFAULT_MOST = 4096


@dataclass(frozen=True)
class Setup:
    """One measurement's queue pairs and memory.

    ``device`` is "auto", "mlx5_0" or "mlx5_0/2"; ``gid`` and ``node`` (NUMA) -1 for the best; ``mtu`` 0 for the
    port's; ``every`` how many messages share one completion; ``flows`` bulk streams beside, in ``flow_class``.
    """

    verb: str
    nbytes: int
    transport: str = "RC"
    device: str = "auto"
    gid: int = -1
    memory: str = "host"
    node: int = -1
    gpu: int = 0
    qps: int = 1
    depth: int = 1
    every: int = 1
    inline: bool = True
    events: bool = False
    loop: str = "native"
    mtu: int = 0
    service_level: int = 0
    traffic_class: int = 0
    rnr_retry: int = 7
    flows: int = 0
    flow_class: int = 0
    flow_nbytes: int = 64 << 10

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def two_sided(self) -> bool:
        return self.verb in TWO_SIDED

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Setup:
        """Return the set-up that ``data`` describes; UserError naming the first value that is none."""
        known = {field.name: field for field in fields(cls)}
        for name, value in data.items():
            if name not in known:
                raise UserError(f"a set-up has no '{name}': both sides must run the same version of iobench")
            wanted = {"int": int, "bool": bool, "str": str}[str(known[name].type)]
            if type(value) is not wanted:
                raise UserError(f"{name} of a set-up is a {wanted.__name__}, not {value!r:.40}")
            if type(value) is int and not _LEAST.get(name, 0) <= value <= _MOST.get(name, _DEFAULT_MOST):
                most = _MOST.get(name, _DEFAULT_MOST)
                raise UserError(f"{name}={value} is out of range: {_LEAST.get(name, 0)} to {most}")
        if not {"verb", "nbytes"} <= set(data):
            raise UserError("a set-up needs verb and nbytes")
        return cls(**data).checked()

    def checked(self) -> Setup:
        """Return itself; UserError for a combination that verbs do not have."""
        if self.transport not in ALLOWED or self.verb not in ALLOWED[self.transport]:
            raise UserError(f"{self.transport:.20} has no {self.verb:.20}: it has {ALLOWED.get(self.transport, ())}")
        if self.verb in ATOMICS and self.nbytes != 8:
            raise UserError(f"an atomic is 8 bytes, not {self.nbytes}")
        if self.every > self.depth:
            raise UserError(f"every={self.every} is above depth={self.depth}: no completion would come in time")
        if self.mtu not in (0, *MTU):
            raise UserError(f"mtu={self.mtu}: choose one of {', '.join(map(str, MTU))}")
        if self.memory not in ("host", "gpu") or self.loop not in ("native", "pyverbs"):
            raise UserError(f"memory={self.memory:.20} loop={self.loop:.20}: host or gpu, native or pyverbs")
        if not _NAME.fullmatch(self.device):
            raise UserError(f"{self.device!r:.40} is no name of an RDMA device")
        return self


@dataclass(frozen=True)
class Info:
    """What the other side must know: queue pairs, where its memory lies, the way to its port."""

    qps: list[int]
    psn: int
    gid: str
    lid: int
    ethernet: bool
    mtu: int  # ibv_mtu of the port
    rkey: int
    address: int
    nbytes: int  # of the memory from ``address`` on
    flows: list[int]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, data: Any) -> Info:
        """Return what the other side said; UserError where it is not that."""
        try:
            info = cls(**data)
        except TypeError:
            raise UserError("what the other side told of its queue pairs is not what this version of iobench says: "
                            "use one version on both hosts") from None  # fmt: skip
        words = [*info.qps, *info.flows, info.psn]
        sound = (
            all(type(word) is int and 0 <= word < 1 << 24 for word in words)
            and len(info.qps) > 0
            and type(info.ethernet) is bool
            and all(type(v) is int and v >= 0 for v in (info.lid, info.mtu, info.rkey, info.address, info.nbytes))
            and info.lid < 1 << 16
            and info.mtu in MTU.values()
            and info.rkey < 1 << 32
            and info.address + info.nbytes < 1 << 64
            and isinstance(info.gid, str)
            and re.fullmatch(r"[0-9a-f:.]{2,45}", info.gid) is not None
        )
        if not sound:
            raise UserError("what the other side told of its queue pairs makes no sense: use one version on both hosts")
        return info


def layout(setup: Setup) -> tuple[int, int, int]:
    """Return (head, slot, all) in bytes: a slot per queue pair holds a head (a UD header ends there) and a message.

    The first half of the slots is what a side sends from, the second what it receives into.
    """
    page = 4096
    head, step = (64, 64) if setup.nbytes < page else (page, page)
    slot = head + -(-setup.nbytes // step) * step
    return head, slot, 2 * setup.qps * slot
