"""An RDMA device made of ctypes callbacks: C structs and function pointers as a driver's, two sides in one process.

``install`` puts a package ``pyverbs`` into sys.modules in either of its two forms; its objects hold pointers to the
structs as the real ones do. What it does to data is what verbs say; how fast means nothing.
"""

from __future__ import annotations

import ctypes
import enum
import errno
import itertools
import sys
import threading
import types
from collections import deque
from typing import Any

from iobench.rdma import native

SIGNALED, INLINE = 2, 8
OPCODES = {"WR_RDMA_WRITE": 0, "WR_RDMA_WRITE_WITH_IMM": 1, "WR_SEND": 2, "WR_RDMA_READ": 4}
OPCODES |= {"WR_ATOMIC_CMP_AND_SWP": 5, "WR_ATOMIC_FETCH_AND_ADD": 6}
NUMBERS = {
    "ibv_wr_opcode": OPCODES,
    "ibv_send_flags": {"SEND_SIGNALED": SIGNALED, "SEND_INLINE": INLINE},
    "ibv_qp_type": {"QPT_RC": 2, "QPT_UC": 3, "QPT_UD": 4},
    "ibv_access_flags": {
        "ACCESS_LOCAL_WRITE": 1, "ACCESS_REMOTE_WRITE": 2, "ACCESS_REMOTE_READ": 4, "ACCESS_REMOTE_ATOMIC": 8
    },
}  # fmt: skip
_POST = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64)
_POLL = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_int, ctypes.c_uint64)
_NOTIFY = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_int)


class PyverbsError(Exception):
    pass


