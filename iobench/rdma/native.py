"""The C side of pyverbs' objects: where their structs lie, and the functions that verbs call through them.

ibv_post_send and ibv_poll_cq are inline functions in C: they call through pointers in struct ibv_context, whose places
every compiled RDMA program relies on (infiniband/verbs.h, ABI IBVERBS_1.1). A loop in compiled code can do the same,
without Python in it. pyverbs does not show its pointers, so the words of a QP object are searched for one that leads
to a struct whose number, type, queues and functions all agree with what pyverbs says; nothing is followed unread.
Where that fails, ``find`` returns None and the loops go through pyverbs.
"""

from __future__ import annotations

import ctypes
import os
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_MOST_WORDS = 64
_MEMORY, _MAPS = "/proc/self/mem", "/proc/self/maps"


class SGE(ctypes.Structure):
    """struct ibv_sge."""

    _fields_ = [("addr", ctypes.c_uint64), ("length", ctypes.c_uint32), ("lkey", ctypes.c_uint32)]


class SendWR(ctypes.Structure):
    """struct ibv_send_wr with its unions laid out flat: ``remote`` to ``rkey`` are rdma's, atomic's and ud's words."""

    _fields_ = [
        ("wr_id", ctypes.c_uint64),
        ("next", ctypes.c_uint64),
        ("sg_list", ctypes.c_uint64),
        ("num_sge", ctypes.c_int32),
        ("opcode", ctypes.c_int32),
        ("send_flags", ctypes.c_uint32),
        ("imm_data", ctypes.c_uint32),
        ("remote", ctypes.c_uint64),  # rdma.remote_addr, atomic.remote_addr, ud.ah
        ("rkey_or_qpn", ctypes.c_uint32),  # rdma.rkey, the low half of atomic.compare_add, ud.remote_qpn
        ("qkey", ctypes.c_uint32),  # ud.remote_qkey, the high half of atomic.compare_add
        ("swap", ctypes.c_uint64),
        ("atomic_rkey", ctypes.c_uint32),
        ("_pad", ctypes.c_uint32),
        ("_rest", ctypes.c_uint64 * 7),
    ]


class RecvWR(ctypes.Structure):
    """struct ibv_recv_wr."""

    _fields_ = [
        ("wr_id", ctypes.c_uint64),
        ("next", ctypes.c_uint64),
        ("sg_list", ctypes.c_uint64),
        ("num_sge", ctypes.c_int32),
        ("_pad", ctypes.c_uint32),
    ]


class WC(ctypes.Structure):
    """struct ibv_wc."""

    _fields_ = [
        ("wr_id", ctypes.c_uint64),
        ("status", ctypes.c_int32),
        ("opcode", ctypes.c_int32),
        ("vendor_err", ctypes.c_uint32),
        ("byte_len", ctypes.c_uint32),
        ("imm_data", ctypes.c_uint32),
        ("qp_num", ctypes.c_uint32),
        ("src_qp", ctypes.c_uint32),
        ("wc_flags", ctypes.c_uint32),
        ("pkey_index", ctypes.c_uint16),
        ("slid", ctypes.c_uint16),
        ("sl", ctypes.c_uint8),
        ("dlid_path_bits", ctypes.c_uint8),
        ("_pad", ctypes.c_uint16),
    ]


# offsets in struct ibv_qp
QP_CONTEXT, QP_PD, QP_SEND_CQ, QP_RECV_CQ, QP_NUM, QP_TYPE, QP_NBYTES = 0, 16, 24, 32, 52, 60, 64
# offsets in struct ibv_cq and ibv_comp_channel
CQ_CONTEXT, CQ_CHANNEL, CHANNEL_CONTEXT, CHANNEL_FD = 0, 8, 0, 8
# offsets in struct ibv_context: its ops begin at 8
OP_POLL_CQ, OP_REQ_NOTIFY_CQ, OP_POST_SEND, OP_POST_RECV = 96, 104, 208, 216
AH_CONTEXT, AH_PD, AH_NBYTES = 0, 8, 24


@dataclass(frozen=True)
class Native:
    """Addresses for the compiled loops: structs of one queue pair, and the functions of its device's driver."""

    qp: int
    context: int
    pd: int
    send_cq: int
    recv_cq: int
    post_send: int
    post_recv: int
    poll_cq: int
    req_notify_cq: int


