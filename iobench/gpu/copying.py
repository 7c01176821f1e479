"""Copies of rotating messages between two regions of memory, by copy engine or by SMs; every byte verified."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from iobench.errors import WrongData
from iobench.units import KIB, MIB

if TYPE_CHECKING:
    from iobench.gpu.device import Device

SEED, POISON = 0x10BE, 0xDEAD
_WHOLE = 256  # messages of a multiple of this stand without gaps: each keeps the alignment that CUDA gives a buffer
_GAP_STRIDE = 4 * KIB
_MOST_GAPPED = 2048
_CACHES_OVER = 2
_LEAST_GRAPH, _MOST_GRAPH = 8, 256  # a launch queue must hold two graphs
_EXCHANGE_THREADS = 1024
_ROUNDED_NBYTES = 256 * MIB  # up to here a buffer is a power of two: pinning 128 MiB anew for each size takes a second
_THREADS = 512  # threads of a block; one block per SM, as the kernel's registers allow


@dataclass(frozen=True)
class Layout:
    """Slots for messages of ``nbytes`` in one region, used in turn; the same in the source and in the target."""

    nbytes: int
    stride: int
    count: int

    @property
    def region_nbytes(self) -> int:
        return self.stride * self.count

    @property
    def gapless(self) -> bool:
        return self.stride == self.nbytes

    @property
    def graph_ops(self) -> int:
        """How many messages a graph must hold to rotate over the cache, within what a graph can well hold."""
        return min(max(self.count, _LEAST_GRAPH), _MOST_GRAPH)

    def offset(self, turn: int) -> int:
        return turn % self.count * self.stride

    def touched_nbytes(self, turns: int) -> int:
        """Return how much of the region ``turns`` messages have reached, from its start."""
        return min(turns, self.count) * self.stride


def layout(nbytes: int, cache_nbytes: int) -> Layout:
    """Return slots that together are larger than twice the cache, so that no message is found there.

    Messages that do not fill whole 256-byte pieces start 4 KiB apart, 2,048 of them: their few lines stay cached.
    """
    if nbytes % _WHOLE == 0:
        return Layout(nbytes, nbytes, _CACHES_OVER * cache_nbytes // nbytes + 1)
    stride = -(-nbytes // _GAP_STRIDE) * _GAP_STRIDE
    return Layout(nbytes, stride, min(_CACHES_OVER * cache_nbytes // stride + 1, _MOST_GAPPED))


class Memory(Protocol):
    """What gpu.buffer, gpu.pinned and gpu.pageable yield."""

    @property
    def ptr(self) -> int: ...
    @property
    def nbytes(self) -> int: ...


class Arena:
    """Buffers kept from point to point; one that is too small is freed before a larger one is made."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._held: dict[Hashable, tuple[contextlib.ExitStack, Any]] = {}

    def get(self, key: Hashable, nbytes: int, make: Callable[[int], contextlib.AbstractContextManager[Any]]) -> Any:
        """Return what ``make`` yields for ``nbytes`` or somewhat more, or what stands under ``key`` if large enough."""
        if key in self._held and self._held[key][1].nbytes >= nbytes:
            return self._held[key][1]
        self.drop(key)
        stack = contextlib.ExitStack()
        made = stack.enter_context(make(1 << (nbytes - 1).bit_length() if nbytes <= _ROUNDED_NBYTES else nbytes))
        self._stack.push(stack.__exit__)
        self._held[key] = (stack, made)
        return made

    def drop(self, key: Hashable) -> None:
        """Free what stands under ``key``."""
        if key in self._held:
            stack, _ = self._held.pop(key)
            stack.close()


@contextlib.contextmanager
def arena() -> Iterator[Arena]:
    """Yield an empty arena; all that it holds is freed on leaving."""
    with contextlib.ExitStack() as stack:
        yield Arena(stack)


