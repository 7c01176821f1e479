"""Operations that numba has no word for: the clock, fences, atomics, raw loads, non-temporal stores.

Each is a few lines of LLVM IR. None uses inline assembly, which aborts the process unless llvmlite's
assembly parser was initialised.
"""

# ruff: noqa: ARG001, ARG005 - numba and llvmlite fix the arguments of these functions

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from iobench.kernels.jit import kernel

LINE = 64  # bytes that one non-temporal operation stores, and the alignment it needs
CHUNK = 512  # bytes that are summed at once, in steps of STEP
STEP = 128
LANES = 8  # float64 in LINE bytes
PLAIN_LANES = 4  # float64 that one plain operation stores: the widest that compilers use unasked
_I32, _I64, _F64 = ir.IntType(32), ir.IntType(64), ir.DoubleType()
_CLOCK_MONOTONIC = 1


@intrinsic
def now(typing: Any) -> Any:
    """Return CLOCK_MONOTONIC in nanoseconds, the clock of time.perf_counter_ns."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        spec = cgutils.alloca_once(builder, ir.ArrayType(_I64, 2))
        first = builder.gep(spec, [_I32(0), _I32(0)])
        second = builder.gep(spec, [_I32(0), _I32(1)])
        kind = ir.FunctionType(_I32, [_I32, ir.PointerType(_I64)])
        clock = cgutils.get_or_insert_function(builder.module, kind, "clock_gettime")
        builder.call(clock, [_I32(_CLOCK_MONOTONIC), first])
        return builder.add(builder.mul(builder.load(first), _I64(10**9)), builder.load(second))

    return types.int64(), generate


@intrinsic
def compiler_fence(typing: Any) -> Any:
    """Keep the compiler from merging or moving what stands on the two sides; costs no instruction."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.fence("seq_cst", "singlethread")
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def store_fence(typing: Any) -> Any:
    """Wait until non-temporal stores have left the write-combining buffers."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def add_atomic(typing: Any, address: Any, value: Any) -> Any:
    """Add ``value`` to the int64 at ``address`` (uint64) and return what was there."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = builder.inttoptr(args[0], ir.PointerType(_I64))
        return builder.atomic_rmw("add", place, args[1], "seq_cst")

    return types.int64(types.uint64, types.int64), generate


@intrinsic
def load_atomic(typing: Any, address: Any) -> Any:
    """Load the int64 at ``address`` (uint64), anew each time."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = builder.inttoptr(args[0], ir.PointerType(_I64))
        return builder.load_atomic(place, "acquire", 8)

    return types.int64(types.uint64), generate


@intrinsic
def store_atomic(typing: Any, address: Any, value: Any) -> Any:
    """Store the int64 ``value`` at ``address`` (uint64), after all that was stored before; no fence on x86."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = builder.inttoptr(args[0], ir.PointerType(_I64))
        builder.store_atomic(args[1], place, "release", 8)
        return context.get_dummy_value()

    return types.void(types.uint64, types.int64), generate


@intrinsic
def prefetch(typing: Any, address: Any) -> Any:
    """Ask for the line at ``address`` (uint64) in all cache levels; never faults, returns at once."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte, _I32, _I32, _I32])
        call = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        # to read, with the highest locality, data and not instructions
        builder.call(call, [builder.inttoptr(args[0], byte), _I32(0), _I32(3), _I32(1)])
        return context.get_dummy_value()

    return types.void(types.uint64), generate


@intrinsic
def opaque(typing: Any, value: Any) -> Any:
    """Return the uint64 ``value`` in a way that hides from the compiler what it is."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = cgutils.alloca_once(builder, _I64)
        builder.store_atomic(args[0], place, "seq_cst", 8)
        return builder.load_atomic(place, "seq_cst", 8)

    return types.uint64(types.uint64), generate


