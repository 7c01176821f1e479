"""Work requests as C structs, ready to be posted by the compiled loops."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import Any

from iobench.errors import RdmaError
from iobench.rdma.endpoint import QKEY, Endpoint
from iobench.rdma.native import SGE, Native, RecvWR, SendWR, find_ah
from iobench.rdma.setup import GRH_NBYTES

_OPCODES = {
    "write": "WR_RDMA_WRITE",
    "write_imm": "WR_RDMA_WRITE_WITH_IMM",
    "send": "WR_SEND",
    "read": "WR_RDMA_READ",
    "atomic_fadd": "WR_ATOMIC_FETCH_AND_ADD",
    "atomic_cas": "WR_ATOMIC_CMP_AND_SWP",
}
IMMEDIATE = 0x0B0E0C00  # what a write with immediate carries


@dataclass
class Requests:
    """The structs of one endpoint, kept alive here: per queue pair one signalled, one silent send and one receive.

    ``write_back`` is a plain write to where queue pair 0 reads from, for verified reads.
    """

    signalled: list[SendWR] = field(default_factory=list)
    silent: list[SendWR] = field(default_factory=list)
    receives: list[RecvWR] = field(default_factory=list)
    write_back: SendWR | None = None
    kept: list[Any] = field(default_factory=list)


def opcode(endpoint: Endpoint, verb: str) -> int:
    """Return the ibv_wr_opcode of a verb."""
    return endpoint.verbs.constant(_OPCODES[verb])


def build(endpoint: Endpoint, natives: list[Native]) -> Requests:
    """Return the requests of a connected endpoint; RdmaError where the C side of an address handle is not found."""
    made = Requests()
    for qp, native in enumerate(natives):
        for signalled, where in ((True, made.signalled), (False, made.silent)):
            where.append(_send(endpoint, made, qp, native, signalled))
        made.receives.append(_receive(endpoint, made, qp))
    if endpoint.setup.verb == "read":
        made.write_back = _write_back(endpoint, made)
    return made


def flow(endpoint: Endpoint, made: Requests, number: int, signalled: bool, nbytes: int) -> SendWR:
    """Return a bulk write of ``nbytes`` out of this side's source into the other side's, which nobody looks at."""
    wr = _plain(endpoint, made, endpoint.bulk_at, nbytes, number, signalled, "write")
    wr.remote, wr.rkey_or_qpn = _peer(endpoint).address + endpoint.bulk_at, _peer(endpoint).rkey
    return wr


def _peer(endpoint: Endpoint) -> Any:
    if endpoint.peer is None:
        raise RdmaError("the queue pairs are not connected yet")
    return endpoint.peer


def _send(endpoint: Endpoint, made: Requests, qp: int, native: Native, signalled: bool) -> SendWR:
    setup, peer = endpoint.setup, _peer(endpoint)
    one_sided = setup.verb == "read" or setup.verb.startswith("atomic")
    local = endpoint.target_at(qp) if one_sided else endpoint.source_at(qp)
    wr = _plain(endpoint, made, local, setup.nbytes, qp, signalled, setup.verb)
    # reads and atomics work on what the other side would send from, writes go to where it would receive
    remote = peer.address + (endpoint.source_at(qp) if one_sided else endpoint.target_at(qp))
    if setup.transport == "UD":
        handle = find_ah(endpoint.handles[qp], native)
        if handle is None:
            raise RdmaError("the address handle of pyverbs has no C side that can be told: use -a loop=pyverbs")
        wr.remote, wr.rkey_or_qpn, wr.qkey = handle, peer.qps[qp], QKEY
    elif setup.verb.startswith("atomic"):
        wr.remote, wr.atomic_rkey = remote, peer.rkey
        wr.rkey_or_qpn = 1 if setup.verb == "atomic_fadd" else 0  # what is added
    elif setup.verb != "send":
        wr.remote, wr.rkey_or_qpn = remote, peer.rkey
    return wr


def _plain(endpoint: Endpoint, made: Requests, at: int, nbytes: int, qp: int, signalled: bool, verb: str) -> SendWR:
    verbs = endpoint.verbs
    flags = verbs.constant("SEND_SIGNALED") if signalled else 0
    if endpoint.inline and verb in ("write", "write_imm", "send") and nbytes == endpoint.setup.nbytes:
        flags |= verbs.constant("SEND_INLINE")
    entry = SGE(endpoint.memory.address + at, nbytes, int(endpoint.memory.mr.lkey))
    wr = SendWR(
        wr_id=qp, sg_list=ctypes.addressof(entry), num_sge=1, opcode=opcode(endpoint, verb), send_flags=flags,
        imm_data=IMMEDIATE,
    )  # fmt: skip
    made.kept += [entry, wr]
    return wr


def _receive(endpoint: Endpoint, made: Requests, qp: int) -> RecvWR:
    head = GRH_NBYTES if endpoint.setup.transport == "UD" else 0
    at = endpoint.memory.address + endpoint.target_at(qp) - head
    entry = SGE(at, endpoint.setup.nbytes + head, int(endpoint.memory.mr.lkey))
    wr = RecvWR(wr_id=qp, sg_list=ctypes.addressof(entry), num_sge=1)
    made.kept += [entry, wr]
    return wr


def _write_back(endpoint: Endpoint, made: Requests) -> SendWR:
    wr = _plain(endpoint, made, endpoint.source_at(0), endpoint.setup.nbytes, 0, True, "write")
    wr.remote, wr.rkey_or_qpn = _peer(endpoint).address + endpoint.source_at(0), _peer(endpoint).rkey
    return wr