class Device:
    """What the card would be; ``refuse_inline``: without inline data, ``corrupt``: it spoils what it carries."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.refuse_inline = self.corrupt = False
        self.drop = 0  # messages of UD that get lost
        self.queues: dict[int, deque[native.WC]] = {}
        self.pairs: dict[int, QP] = {}
        self.numbers: dict[int, QP] = {}
        self.keys: dict[int, MR] = {}
        self.kept: list[Any] = []
        self.table = (ctypes.c_uint64 * 40)()
        for at, kind, call in (
            (native.OP_POST_SEND, _POST, self._post_send), (native.OP_POST_RECV, _POST, self._post_recv),
            (native.OP_POLL_CQ, _POLL, self._poll), (native.OP_REQ_NOTIFY_CQ, _NOTIFY, lambda cq, _: 0),
        ):  # fmt: skip
            function = kind(call)
            self.kept.append(function)
            self.table[at // 8] = ctypes.cast(function, ctypes.c_void_p).value or 0
        self.context = ctypes.addressof(self.table)

    def _post_send(self, qp: int, wr: int, bad: int) -> int:
        with self.lock:
            return self.send(self.pairs[qp], native.SendWR.from_address(wr))

    def _post_recv(self, qp: int, wr: int, bad: int) -> int:
        request = native.RecvWR.from_address(wr)
        sge = native.SGE.from_address(request.sg_list)
        with self.lock:
            return self.receive(self.pairs[qp], request.wr_id, sge.addr, sge.length)

    def _poll(self, cq: int, most: int, wc: int) -> int:
        with self.lock:
            queue = self.queues[cq]
            count = min(most, len(queue))
            for number in range(count):
                entry = queue.popleft()  # kept while it is copied
                ctypes.memmove(wc + 48 * number, ctypes.addressof(entry), 48)
            return count

    def receive(self, pair: QP, wr_id: int, address: int, nbytes: int) -> int:
        if len(pair.receives) >= pair.most_receives:
            return errno.ENOMEM
        pair.receives.append((wr_id, address, nbytes))
        while pair.waiting and pair.receives:
            self._finish(*pair.waiting.popleft())
        return 0

    def send(self, pair: QP, wr: native.SendWR) -> int:
        """Do what a work request says; the completion's status says what became of it."""
        if pair.open >= pair.depth:
            return errno.ENOMEM
        pair.open += 1
        sge = native.SGE.from_address(wr.sg_list)
        peer = self.numbers.get(pair.peer)
        wants = wr.opcode in (OPCODES["WR_SEND"], OPCODES["WR_RDMA_WRITE_WITH_IMM"]) and pair.patient
        if peer is not None and wants and (peer.waiting or not peer.receives):
            peer.waiting.append((pair, native.SendWR.from_buffer_copy(wr), native.SGE.from_buffer_copy(sge)))
            return 0
        self._finish(pair, wr, sge)
        return 0

    def _finish(self, pair: QP, wr: native.SendWR, sge: native.SGE) -> None:
        status = self._carry(pair, wr, sge)
        if wr.send_flags & SIGNALED or status or pair.every_one:
            pair.open = 0
            self.complete(pair.scq.address, wr.wr_id, status, sge.length)

    def complete(self, cq: int, wr_id: int, status: int, nbytes: int, imm: int = 0) -> None:
        self.queues[cq].append(native.WC(wr_id=wr_id, status=status, byte_len=nbytes, imm_data=imm))

    def _carry(self, pair: QP, wr: native.SendWR, sge: native.SGE) -> int:
        names = {code: name for name, code in OPCODES.items()}
        verb = names[wr.opcode]
        if pair.kind == NUMBERS["ibv_qp_type"]["QPT_UD"]:
            return self._datagram(pair, wr, sge)
        peer = self.numbers.get(pair.peer)
        if peer is None:
            return 12
        if verb == "WR_SEND":
            return self._deliver(pair, peer, sge, 0)
        atomic = verb.startswith("WR_ATOMIC")
        region = self.keys.get(wr.atomic_rkey if atomic else wr.rkey_or_qpn)
        if region is None or not region.address <= wr.remote <= region.address + region.length - sge.length:
            return 10
        if atomic:
            return self._atomic(verb, wr, sge)
        if verb == "WR_RDMA_READ":
            self._move(sge.addr, wr.remote, sge.length)
            return 0
        if verb == "WR_RDMA_WRITE_WITH_IMM":
            if not peer.receives:
                return 13
            self._move(wr.remote, sge.addr, sge.length)
            wr_id, _, _ = peer.receives.popleft()
            self.complete(peer.rcq.address, wr_id, 0, sge.length, wr.imm_data)
            return 0
        self._move(wr.remote, sge.addr, sge.length)
        return 0

    def _move(self, to: int, source: int, nbytes: int) -> None:
        ctypes.memmove(to, source, nbytes)
        if self.corrupt and nbytes > 1:
            first = ctypes.c_uint8.from_address(to)
            first.value = (first.value + 3) & 0xFF

    def _deliver(self, pair: QP, peer: QP, sge: native.SGE, head: int) -> int:
        if not peer.receives:
            return 13
        wr_id, address, nbytes = peer.receives.popleft()
        if sge.length + head > nbytes:
            return 1
        self._move(address + head, sge.addr, sge.length)
        self.complete(peer.rcq.address, wr_id, 0, sge.length + head)
        return 0

    def _datagram(self, pair: QP, wr: native.SendWR, sge: native.SGE) -> int:
        peer = self.numbers.get(wr.rkey_or_qpn)
        if self.drop:
            self.drop -= 1
        elif peer is not None and peer.receives:
            self._deliver(pair, peer, sge, 40)
        return 0  # whatever became of it

    def _atomic(self, verb: str, wr: native.SendWR, sge: native.SGE) -> int:
        word, back = ctypes.c_uint64.from_address(wr.remote), ctypes.c_uint64.from_address(sge.addr)
        operand = wr.rkey_or_qpn | wr.qkey << 32
        back.value = word.value
        if verb == "WR_ATOMIC_FETCH_AND_ADD":
            word.value += operand
        elif word.value == operand:
            word.value = wr.swap
        return 0


DEVICE = Device()


class _Pointing(ctypes.Structure):
    """A Python object with a pointer among its words, as pyverbs' classes have."""

    _fields_ = [("pointer", ctypes.c_uint64)]

    def close(self) -> None:
        pass


