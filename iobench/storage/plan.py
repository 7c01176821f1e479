"""What a load has to bring where: whole files, tensor by tensor, or one rank's part of each tensor. Pure.

Tensor-parallel parts follow the rule of Megatron-LM that vLLM, SGLang and TensorRT-LLM share: the first layer of a
pair is split by its output (rows of the matrix as it is stored), the second by its input (columns); embeddings and
the head by the vocabulary; norms, biases of the second layer and what is not known by name go whole to every rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from iobench.storage.checkpoint import Checkpoint
from iobench.storage.layout import Tensor

WHOLE, TENSORS, SLICES = "files", "tensors", "slices"
SLOT = 2 << 20  # every file starts at a multiple of it in the destination, and has room to read past its end
PLACE = 512  # every tensor starts at a multiple of it: what cudaMalloc aligns to, and no unit of the sums is shared
_BY_ROWS = (
    "q_proj", "k_proj", "v_proj", "qkv_proj", "query_key_value", "gate_proj", "up_proj", "gate_up_proj", "embed_tokens",
    "lm_head", "wq", "wk", "wv", "w1", "w3", "fc1", "dense_h_to_4h", "wte",
)  # fmt: skip
_BY_COLUMNS = ("o_proj", "down_proj", "out_proj", "wo", "w2", "fc2", "dense_4h_to_h")


@dataclass(frozen=True)
class Area:
    """Bytes of one file that belong together in the destination: ``rows`` pieces of ``width``, ``pitch`` apart.

    They start at ``offset`` of the file ``shard`` and stand without gaps from ``start`` on in the destination.
    """

    name: str
    shard: int
    offset: int
    start: int
    width: int
    pitch: int = 0
    rows: int = 1

    @property
    def nbytes(self) -> int:
        """What arrives in the destination."""
        return self.width * self.rows

    @property
    def span(self) -> int:
        """What lies between its first and its last byte in the file."""
        return (self.rows - 1) * self.pitch + self.width


@dataclass(frozen=True)
class Plan:
    """All areas of a load, in the order of the files' bytes, and the bytes of the destination."""

    areas: tuple[Area, ...]
    room: int
    notes: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        """What arrives in the destination."""
        return sum(area.nbytes for area in self.areas)


def files(checkpoint: Checkpoint) -> Plan:
    """Return the load of every file as it is, headers included."""
    areas, at = [], 0
    for number, shard in enumerate(checkpoint.shards):
        areas.append(Area(shard.path.name, number, 0, at, shard.nbytes, shard.nbytes))
        at += -(-shard.nbytes // SLOT) * SLOT
    return Plan(tuple(areas), at)


def tensors(checkpoint: Checkpoint) -> Plan:
    """Return the load of every tensor to a place of its own."""
    return _packed(checkpoint, 0, 1)


def slices(checkpoint: Checkpoint, rank: int, tp: int) -> Plan:
    """Return what rank ``rank`` of ``tp`` keeps; ValueError for a rank that is none."""
    if not 0 <= rank < tp:
        raise ValueError(f"rank {rank} of {tp}")
    return _packed(checkpoint, rank, tp)


def plan(checkpoint: Checkpoint, what: str, rank: int = 0, tp: int = 1) -> Plan:
    """Return the plan of ``what``: files, tensors or slices."""
    if what == SLICES:
        return slices(checkpoint, rank, tp)
    return files(checkpoint) if what == WHOLE else tensors(checkpoint)


def cut(area: Area, block: int, alignment: int = 1) -> Iterator[Area]:
    """Cut an area into parts that one aligned read of at most ``block`` bytes covers, in order.

    One piece is cut at multiples of ``block`` in the file, so that its reads need no alignment but at its ends; of
    several, as many rows as fit go together, and a row that is longer is cut as one piece.
    """
    if area.rows > 1 and area.pitch + 2 * alignment <= block:
        fitting = (block - 2 * alignment) // area.pitch
        for row in range(0, area.rows, fitting):
            yield replace(
                area,
                offset=area.offset + row * area.pitch,
                start=area.start + row * area.width,
                rows=min(fitting, area.rows - row),
            )
        return
    for row in range(area.rows):
        offset, start = area.offset + row * area.pitch, area.start + row * area.width
        end = offset + area.width
        while offset < end:
            width = min((offset // block + 1) * block, end) - offset
            yield replace(area, offset=offset, start=start, width=width, pitch=width, rows=1)
            offset, start = offset + width, start + width


def _packed(checkpoint: Checkpoint, rank: int, tp: int) -> Plan:
    areas, at, whole = [], 0, 0
    for number, shard in enumerate(checkpoint.shards):
        for tensor in shard.spans:
            if tensor.end == tensor.begin:
                continue
            area = _part(tensor, number, shard.data_start, at, rank, tp)
            if tp > 1 and area.nbytes == tensor.end - tensor.begin and dimension(tensor.name) is not None:
                whole += 1
            areas.append(area)
            at += -(-area.nbytes // PLACE) * PLACE
    note = f"tensors that {tp} ranks can't split evenly and that go whole to each: {whole}"
    return Plan(tuple(areas), at, (note,) if whole else ())


def _part(tensor: Tensor, shard: int, data_start: int, start: int, rank: int, tp: int) -> Area:
    nbytes, begin = tensor.end - tensor.begin, data_start + tensor.begin
    split = dimension(tensor.name)
    whole = Area(tensor.name, shard, begin, start, nbytes, nbytes)
    if tp == 1 or split is None or split >= len(tensor.shape) or tensor.shape[split] % tp or tensor.bits % 8:
        return whole
    if not tensor.bits:
        return whole
    rows = 1
    for extent in tensor.shape[:split]:
        rows *= extent
    pitch = nbytes // rows
    width = pitch // tp
    return Area(tensor.name, shard, begin + rank * width, start, width, pitch, rows)


def dimension(name: str) -> int | None:
    """Return the dimension that tensor parallelism splits a tensor of this name by; None where it goes whole."""
    *parents, last = name.split(".")
    module = parents[-1] if parents else ""
    if module in _BY_ROWS and last in ("weight", "bias"):
        return 0
    return 1 if module in _BY_COLUMNS and last == "weight" else None
