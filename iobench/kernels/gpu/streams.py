"""Streams over device memory: how a working set is laid out, which grid walks it, and the proof of every element."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from iobench.errors import UserError, WrongData
from iobench.units import GIB, MIB, format_size

if TYPE_CHECKING:
    from iobench.gpu import Device

WORD = 8
ARRAYS = {"read": 1, "write": 1, "copy": 2, "triad": 3, "memcpy": 2, "memset": 1}
KERNELS = ("read", "write", "copy", "triad")
UNROLLS = (1, 2, 4, 8)
STEP = 0x9E3779B97F4A7C15  # hbm.cu has the same
SCALAR = 3.0
MEMSET_BYTE, POISON_BYTE = 0x5A, 0xA5
SEED = 12345
_ALIGN = 512
_MASK = (1 << 64) - 1
_ALONE_NBYTES = 128 * MIB  # from here on a pass has a launch of its own: 1 us of its 30 is the launch's
_LAUNCH_NBYTES = GIB  # below, one launch makes passes until it has moved about this much
_MOST_PASSES = 4096
_POOL_FACTOR = 4  # rotating slots cover this many times the L2 cache
_TRIAL_NBYTES = 8 * GIB
_MOST_THREADS = 1024
_MOST_PER_SM = 32


@dataclass(frozen=True)
class Shape:
    """How a kernel covers the vectors: "threads x vectors in flight per thread x blocks per SM".

    0 blocks per SM: one tile per block, as many blocks as there are tiles.
    """

    threads: int
    unroll: int
    per_sm: int

    @classmethod
    def parse(cls, text: str) -> Shape:
        """Read "512x4x2"; UserError for anything else."""
        parts = text.split("x")
        if len(parts) != 3 or not all(part.isascii() and part.isdigit() for part in parts):
            raise UserError(f"-a shape={text} is malformed: write threads x unroll x blocks per SM, as in 512x4x2")
        threads, unroll, per_sm = map(int, parts)
        shape = cls(threads, unroll, per_sm)
        if not (32 <= shape.threads <= _MOST_THREADS and shape.threads % 32 == 0 and shape.unroll in UNROLLS):
            raise UserError(f"-a shape={text}: threads are 32 to 1024 in steps of 32, unroll is one of {UNROLLS}")
        if shape.per_sm > _MOST_PER_SM:
            raise UserError(f"-a shape={text}: at most {_MOST_PER_SM} blocks per SM; 0 is one block per tile")
        return shape

    def __str__(self) -> str:
        return f"{self.threads}x{self.unroll}x{self.per_sm}"

    def blocks(self, words: int, sm_count: int) -> int:
        """Return the grid: one block at least, never more than there are tiles."""
        tiles = max(-(-(words // 2) // (self.threads * self.unroll)), 1)
        return min(tiles, sm_count * self.per_sm) if self.per_sm else min(tiles, (1 << 31) - 1)


# What the quick search tries, best on an H200 first. One tile per block is fastest by up to 6 %, but such a block would
# make all its passes over its own tile: several passes in one launch need a grid that stays on the SMs.
_ONE_PASS = {
    "read": ("1024x8x0", "512x8x0", "1024x4x0", "256x8x0"),
    "write": ("1024x4x0", "256x4x0", "1024x2x0", "256x2x0"),
    "copy": ("256x1x0", "1024x2x0", "1024x8x0", "1024x1x0"),
    "triad": ("1024x1x0", "256x1x0", "1024x4x0", "1024x2x0"),
}
_ANYWHERE = ("512x4x4", "256x8x4")
_PASSES = ("1024x4x2", "512x8x4", "256x8x4", "512x4x4", "256x4x8", "512x2x4")
_NEAR = 1.003  # a shape must be faster than an earlier one by this factor: launches shall choose alike


def candidates(kernel: str, passes: int) -> list[Shape]:
    """Return the shapes to try, those that are best most often first."""
    return [Shape.parse(text) for text in (_PASSES if passes > 1 else _ONE_PASS[kernel] + _ANYWHERE)]


def fastest(seconds: list[float]) -> int:
    """Return the index of the least time, of an earlier one where that is as good within 0.3 %."""
    return next(index for index, value in enumerate(seconds) if value <= min(seconds) * _NEAR)


@dataclass(frozen=True)
class Layout:
    """Where the arrays lie in one buffer: slot after slot, array after array, each aligned to 512 bytes."""

    arrays: int
    words: int
    slots: int

    @classmethod
    def of(cls, kernel: str, nbytes: int, l2_nbytes: int, rotating: bool) -> Layout:
        """Lay out a working set of ``nbytes`` (all arrays together), so many slots that they outgrow the L2."""
        arrays = ARRAYS[kernel]
        words = max(nbytes // (WORD * arrays), 1)
        one = cls(arrays, words, 1)
        return cls(arrays, words, max(-(-_POOL_FACTOR * l2_nbytes // one.stride), 1)) if rotating else one

    @property
    def array_nbytes(self) -> int:
        """The bytes from one array to the next."""
        return -(-self.words * WORD // _ALIGN) * _ALIGN

    @property
    def stride(self) -> int:
        """The bytes from one slot to the next."""
        return self.arrays * self.array_nbytes

    @property
    def room(self) -> int:
        return self.slots * self.stride

    @property
    def moved(self) -> int:
        """The bytes that one pass reads and writes: each element of each array once."""
        return self.arrays * self.words * WORD

    @property
    def passes(self) -> int:
        """How many passes one launch makes: more than one where a pass is too short beside a launch's own cost."""
        if self.moved >= _ALONE_NBYTES:
            return 1
        return max(min(_LAUNCH_NBYTES // self.moved, _MOST_PASSES), self.slots)

    def from_memory(self, l2_nbytes: int) -> int:
        """Return the bytes of a pass that device memory must have moved, whatever the L2 cache kept.

        In a round over all slots at most an L2 full of bytes can be served without the memory.
        """
        total = self.slots * self.moved
        return self.moved * max(total - l2_nbytes, 0) // total


def pattern_sum(words: int, seed: int) -> int:
    """Return the sum of words STEP * i + seed for i below ``words``, modulo 2^64."""
    return (STEP * (words * (words - 1) // 2) + seed * words) & _MASK


def launches_in(total: int, once: int) -> int | None:
    """Return how many launches of sum ``once`` make ``total`` modulo 2^64; None where no number below 2^31 does.

    The odd part of ``once`` has an inverse modulo a power of two, so a wrong total passes by chance once in 2^32.
    """
    twos = (once & -once).bit_length() - 1
    if once == 0 or total & ((1 << twos) - 1):
        return None
    count = (total >> twos) * pow(once >> twos, -1, 1 << (64 - twos)) & ((1 << (64 - twos)) - 1)
    return count if 0 < count < 1 << 31 else None


class Streams:
    """One kernel over one buffer. Make it with its device current and call ``prepare`` first."""

    def __init__(self, kernel: str, ptr: int, layout: Layout, device: Device, stream: Any) -> None:
        self.kernel, self.ptr, self.layout, self.device, self.stream = kernel, ptr, layout, device, stream
        self.shape: Shape | None = None
        self.enqueue: Callable[[int], None] = self._copy if kernel == "memcpy" else self._set

    # ---- the timed operation: ``enqueue(turn)`` puts one launch (or one memcpy, memset) on the current stream

    def use(self, shape: Shape) -> None:
        """Choose the grid; ``enqueue`` uses it from now on. UserError where it can't make several passes."""
        if self.passes > 1 and not shape.per_sm:
            raise UserError(
                f"-a shape={shape}: one tile per block needs sets of {format_size(_ALONE_NBYTES)}, use larger -a nbytes"
            )
        self.shape = shape
        self.enqueue = self._bind(shape, self.layout.words)

    @property
    def passes(self) -> int:
        """The passes that one ``enqueue`` makes."""
        return self.layout.passes if self.kernel in KERNELS else 1

    def search(self, seconds_of: Callable[[Callable[[int], None]], float]) -> Shape:
        """Return the fastest candidate on a part of the working set; ``seconds_of`` times a launch, off the record."""
        words = min(self.layout.words, _TRIAL_NBYTES // (WORD * self.layout.arrays))
        shapes = candidates(self.kernel, self.passes)
        return shapes[fastest([seconds_of(self._bind(shape, words)) for shape in shapes])]

    def _bind(self, shape: Shape, words: int) -> Callable[[int], None]:
        """Return a closure that only launches: every argument is ready. One pass: launches go round the slots."""
        import numpy as np

        from iobench.kernels import gpu as kernels

        function, layout = kernels.function("hbm", f"{self.kernel}_{shape.unroll}"), self.layout
        common = [np.uint64(words), np.uint64(layout.stride // WORD), np.uint32(layout.slots if self.passes > 1 else 1)]
        common += [np.uint32(self.passes)]
        extra: dict[str, Any] = {"read": np.uint64(self._total), "write": np.uint64(SEED), "triad": np.float64(SCALAR)}
        last = [extra[self.kernel]] if self.kernel in extra else []
        slots = layout.slots if self.passes == 1 else 1
        pointers = [[np.uint64(self._array(n, slot)) for n in range(layout.arrays)] for slot in range(slots)]
        arguments = [(*pointers[slot], *common, *last) for slot in range(slots)]
        grid, block = (shape.blocks(words, self.device.sm_count),), (shape.threads,)
        return lambda turn: function(grid, block, arguments[turn % slots])

    def _copy(self, turn: int) -> None:
        from iobench import gpu

        at = self.ptr + turn % self.layout.slots * self.layout.stride
        gpu.memcpy(at, at + self.layout.array_nbytes, self.layout.words * WORD, self.stream)

    def _set(self, turn: int) -> None:
        from cupy.cuda import runtime

        at = self.ptr + turn % self.layout.slots * self.layout.stride
        runtime.memsetAsync(at, MEMSET_BYTE, self.layout.words * WORD, self.stream.ptr)

    # ---- filling and proving, outside the clock

    def prepare(self) -> None:
        """Write the operands and poison what the kernel will write."""
        import cupy

        self._result = cupy.zeros(2, dtype=cupy.uint64)
        self._total = self._result.data.ptr
        for slot in range(self.layout.slots):
            if self.kernel != "read":
                self._poison(slot)
            if self.kernel == "triad":
                self._run("fill_reals", self._array(1, slot), self.layout.words, SEED + slot)
                self._run("fill_reals", self._array(2, slot), self.layout.words, SEED + slot + 7)
            elif self.kernel in ("copy", "memcpy"):
                self._run("fill_words", self._array(1, slot), self.layout.words, SEED + slot)
            elif self.kernel == "read":  # the same in each slot, so that every launch adds the same sum
                self._run("fill_words", self._array(0, slot), self.layout.words, SEED)
        self._synchronize()

    def begin(self) -> None:
        """Forget what searching and warming left in the result, and poison again what the kernel will write."""
        self._result.fill(0)
        for slot in range(self.layout.slots):
            if self.kernel != "read":
                self._poison(slot)
        self._synchronize()

    def check(self) -> None:
        """Prove what the launches since ``begin`` did, every element of it; WrongData says what differs."""
        if self.kernel not in KERNELS:
            for slot in range(self.layout.slots):  # a few timed calls need not have reached every slot
                self.enqueue(slot)
        self._synchronize()
        self._sum_is_right() if self.kernel == "read" else self._arrays_are_right()

    def _sum_is_right(self) -> None:
        once = pattern_sum(self.layout.words, SEED) * self.passes & _MASK
        found = int(self._result[0])
        if not launches_in(found, once):
            raise WrongData(
                f"read: the sum of all words is {found:#x}, no multiple of {once:#x}: a launch skips or repeats some"
            )

    def _arrays_are_right(self) -> None:
        for slot in range(self.layout.slots):
            self._run(*self._proof(slot), self._total + WORD)
        self._synchronize()
        wrong = int(self._result[1])
        if wrong:
            total = self.layout.slots * self.layout.words
            raise WrongData(f"{self.kernel}: {wrong} of {total} words are not what it should have written")

    def _proof(self, slot: int) -> tuple[Any, ...]:
        target, words = self._array(0, slot), self.layout.words
        if self.kernel == "triad":
            return "wrong_triad", target, words, SEED + slot, SEED + slot + 7, SCALAR
        if self.kernel == "memset":
            return "other_words", target, words, int.from_bytes(bytes([MEMSET_BYTE] * WORD), "little")
        return "wrong_words", target, words, SEED + (slot if self.kernel != "write" else 0)

    def _array(self, number: int, slot: int = 0) -> int:
        return self.ptr + slot * self.layout.stride + number * self.layout.array_nbytes

    def _poison(self, slot: int) -> None:
        from cupy.cuda import runtime

        runtime.memsetAsync(self._array(0, slot), POISON_BYTE, self.layout.words * WORD, self.stream.ptr)

    def _run(self, name: str, *arguments: Any) -> None:
        import numpy as np

        from iobench.kernels import gpu as kernels

        typed = [np.float64(value) if isinstance(value, float) else np.uint64(value) for value in arguments]
        kernels.function("hbm", name)((self.device.sm_count * 8,), (256,), tuple(typed))

    def _synchronize(self) -> None:
        self.stream.synchronize()
