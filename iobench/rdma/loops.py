"""The timed loops in compiled code: post, poll, wait; no Python and no lock of it between two operations.

``t`` is a table of uint64: addresses of functions and structs and a few settings, by the names below. Each loop
returns OK or a code that ``explain`` puts into words; the failing completion stays where t[WC] says. Times are
nanoseconds of CLOCK_MONOTONIC, read right before the post and right after what the loop waits for.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc"
# ruff: noqa: ARG001, ARG005 - numba and llvmlite fix the arguments of these functions

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from iobench.kernels.jit import kernel
from iobench.kernels.ops import load_atomic, now

(POST_SEND, POST_RECV, POLL_CQ, REQ_NOTIFY, GET_EVENT, ACK_EVENTS, SCHED_YIELD, POLL, QP) = range(9)
SEND_CQ, RECV_CQ, SEND_CHANNEL, RECV_CHANNEL, SEND_FD, RECV_FD = range(9, 15)
WR, SECOND_WR, RECV_WR, WC, BAD, SCRATCH, SOURCE, TARGET = range(15, 23)
NBYTES, LIMIT, SPINS, EVENTS, TABLE = range(23, 28)

OK, TIME_UP, WRONG = 0, -1, -2
POLL_FAILED, NOTIFY_FAILED, TOO_MANY = -3, -4, -5
POSTING, COMPLETION = 2000, 1000  # + errno, + status of the completion
MEMORY, RECEIVE = 0, 1  # how a message is noticed: its last byte, or a receive completion
READ, FETCH_ADD, COMPARE_SWAP = 0, 1, 2

_WC_NBYTES, _WC_STATUS = 48, 8
_WR_COMPARE, _WR_SWAP = 48, 56
_BATCH = 16  # completions that one poll takes at most
_LOOKS = 1024  # between two looks at the clock
_STEP_MILLISECONDS = 100
_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)


def _caller(count: int) -> Any:
    """Return ``call(function, *arguments)``: a C function that takes ``count`` words and returns an int."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(_I32, [_I64] * count)
        return builder.call(builder.inttoptr(args[0], kind.as_pointer()), list(args[1:]))

    signature = types.int32(*[types.uint64] * (1 + count))
    if count == 0:
        return intrinsic(lambda typing, function: (signature, generate))
    if count == 1:
        return intrinsic(lambda typing, function, a: (signature, generate))
    if count == 2:
        return intrinsic(lambda typing, function, a, b: (signature, generate))
    return intrinsic(lambda typing, function, a, b, c: (signature, generate))


call0, call1, call2, call3 = _caller(0), _caller(1), _caller(2), _caller(3)