@intrinsic
def bits(typing: Any, value: Any) -> Any:
    """Return the float64 ``value`` as the uint64 with the same bits."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], _I64)

    return types.uint64(types.float64), generate


@intrinsic
def follow(typing: Any, address: Any) -> Any:
    """Load the uint64 at ``address``: one step of a pointer chase, one instruction."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(builder.inttoptr(args[0], ir.PointerType(_I64)))

    return types.uint64(types.uint64), generate


def _loop(builder: Any, nbytes: Any, step: int, body: Callable[[Any], None]) -> None:
    """Emit ``body(offset)`` for offsets 0, ``step``, ... below ``nbytes``, a multiple of it.

    Never unrolled, because prefetchers that go by the instruction then follow few of them. It begins with a line of
    code: the same five instructions were 7 % faster from memory and 40 % slower from a cache where a line's end
    cut their branch in two (Zen 3), and a loop's place is chance otherwise.
    """
    before, loop, after = builder.block, builder.append_basic_block("lines"), builder.append_basic_block("after")
    builder.cbranch(builder.icmp_unsigned("!=", nbytes, _I64(0)), loop, after)
    builder.position_at_end(loop)
    offset = builder.phi(_I64)
    offset.add_incoming(_I64(0), before)
    body(offset)
    following = builder.add(offset, _I64(step))
    offset.add_incoming(following, builder.block)
    branch = builder.cbranch(builder.icmp_unsigned("!=", following, nbytes), loop, after)
    branch.set_metadata("llvm.loop", _rolled_and_aligned(builder.module))
    builder.position_at_end(after)


def _rolled_and_aligned(module: Any) -> Any:
    """Return a loop's metadata, whose first operand has to be itself (LLVM's language reference, "llvm.loop")."""
    rolled = module.add_metadata([ir.MetaDataString(module, "llvm.loop.unroll.disable")])
    aligned = module.add_metadata([ir.MetaDataString(module, "llvm.loop.align"), _I32(LINE)])
    own = ir.MDValue(module, (rolled, aligned), name=str(len(module.metadata)))
    own.operands = (own, rolled, aligned)
    return own


def _operation(compute: Callable[[Any, list[Any], Any], Any], inputs: int, lanes: int, nt: bool) -> Any:
    """Return ``op(target, *sources, scalar, nbytes)``: elements computed from ``inputs`` sources and stored.

    ``lanes`` elements at a time; ``nbytes`` (uint64) of the target are filled, a multiple of what that stores.
    """
    vector = ir.VectorType(_F64, lanes)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        *addresses, scalar, nbytes = args
        scalar = _spread(builder, scalar, vector)

        def body(offset: Any) -> None:
            places = [builder.inttoptr(builder.add(base, offset), ir.PointerType(vector)) for base in addresses]
            loaded = [builder.load(place, align=8 * lanes) for place in places[1:]]
            store = builder.store(compute(builder, loaded, scalar), places[0], align=8 * lanes)
            if nt:
                store.set_metadata("nontemporal", builder.module.add_metadata([_I32(1)]))

        _loop(builder, nbytes, 8 * lanes, body)
        return context.get_dummy_value()

    signature = types.void(*[types.uint64] * (1 + inputs), types.float64, types.uint64)
    if inputs == 0:
        return intrinsic(lambda typing, target, scalar, nbytes: (signature, generate))
    if inputs == 1:
        return intrinsic(lambda typing, target, a, scalar, nbytes: (signature, generate))
    return intrinsic(lambda typing, target, a, b, scalar, nbytes: (signature, generate))


def _spread(builder: Any, scalar: Any, vector: Any) -> Any:
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, _I32(0))
    mask = ir.Constant(ir.VectorType(_I32, vector.count), [0] * vector.count)
    return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), mask)


def _copy(builder: Any, sources: list[Any], scalar: Any) -> Any:
    return sources[0]


def _scale(builder: Any, sources: list[Any], scalar: Any) -> Any:
    return builder.fmul(sources[0], scalar)