class Context:
    def __init__(self, name: str) -> None:
        if name != "fake0":
            raise PyverbsError(f"No such device {name}")

    def close(self) -> None:
        pass

    def query_device(self) -> Any:
        return types.SimpleNamespace(atomic_caps=1, max_qp_rd_atom=16)

    def query_port(self, number: int) -> Any:
        return types.SimpleNamespace(active_mtu=3, lid=0, max_msg_sz=1 << 30)

    def query_gid(self, port: int, index: int) -> str:
        return "0000:0000:0000:0000:0000:ffff:0a00:0001"


class PD:
    def __init__(self, context: Context) -> None:
        self.context = context

    def close(self) -> None:
        pass


class CQ:
    def __init__(self, context: Context, cqe: int, cq_context: Any, channel: Any, vector: int) -> None:
        self.body = (ctypes.c_uint64 * 4)(DEVICE.context, 0, 0, 0)
        self.address = ctypes.addressof(self.body)
        DEVICE.queues[self.address] = deque()

    def poll(self, most: int = 1) -> tuple[int, list[native.WC]]:
        queue = DEVICE.queues[self.address]
        found = [queue.popleft() for _ in range(min(most, len(queue)))]
        return len(found), found

    def close(self) -> None:
        pass


class MR:
    _numbers = itertools.count(101)  # two threads register at once: next() gives no number twice

    def __init__(self, pd: PD, length: int, access: int, address: int = 0) -> None:
        self.lkey = self.rkey = next(MR._numbers)
        self.address, self.length = address, length
        DEVICE.keys[self.rkey] = self

    def close(self) -> None:
        DEVICE.keys.pop(self.rkey, None)


class QPCap:
    def __init__(self, **values: int) -> None:
        self.__dict__.update(values)


class QPInitAttr:
    def __init__(self, qp_type: int, scq: CQ, rcq: CQ, cap: QPCap, sq_sig_all: int = 1) -> None:
        self.qp_type, self.scq, self.rcq, self.cap, self.sq_sig_all = qp_type, scq, rcq, cap, sq_sig_all


class QPAttr:
    def __init__(self, port_num: int = 1) -> None:
        self.port_num = port_num


class QP(_Pointing):
    _numbers = itertools.count(17)

    def __init__(self, pd: PD, init: QPInitAttr, attr: QPAttr | None = None) -> None:
        if DEVICE.refuse_inline and init.cap.max_inline_data:
            raise PyverbsError("Failed to create QP. Errno: 22, Invalid argument")
        self.number, self.kind, self.scq, self.rcq = next(QP._numbers), init.qp_type, init.scq, init.rcq
        self.every_one = bool(init.sq_sig_all)
        self.depth, self.most_receives = init.cap.max_send_wr, init.cap.max_recv_wr
        self.receives: deque[tuple[int, int, int]] = deque()
        self.waiting: deque[tuple[QP, native.SendWR, native.SGE]] = deque()
        self.open, self.peer = 0, 0
        self.attributes: QPAttr | None = attr
        self.body = (ctypes.c_uint64 * 16)()
        self.body[0], self.body[2] = DEVICE.context, 0x1000
        self.body[3], self.body[4] = self.scq.address, self.rcq.address
        ctypes.c_uint32.from_buffer(self.body, native.QP_NUM).value = self.number
        ctypes.c_int32.from_buffer(self.body, native.QP_TYPE).value = self.kind
        self.pointer = ctypes.addressof(self.body)
        DEVICE.pairs[self.pointer] = DEVICE.numbers[self.number] = self

    @property
    def qp_num(self) -> int:
        return self.number

    @property
    def patient(self) -> bool:
        """Whether it waits for ever for a receive of the other side."""
        return getattr(self.attributes, "rnr_retry", 0) == 7

    def to_rts(self, attr: QPAttr) -> None:
        self.attributes, self.peer = attr, attr.dest_qp_num  # type: ignore[attr-defined]

    def post_send(self, wr: SendWR) -> None:
        code = DEVICE.send(self, wr.body)
        if code:
            raise PyverbsError(f"Failed to post send. Errno: {code}, Cannot allocate memory")

    def post_recv(self, wr: RecvWR) -> None:
        DEVICE.receive(self, wr.wr_id, wr.entry.addr, wr.entry.length)

    def close(self) -> None:
        DEVICE.numbers.pop(self.number, None)