def _access(kind: Any, number: Any, store: bool) -> Any:
    """Return a load or store of ``kind`` at an address that happens each time and in order."""
    align = kind.width // 8

    def load_it(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(builder.inttoptr(args[0], kind.as_pointer()), "acquire", align)

    def store_it(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store_atomic(args[1], builder.inttoptr(args[0], kind.as_pointer()), "release", align)
        return context.get_dummy_value()

    if store:
        return intrinsic(lambda typing, address, value: (types.void(types.uint64, number), store_it))
    return intrinsic(lambda typing, address: (number(types.uint64), load_it))


load8, store8 = _access(_I8, types.uint8, False), _access(_I8, types.uint8, True)
load32, store32 = _access(_I32, types.int32, False), _access(_I32, types.int32, True)
load64, store64 = _access(_I64, types.uint64, False), _access(_I64, types.uint64, True)


@kernel()
def wait(t, queue, end):
    """Wait for one completion of the send queue (0) or the receive queue (1), by polling or by an event."""
    armed, looks = False, np.uint64(0)
    while True:
        found = call3(t[POLL_CQ], t[SEND_CQ + queue], np.uint64(1), t[WC])
        if found > 0:
            status = load32(t[WC] + np.uint64(_WC_STATUS))
            return OK if status == 0 else COMPLETION + status
        if found < 0:
            return POLL_FAILED
        if t[EVENTS]:
            if armed:
                code = sleep(t, queue, end)
            else:
                # armed, then looked at once more: what completes between the two raises no event
                code = NOTIFY_FAILED if call2(t[REQ_NOTIFY], t[SEND_CQ + queue], np.uint64(0)) else OK
            armed = not armed
            if code != OK:
                return code
        else:
            looks += np.uint64(1)
            if late(t, looks, end):
                return TIME_UP


@kernel()
def late(t, looks, end):
    """Give the CPU away as often as t[SPINS] says, look at the clock now and then; tell whether time is up."""
    if t[SPINS] and looks % t[SPINS] == 0:
        call0(t[SCHED_YIELD])
    return looks % np.uint64(_LOOKS) == 0 and now() > end


@kernel()
def sleep(t, queue, end):
    """Sleep until the queue's channel has an event, and take it."""
    fds, places = t[SCRATCH], t[SCRATCH] + np.uint64(8)
    while True:
        store32(fds, np.int32(t[SEND_FD + queue]))
        store32(fds + np.uint64(4), np.int32(1))  # POLLIN
        if call3(t[POLL], fds, np.uint64(1), np.uint64(_STEP_MILLISECONDS)) > 0:
            break
        if now() > end:
            return TIME_UP
    if call3(t[GET_EVENT], t[SEND_CHANNEL + queue], places, places + np.uint64(8)):
        return NOTIFY_FAILED
    call2(t[ACK_EVENTS], t[SEND_CQ + queue], np.uint64(1))
    return OK


@kernel()
def wait_byte(t, value, end):
    """Wait until the last byte of the target is ``value``."""
    place, looks = t[TARGET] + t[NBYTES] - np.uint64(1), np.uint64(0)
    while load8(place) != value:
        looks += np.uint64(1)
        if late(t, looks, end):
            return TIME_UP
    return OK


@kernel()
def post(t, function, wr):
    """Post one work request."""
    code = call3(t[function], t[QP], wr, t[BAD])
    return OK if code == 0 else POSTING + code


@kernel()
def byte_at(distance, turn, salt):
    """Return the byte at ``distance`` from the end of message ``turn``: no packet can take another's place unseen."""
    d = np.uint64(distance)
    return np.uint8(turn + d * salt + (d >> np.uint64(8)) * np.uint64(13) + (d >> np.uint64(16)) * np.uint64(29))


@kernel()
def fill(data, turn, salt):
    """Write message ``turn`` of the side with ``salt`` into ``data`` (uint8); its last byte is the turn's."""
    for i in range(data.size):
        data[i] = byte_at(data.size - 1 - i, turn, salt)


@kernel()
def first_wrong(data, turn, salt):
    """Return the first place where ``data`` is not message ``turn``, -1 where all of it is."""
    for i in range(data.size):
        if data[i] != byte_at(data.size - 1 - i, turn, salt):
            return i
    return -1


@kernel()
def arrive(t, how, value, end):
    """Wait for the other side's message."""
    return wait_byte(t, value, end) if how == MEMORY else wait(t, 1, end)


@kernel()
def pingpong(t, how, first, source, target, mine, theirs, verify, starts, ends, out):
    """Send and be answered, ``starts.size`` times: the side that begins. out[0]: the turn, out[1]: the wrong byte."""
    for i in range(starts.size):
        turn = np.uint64(first + i)
        end = now() + np.int64(t[LIMIT])
        if verify:
            fill(source, turn, mine)
        elif how == MEMORY:
            store8(t[SOURCE] + t[NBYTES] - np.uint64(1), np.uint8(turn))
        out[0] = i
        starts[i] = now()
        code = post(t, POST_SEND, t[WR])
        if code == OK:
            code = arrive(t, how, np.uint8(turn), end)
        ends[i] = now()
        if code == OK:
            code = settle(t, how, end)
        if code == OK and verify:
            out[1] = first_wrong(target, turn, theirs)
            code = OK if out[1] < 0 else WRONG
        if code != OK:
            return code
    return OK


@kernel()
def settle(t, how, end):
    """Give the receive queue its entry back and take the send's own completion."""
    code = post(t, POST_RECV, t[RECV_WR]) if how == RECEIVE else OK
    return wait(t, 0, end) if code == OK else code


@kernel()
def answer(t, how, first, count, source, target, mine, theirs, verify, out):
    """Wait for each message and answer it: the other side of ``pingpong``."""
    for i in range(count):
        turn = np.uint64(first + i)
        end = now() + np.int64(t[LIMIT])
        out[0] = i
        code = arrive(t, how, np.uint8(turn), end)
        if code == OK and verify:
            out[1] = first_wrong(target, turn, theirs)
            code = OK if out[1] < 0 else WRONG
            fill(source, turn, mine)
        elif how == MEMORY:
            store8(t[SOURCE] + t[NBYTES] - np.uint64(1), np.uint8(turn))
        if code == OK:
            code = post(t, POST_SEND, t[WR])
        if code == OK:
            code = settle(t, how, end)
        if code != OK:
            return code
    return OK


@kernel()
def one_sided(t, kind, first, source, target, mine, verify, starts, ends, out):
    """Read, fetch and add, or compare and swap, ``starts.size`` times; the other side does nothing.

    Every atomic's answer is checked. A verified read is of bytes that t[SECOND_WR] has written there just before.
    """
    for i in range(starts.size):
        turn = np.uint64(first + i)
        end = now() + np.int64(t[LIMIT])
        out[0] = i
        code = before_one(t, kind, turn, source, mine, verify, end)
        starts[i] = now()
        code = post(t, POST_SEND, t[WR]) if code == OK else code
        code = wait(t, 0, end) if code == OK else code
        ends[i] = now()
        code = after_one(t, kind, turn, target, mine, verify, out) if code == OK else code
        if code != OK:
            return code
    return OK


@kernel()
def before_one(t, kind, turn, source, mine, verify, end):
    """Write what a verified read is to find; put the turn into a compare-and-swap."""
    code = OK
    if kind == READ and verify:
        fill(source, turn, mine)
        code = post(t, POST_SEND, t[SECOND_WR])
        code = wait(t, 0, end) if code == OK else code
    elif kind == COMPARE_SWAP:
        store64(t[WR] + np.uint64(_WR_COMPARE), turn)
        store64(t[WR] + np.uint64(_WR_SWAP), turn + np.uint64(1))
    return code


@kernel()
def after_one(t, kind, turn, target, mine, verify, out):
    """Check what came back: all bytes of a verified read, the former value of an atomic."""
    if kind == READ:
        out[1] = first_wrong(target, turn, mine) if verify else -1
        return OK if out[1] < 0 else WRONG
    out[1] = np.int64(load64(t[TARGET]))
    return OK if load64(t[TARGET]) == turn else WRONG


@kernel()
def top_up(t, qps, signalled, silent, depth, every, targets, posted, done):
    """Post on each queue pair what its target and ``depth`` allow; every ``every``-th message is signalled."""
    for q in range(qps.size):
        while posted[q] < targets[q] and posted[q] - done[q] < depth:
            wr = signalled[q] if (posted[q] + 1) % every == 0 else silent[q]
            code = call3(t[POST_SEND], qps[q], wr, t[BAD])
            if code != 0:
                return POSTING + code
            posted[q] += 1
    return OK


@kernel()
def take(t, queue, out):
    """Take what one poll gives; out[2] is how many, a status that is no success the code."""
    found = call3(t[POLL_CQ], t[SEND_CQ + queue], np.uint64(_BATCH), t[WC])
    out[2] = found
    if found < 0:
        return POLL_FAILED
    for k in range(found):
        status = load32(t[WC] + np.uint64(k * _WC_NBYTES + _WC_STATUS))
        if status != 0:
            return COMPLETION + status
    return OK


@kernel()
def stream(t, qps, signalled, silent, depth, every, total, marks, stamps, stop, out):
    """Keep ``depth`` messages in flight on each queue pair until ``total`` are done.

    ``total`` is a multiple of ``every`` on all queue pairs. stamps[k] is when marks[k] messages were done. ``stop``
    is the address of a word (0: none): once it is not 0, what is begun is finished. out[0]: messages done.
    """
    posted, done = np.zeros(qps.size, np.int64), np.zeros(qps.size, np.int64)
    targets = np.full(qps.size, total // qps.size)
    mark, looks, end, code = 0, np.uint64(0), now() + np.int64(t[LIMIT]), OK
    while out[0] < total:
        if stop != 0 and load_atomic(stop) != 0:
            # a group of messages is known to be done by its last one only: so it is completed
            targets[:] = (posted + every - 1) // every * every
            total, stop = targets.sum(), np.uint64(0)
        code = top_up(t, qps, signalled, silent, depth, every, targets, posted, done)
        code = take(t, 0, out) if code == OK else code
        if code != OK:
            break
        for k in range(out[2]):
            q = np.int64(load64(t[WC] + np.uint64(k * _WC_NBYTES)))
            done[q] += every
            if done[q] > posted[q]:
                return TOO_MANY
        out[0] += every * out[2]
        while mark < marks.size and out[0] >= marks[mark]:
            stamps[mark] = now()
            mark += 1
        looks += np.uint64(1)
        if out[2]:
            end = now() + np.int64(t[LIMIT])
        elif late(t, looks, end):
            return TIME_UP
    return code


@kernel()
def drain(t, qps, receives, total, quiet, out):
    """Take ``total`` messages and give each entry back; ends where none came for ``quiet`` ns. out[0]: messages."""
    looks, end = np.uint64(0), now() + np.int64(t[LIMIT])
    while out[0] < total:
        code = take(t, 1, out)
        for k in range(out[2] if code == OK else 0):
            q = np.int64(load64(t[WC] + np.uint64(k * _WC_NBYTES)))
            posted = call3(t[POST_RECV], qps[q], receives[q], t[BAD])
            code = POSTING + posted if posted != 0 else code
        if code != OK:
            return code
        out[0] += out[2]
        looks += np.uint64(1)
        if out[2]:
            end = now() + np.int64(quiet)
        elif late(t, looks, end):
            return TIME_UP
    return OK


@kernel()
def post_batches(t, signalled, silent, batch, starts, ends):
    """Time the posting of ``batch`` messages, ``starts.size`` times; all are done before the next ones begin."""
    for i in range(starts.size):
        end = now() + np.int64(t[LIMIT])
        starts[i] = now()
        for k in range(batch):
            code = call3(t[POST_SEND], t[QP], signalled if k == batch - 1 else silent, t[BAD])
            if code != 0:
                return POSTING + code
        ends[i] = now()
        code = wait(t, 0, end)
        if code != OK:
            return code
    return OK


@kernel()
def empty_polls(t, count):
    """Return the nanoseconds that ``count`` polls of an empty queue take."""
    start = now()
    for _ in range(count):
        call3(t[POLL_CQ], t[SEND_CQ], np.uint64(1), t[WC])
    return now() - start


@kernel()
def post_receives(t, qps, receives, count):
    """Post ``count`` receives on each queue pair."""
    for q in range(qps.size):
        for _ in range(count):
            code = call3(t[POST_RECV], qps[q], receives[q], t[BAD])
            if code != 0:
                return POSTING + code
    return OK
