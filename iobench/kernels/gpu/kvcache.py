"""A KV cache in GPU memory: its layouts and formats, one decode step's reads, and the proof of every value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from iobench.errors import WrongData

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from iobench.gpu import Device

FORMATS = ("fp16", "int8", "fp8")
DIM = 128
THREADS = 256
_VALUE_NBYTES = {"fp16": 2, "int8": 1, "fp8": 1}
_SCALE_NBYTES, _ENTRY_NBYTES, _VECTOR_NBYTES = 4, 4, 16
_ALIGN = 512
_BLOCKS_PER_SM = 4  # what kv.cu's launch bounds promise
_MOST_WAVES = 8
_MOST_IDLE = 0.1  # the fewest parts that leave no more of the SMs idle: short ones cost more than they fill
_POOL_FACTOR = 4  # steps rotate over caches that together cover this many times the L2
_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class Model:
    """What of a model shapes its KV cache; the head dimension is 128."""

    layers: int
    heads: int  # for keys and values


# config.json of the models: num_hidden_layers, num_key_value_heads
MODELS = {"llama-3-8b": Model(32, 8), "llama-3-70b": Model(80, 8)}


@dataclass(frozen=True)
class Layout:
    """The bytes of one cache: ``sequences`` of ``tokens`` each, scales and table entries per ``block`` tokens.

    Not paged: keys and values of a layer are [sequence, token, head, dim] in order. Paged: a layer is a pool of
    blocks [block, token, head, dim] that a table assigns to the sequences at random.
    """

    layers: int
    heads: int
    sequences: int
    tokens: int
    dtype: str
    paged: bool
    block: int

    @property
    def blocks(self) -> int:
        """The blocks of one sequence; the last one may be part empty."""
        return -(-self.tokens // self.block)

    @property
    def row_nbytes(self) -> int:
        return DIM * _VALUE_NBYTES[self.dtype]

    @property
    def quantised(self) -> bool:
        return self.dtype != "fp16"

    @property
    def plane_nbytes(self) -> int:
        """The keys (or the values) of one layer as they lie in memory."""
        rows = self.sequences * (self.blocks * self.block if self.paged else self.tokens)
        return _aligned(rows * self.heads * self.row_nbytes)

    @property
    def scales_nbytes(self) -> int:
        """The scales of the keys (or the values) of one layer."""
        return _aligned(self.sequences * self.blocks * self.heads * _SCALE_NBYTES) if self.quantised else 0

    @property
    def table_nbytes(self) -> int:
        return _aligned(self.sequences * self.blocks * _ENTRY_NBYTES) if self.paged else 0

    @property
    def room(self) -> int:
        """The bytes of one cache in memory, its table not included."""
        return 2 * self.layers * (self.plane_nbytes + self.scales_nbytes)

    @property
    def payload(self) -> int:
        """The bytes of keys and values that one step reads."""
        return 2 * self.layers * self.sequences * self.tokens * self.heads * self.row_nbytes

    @property
    def read_scales(self) -> int:
        """The bytes of scales that one step reads."""
        each = self.sequences * self.blocks * self.heads * _SCALE_NBYTES
        return 2 * self.layers * each if self.quantised else 0

    @property
    def read_table(self) -> int:
        """The bytes of the block table that one step reads: once per layer, however many thread blocks look."""
        return self.layers * self.sequences * self.blocks * _ENTRY_NBYTES if self.paged else 0

    @property
    def moved(self) -> int:
        return self.payload + self.read_scales + self.read_table

    def slots(self, l2_nbytes: int) -> int:
        """Return how many caches steps rotate over, so that no step finds what the last one read in the L2."""
        return max(-(-_POOL_FACTOR * l2_nbytes // self.room), 1)

    def from_memory(self, l2_nbytes: int) -> int:
        """Return the bytes of a step that device memory must have moved; the table may stay in the L2."""
        slots = self.slots(l2_nbytes)
        total = slots * (self.payload + self.read_scales)
        return max(total - l2_nbytes, 0) // slots

    def splits(self, group: int, sm_count: int) -> int:
        """Return into how many parts a sequence's tokens are cut, so that thread blocks fill waves of all SMs."""
        parallel, wave = self.sequences * (self.heads // group) * 2, sm_count * _BLOCKS_PER_SM
        rows = max(THREADS // (self.row_nbytes // _VECTOR_NBYTES * group), 1)
        most = max(min(-(-self.tokens // rows), _MOST_WAVES * wave // parallel), 1)

        def idle(splits: int) -> float:
            waves = -(-parallel * splits // wave)
            return 1 - parallel * splits / (waves * wave)

        enough = (splits for splits in range(1, most + 1) if idle(splits) <= _MOST_IDLE)
        return next(enough, min(range(1, most + 1), key=idle))


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGN) * _ALIGN


def block_table(layout: Layout, seed: int) -> NDArray[np.int32]:
    """Return a random assignment of all blocks of the pool to the sequences: [sequence, block]."""
    import numpy as np

    order = np.random.default_rng(seed).permutation(layout.sequences * layout.blocks)
    return order.astype(np.int32).reshape(layout.sequences, layout.blocks)


def steps_in(sums: NDArray[np.uint64], expected: NDArray[np.uint64]) -> int | None:
    """Return how many steps make ``sums`` out of ``expected`` (both modulo 2^64); None where no number does."""
    signed, wanted = sums.astype("i8").ravel(), expected.astype("i8").ravel()
    filled = wanted != 0
    if not filled.any() or signed[filled][0] % wanted[filled][0]:
        return None
    count = int(signed[filled][0] // wanted[filled][0])
    return count if count > 0 and (signed == wanted * count).all() else None


class Cache:
    """A cache on a device. Make it with its device and stream current; call ``prepare`` before ``enqueue``."""

    def __init__(self, layout: Layout, ptr: int, slots: int, group: int, device: Device, seed: int) -> None:
        import cupy
        import numpy as np

        from iobench.kernels import gpu as kernels

        self.layout, self.ptr, self.slots, self.group, self.device = layout, ptr, slots, group, device
        self._np, self._kernels = np, kernels
        self._table = cupy.asarray(block_table(layout, seed)) if layout.paged else None
        self.splits = layout.splits(group, device.sm_count)
        self._shape = (layout.layers, 2, layout.sequences, layout.heads)
        self._sums = cupy.zeros(self._shape, dtype=cupy.uint64)
        self._expected = cupy.zeros(self._shape, dtype=cupy.uint64)
        self._launches: list[list[tuple[Any, ...]]] = []

    def prepare(self) -> None:
        """Write every cache and compute what each layer's sums must be."""
        np, layout = self._np, self.layout
        format_number = np.int32(FORMATS.index(layout.dtype))
        fill, expect = (self._kernels.function("kv", name) for name in ("fill_layer", "expect_layer"))
        grid, block = (self.device.sm_count * 8,), (THREADS,)
        for slot in range(self.slots):
            for number in range(layout.layers):
                fill(grid, block, (*self._layer(slot, number), format_number))
        for number in range(layout.layers):
            sums = np.uint64(self._expected[number].data.ptr)
            expect(grid, block, (*self._layer(0, number), format_number, sums))
        self._launches = [
            [
                (*self._layer(slot, number), np.uint32(self.group), np.uint32(self.splits), self._sum_of(number))
                for number in range(layout.layers)
            ]
            for slot in range(self.slots)
        ]
        self._read = self._kernels.function("kv", f"read_{layout.dtype}")
        blocks = layout.sequences * (layout.heads // self.group) * 2 * self.splits
        self._grid = (blocks,)

    def enqueue(self, turn: int) -> None:
        """Put one decode step on the current stream: one launch per layer."""
        read, grid = self._read, self._grid
        for arguments in self._launches[turn % self.slots]:
            read(grid, (THREADS,), arguments)

    def begin(self) -> None:
        """Forget the sums of earlier steps."""
        self._sums.fill(0)

    def check(self) -> int:
        """Return how many steps the sums hold; WrongData where they are no multiple of what one step must give."""
        steps = steps_in(self._sums.get(), self._expected.get())
        if steps is None:
            raise WrongData("KV cache: the sums per layer, sequence and head are no multiple of what one step gives")
        return steps

    def _sum_of(self, number: int) -> Any:
        return self._np.uint64(self._sums[number].data.ptr)

    def _layer(self, slot: int, number: int) -> tuple[Any, ...]:
        """Return a layer as the kernels take it (LAYER_PARAMETERS in kv.cu)."""
        np, layout = self._np, self.layout
        base = self.ptr + slot * layout.room
        scales = base + 2 * layout.layers * layout.plane_nbytes
        pointers = [base + (kind * layout.layers + number) * layout.plane_nbytes for kind in (0, 1)]
        pointers += [scales + (kind * layout.layers + number) * layout.scales_nbytes for kind in (0, 1)]
        pointers.append(self._table.data.ptr if self._table is not None else 0)
        shift = layout.block.bit_length() - 1
        numbers = (number, layout.layers, layout.sequences, layout.tokens, layout.heads, shift, layout.blocks)
        return (*map(np.uint64, pointers), *map(np.uint32, numbers))