@dataclass
class Copy:
    """Messages from ``src`` to ``dst``: ``enqueue`` puts the next one on the stream, ``verify`` compares all of them.

    ``device`` is the GPU that issues the copy; ``seen`` tells which memories its kernels can reach (pageable host
    memory is none of them: its pattern is written and read through the other side). ``repeats`` messages go with
    one launch of the SM kernel.
    """

    src: Memory
    dst: Memory
    layout: Layout
    device: Device
    engine: str
    stream: Any
    repeats: int = 1
    src_seen: bool = True
    dst_seen: bool = True
    turns: int = 0

    def prepare(self) -> None:
        """Write the pattern into the source and another one into the target."""
        from iobench import gpu

        nbytes = self.layout.region_nbytes
        with gpu.using(self.device):
            if self.src_seen:
                gpu.fill(self.src.ptr, nbytes, SEED)
            else:
                gpu.fill(self.dst.ptr, nbytes, SEED)
                self._move(self.src.ptr, self.dst.ptr, nbytes)
            if self.dst_seen:
                gpu.fill(self.dst.ptr, nbytes, POISON)
            else:
                gpu.fill(self.src.ptr, nbytes, POISON)
                self._move(self.dst.ptr, self.src.ptr, nbytes)
                gpu.fill(self.src.ptr, nbytes, SEED)
            gpu.synchronize()
        self.turns = 0

    @property
    def enqueue(self) -> Callable[[int], Any]:
        """Return what puts the next message (or ``repeats`` of them) on the stream; the turn is counted here."""
        return self._copy_engine() if self.engine == "ce" else self._kernel()

    def _copy_engine(self) -> Callable[[int], Any]:
        from iobench import gpu

        memcpy, layout, stream, src, dst = gpu.memcpy, self.layout, self.stream, self.src.ptr, self.dst.ptr
        nbytes = layout.nbytes

        def enqueue(_: int) -> None:
            offset = layout.offset(self.turns)
            self.turns += 1
            memcpy(dst + offset, src + offset, nbytes, stream)

        return enqueue

    def _kernel(self) -> Callable[[int], Any]:
        import numpy as np

        from iobench import gpu
        from iobench.kernels.gpu import function

        with gpu.using(self.device):
            kernel = function("transfer", "transfer_copy")
        grid, block = (blocks(self.layout.nbytes, self.device.sm_count),), (_THREADS,)
        layout, u64 = self.layout, np.uint64
        fixed = [u64(value) for value in (self.dst.ptr, self.src.ptr, layout.nbytes, layout.stride, layout.count)]
        repeats = u64(self.repeats)

        def enqueue(_: int) -> None:
            turn = self.turns
            self.turns += self.repeats
            kernel(grid, block, (*fixed, u64(turn), repeats))

        return enqueue

    def call(self) -> Callable[[], Any]:
        """Return one message from the host's call to its completion."""
        enqueue, wait = self.enqueue, self.stream.synchronize

        def call() -> None:
            enqueue(0)
            wait()

        return call

    def verify(self, what: str) -> None:
        """Compare every byte of every slot that was copied to; WrongData where one differs."""
        from iobench import gpu

        nbytes = self.layout.touched_nbytes(self.turns)
        with gpu.using(self.device):
            if not self.layout.gapless:
                self._verify_slots(what, nbytes)
            elif self.dst_seen:
                gpu.check(self.dst.ptr, nbytes, SEED, what)
            else:
                # The target goes back into the source's place, whose right bytes are no longer needed.
                gpu.fill(self.src.ptr, nbytes, POISON)
                self._move(self.src.ptr, self.dst.ptr, nbytes)
                gpu.check(self.src.ptr, nbytes, SEED, what)

    def _verify_slots(self, what: str, nbytes: int) -> None:
        """Compare slots with gaps on the host; the gaps must still hold what was there before."""
        import numpy as np

        found = np.zeros(nbytes, np.uint8)
        self._move(int(found.ctypes.data), self.dst.ptr, nbytes)
        right = _pattern(nbytes, POISON).reshape(-1, self.layout.stride).copy()
        right[:, : self.layout.nbytes] = _pattern(nbytes, SEED).reshape(right.shape)[:, : self.layout.nbytes]
        wrong = np.flatnonzero(found != right.reshape(-1))
        if wrong.size:
            slot, byte = divmod(int(wrong[0]), self.layout.stride)
            raise WrongData(f"{what}: {wrong.size} bytes differ, the first is byte {byte} of message {slot}")

    def _move(self, dst: int, src: int, nbytes: int) -> None:
        from iobench import gpu

        gpu.memcpy(dst, src, nbytes, self.stream)
        self.stream.synchronize()


@functools.lru_cache(4)
def _pattern(nbytes: int, seed: int) -> Any:
    """Return the pattern as an array that is not to be written: most messages with gaps have the same region."""
    from iobench import gpu

    return gpu.expected(nbytes, seed)


def exchange(one: Copy, two: Copy) -> Callable[[int], Any]:
    """Return what launches one kernel that carries the next messages of both copies, of one GPU and one layout."""
    import numpy as np

    from iobench import gpu
    from iobench.kernels.gpu import function

    with gpu.using(one.device):
        kernel = function("transfer", "transfer_exchange")
    layout, u64 = one.layout, np.uint64
    fixed = [u64(value) for value in (one.dst.ptr, one.src.ptr, two.dst.ptr, two.src.ptr)]
    fixed += [u64(value) for value in (layout.nbytes, layout.stride, layout.count)]
    grid = (-(-2 * layout.nbytes // (16 * _EXCHANGE_THREADS)),)
    repeats = u64(one.repeats)

    def enqueue(_: int) -> None:
        turn = one.turns
        one.turns += one.repeats
        two.turns = one.turns
        kernel(grid, (_EXCHANGE_THREADS,), (*fixed, u64(turn), repeats))

    return enqueue


def blocks(nbytes: int, sm_count: int) -> int:
    """Return how many blocks copy a message: as many as have 16 bytes per thread to copy, one per SM at most."""
    return max(1, min(sm_count, -(-nbytes // (16 * _THREADS))))


def repeats(nbytes: int, bytes_per_s: float, seconds: float) -> int:
    """Return how many messages of ``nbytes`` take about ``seconds`` at ``bytes_per_s``."""
    return max(1, round(seconds * bytes_per_s / nbytes))