class AH(_Pointing):
    def __init__(self, pd: PD, attr: Any) -> None:
        self.body = (ctypes.c_uint64 * 3)(DEVICE.context, 0x1000, 1)
        self.pointer = ctypes.addressof(self.body)


class GlobalRoute:
    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


class AHAttr(GlobalRoute):
    pass


class SendWR:
    def __init__(
        self, wr_id: int, opcode: int, num_sge: int, imm_data: int, sg: list[native.SGE], send_flags: int
    ) -> None:
        self.kept = sg
        self.body = native.SendWR(wr_id=wr_id, opcode=opcode, num_sge=1, imm_data=imm_data, send_flags=send_flags)
        self.body.sg_list = ctypes.addressof(sg[0])

    def set_wr_rdma(self, rkey: int, address: int) -> None:
        self.body.remote, self.body.rkey_or_qpn = address, rkey

    def set_wr_ud(self, handle: AH, number: int, qkey: int) -> None:
        self.body.remote, self.body.rkey_or_qpn, self.body.qkey = handle.pointer, number, qkey

    def set_wr_atomic(self, rkey: int, address: int, compare_add: int, swap: int) -> None:
        self.body.remote, self.body.atomic_rkey, self.body.swap = address, rkey, swap
        self.body.rkey_or_qpn, self.body.qkey = compare_add & 0xFFFFFFFF, compare_add >> 32


class RecvWR:
    def __init__(self, wr_id: int, num_sge: int, sg: list[native.SGE]) -> None:
        self.wr_id, self.entry = wr_id, sg[0]


def install(flat: bool = True) -> dict[str, types.ModuleType]:
    """Return the modules of a pyverbs with flat enums (44) or classes (59), for sys.modules."""
    contents: dict[str, dict[str, Any]] = {
        "": {"__path__": [], "__file__": "/fake/pyverbs/__init__.py"},
        ".pyverbs_error": {"PyverbsError": PyverbsError, "PyverbsRDMAError": PyverbsError},
        ".device": {"Context": Context, "get_device_list": lambda: [types.SimpleNamespace(name=b"fake0")]},
        ".pd": {"PD": PD}, ".cq": {"CQ": CQ, "CompChannel": None}, ".mr": {"MR": MR, "DmaBufMR": None},
        ".qp": {"QP": QP, "QPCap": QPCap, "QPInitAttr": QPInitAttr, "QPAttr": QPAttr},
        ".addr": {"AH": AH, "AHAttr": AHAttr, "GlobalRoute": GlobalRoute, "GID": str},
        ".wr": {"SGE": native.SGE, "SendWR": SendWR, "RecvWR": RecvWR},
    }  # fmt: skip
    named = {name: {f"IBV_{key}": value for key, value in group.items()} for name, group in NUMBERS.items()}
    if flat:
        contents[".enums"] = {key: value for group in named.values() for key, value in group.items()}
    else:
        contents[".libibverbs_enums"] = {name: enum.IntFlag(name, group) for name, group in named.items()}
    made = {}
    for name, inside in contents.items():
        made[f"pyverbs{name}"] = module = types.ModuleType(f"pyverbs{name}")
        module.__dict__.update(inside)
    return made


def loaded(flat: bool = True) -> Any:
    """Return iobench's Verbs on the fake package."""
    from iobench.rdma import verbs

    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "pyverbs"}
    for name in before:
        del sys.modules[name]
    made = install(flat)
    sys.modules.update(made)
    try:
        return verbs.load()
    finally:
        for name in made:
            sys.modules.pop(name, None)
        sys.modules.update(before)