def _add(builder: Any, sources: list[Any], scalar: Any) -> Any:
    return builder.fadd(sources[0], sources[1])


def _triad(builder: Any, sources: list[Any], scalar: Any) -> Any:
    return builder.fadd(sources[0], builder.fmul(sources[1], scalar))


def _write(builder: Any, sources: list[Any], scalar: Any) -> Any:
    return scalar


copy_plain, copy_nt = _operation(_copy, 1, PLAIN_LANES, False), _operation(_copy, 1, LANES, True)
scale_plain, scale_nt = _operation(_scale, 1, PLAIN_LANES, False), _operation(_scale, 1, LANES, True)
add_plain, add_nt = _operation(_add, 2, PLAIN_LANES, False), _operation(_add, 2, LANES, True)
triad_plain, triad_nt = _operation(_triad, 2, PLAIN_LANES, False), _operation(_triad, 2, LANES, True)
write_plain, write_nt = _operation(_write, 0, PLAIN_LANES, False), _operation(_write, 0, LANES, True)


def _sum(grow: bool, long: bool) -> Any:
    """Return ``op(address, steps)``: the sum of ``steps`` * STEP bytes of uint64 words; ``grow`` adds one to each.

    Whole vectors in a rolled loop with an accumulator for each of its four: loops over words are not turned into
    that, and prefetchers that go by the instruction follow few of them (unrolled over 512 bytes it is 5 % slower).
    ``long`` ones begin with a line of code (_loop); on the few steps of a chunk that costs 4 to 7 %, as measured.
    """
    vector = ir.VectorType(_I64, PLAIN_LANES)
    parts = STEP // (8 * PLAIN_LANES)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        sums = [cgutils.alloca_once_value(builder, ir.Constant(vector, [0] * PLAIN_LANES)) for _ in range(parts)]
        for place in sums:  # at each call: the allocas stand at the function's head
            builder.store(ir.Constant(vector, [0] * PLAIN_LANES), place)

        def body(offset: Any) -> None:
            first = builder.inttoptr(builder.add(args[0], offset), ir.PointerType(vector))
            for part in range(parts):
                place = builder.gep(first, [_I64(part)])
                value = builder.load(place, align=8)
                builder.store(builder.add(builder.load(sums[part]), value), sums[part])
                if grow:
                    builder.store(builder.add(value, ir.Constant(vector, [1] * PLAIN_LANES)), place, align=8)

        if long:
            _loop(builder, builder.mul(args[1], _I64(STEP)), STEP, body)
        else:
            with cgutils.for_range(builder, args[1], intp=_I64) as loop:
                body(builder.mul(loop.index, _I64(STEP)))
        whole = [builder.load(place) for place in sums]
        both = builder.add(builder.add(whole[0], whole[1]), builder.add(whole[2], whole[3]))
        lanes = [builder.extract_element(both, _I32(lane)) for lane in range(PLAIN_LANES)]
        return builder.add(builder.add(lanes[0], lanes[1]), builder.add(lanes[2], lanes[3]))

    return intrinsic(lambda typing, address, steps: (types.uint64(types.uint64, types.uint64), generate))


sum_words, grow_words, sum_long = _sum(False, False), _sum(True, False), _sum(False, True)


@kernel()
def address(array):  # type: ignore[no-untyped-def]
    """Return where the array begins, unsigned as all addresses here: signed ones stop optimisation."""
    return np.uint64(array.ctypes.data)


@kernel()
def line_bytes(array):  # type: ignore[no-untyped-def]
    """Return the bytes in the array's whole lines."""
    return np.uint64(array.size // LANES) * np.uint64(LINE)


@kernel()
def meet(barrier, arrivals):  # type: ignore[no-untyped-def]
    """Come to the barrier and spin until ``arrivals`` threads have come, counted from the very start."""
    add_atomic(barrier, 1)
    while load_atomic(barrier) < arrivals:
        pass