@dataclass(frozen=True)
class Channel:
    """A completion channel: its struct, its descriptor, and the library's functions that read and confirm events."""

    address: int
    fd: int
    get_event: int
    ack_events: int


def find(qp: Any, qp_num: int, qp_type: int) -> Native | None:
    """Return the C side of pyverbs' QP object; None where it can't be told beyond doubt."""
    found = {place for place in _words(qp) if _is_qp(place, qp_num, qp_type)}
    if len(found) != 1:
        return None
    place = found.pop()
    raw = _read(place, QP_NBYTES)
    context, pd = _word(raw, QP_CONTEXT), _word(raw, QP_PD)
    table = _read(context, OP_POST_RECV + 8)
    functions = [_word(table, at) for at in (OP_POST_SEND, OP_POST_RECV, OP_POLL_CQ, OP_REQ_NOTIFY_CQ)] if table else []
    if not functions or not _executable(functions):
        return None
    return Native(place, context, pd, _word(raw, QP_SEND_CQ), _word(raw, QP_RECV_CQ), *functions)


def find_ah(ah: Any, native: Native) -> int | None:
    """Return the address of the struct ibv_ah of pyverbs' AH object, for the same device and domain as the QP."""
    found = set()
    for place in _words(ah):
        raw = _read(place, AH_NBYTES)
        if raw and (_word(raw, AH_CONTEXT), _word(raw, AH_PD)) == (native.context, native.pd):
            found.add(place)
    return found.pop() if len(found) == 1 else None


def channel_of(cq: int, native: Native) -> Channel | None:
    """Return the completion channel of a struct ibv_cq; None where it has none that can be told."""
    raw = _read(cq, CQ_CHANNEL + 8)
    place = _word(raw, CQ_CHANNEL) if raw else 0
    body = _read(place, 16) if place else b""
    if not body or _word(body, CHANNEL_CONTEXT) != native.context:
        return None
    library = ctypes.CDLL("libibverbs.so.1")
    calls = [
        ctypes.cast(function, ctypes.c_void_p).value or 0
        for function in (library.ibv_get_cq_event, library.ibv_ack_cq_events)
    ]
    return Channel(place, int(struct.unpack_from("i", body, CHANNEL_FD)[0]), *calls)


def libc(name: str) -> int:
    """Return the address of a function of the C library."""
    return ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value or 0


def _words(thing: Any) -> list[int]:
    """Return the words of a Python object that may be pointers."""
    nbytes = min(type(thing).__basicsize__, 8 * _MOST_WORDS)
    raw = _read(id(thing), nbytes // 8 * 8)
    return [word for word in struct.unpack(f"{len(raw) // 8}Q", raw) if word > 0xFFFF and word % 8 == 0]


def _is_qp(place: int, qp_num: int, qp_type: int) -> bool:
    raw = _read(place, QP_NBYTES)
    if not raw or struct.unpack_from("I", raw, QP_NUM)[0] != qp_num:
        return False
    if struct.unpack_from("i", raw, QP_TYPE)[0] != qp_type:
        return False
    context, queues = _word(raw, QP_CONTEXT), [_word(raw, at) for at in (QP_SEND_CQ, QP_RECV_CQ)]
    return bool(context) and all(_leads_to(queue, context) for queue in queues)


def _leads_to(cq: int, context: int) -> bool:
    raw = _read(cq, 8)
    return bool(raw) and _word(raw, CQ_CONTEXT) == context


def _read(place: int, nbytes: int) -> bytes:
    """Return what lies at an address, b"" where nothing is mapped: a wrong guess must not end the process."""
    try:
        handle = os.open(_MEMORY, os.O_RDONLY)
    except OSError:
        return b""
    try:
        data = os.pread(handle, nbytes, place)
    except (OSError, OverflowError):
        return b""
    finally:
        os.close(handle)
    return data if len(data) == nbytes else b""


def _word(raw: bytes, at: int) -> int:
    return int(struct.unpack_from("Q", raw, at)[0])


def _executable(places: list[int]) -> bool:
    """Tell whether all addresses lie in code."""
    spans = []
    for line in Path(_MAPS).read_text(encoding="utf-8", errors="replace").splitlines():
        match = re.match(r"([0-9a-f]+)-([0-9a-f]+) ..x", line)
        if match:
            spans.append((int(match[1], 16), int(match[2], 16)))
    return all(any(low <= place < high for low, high in spans) for place in places)
