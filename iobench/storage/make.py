"""Makes a checkpoint to read: safetensors shards with a real model's tensor shapes and random bytes.

The shapes are those of a Llama 3 model's layers, all widths divided by the same power of two so that whole layers
fit into a shard. The bytes don't compress and no block occurs twice, or a storage system could cheat.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from iobench import hostmem
from iobench.errors import UserError
from iobench.storage import scratch
from iobench.storage.checkpoint import Checkpoint, open_checkpoint
from iobench.storage.verify import sums
from iobench.units import format_size

if TYPE_CHECKING:
    from numpy.typing import NDArray

LEAST_SHARD = 64 << 10  # below it a header leaves no room for tensors
_PIECE = 16 << 20  # a multiple of verify.UNIT: the sums of the pieces are the sums of the file
_LAYER_HEADER = 2048  # more than the header needs for one layer
_BF16 = 2
_HEAD = "lm_head.weight"
_EVEN = 16  # ranks that can share the last tensor's rows
LLAMA_3_8B, LLAMA_3_70B = "llama-3-8b", "llama-3-70b"


@dataclass(frozen=True)
class Shapes:
    """A model's widths: ``key_value`` and ``mlp`` in units of the hidden one."""

    hidden: int
    key_value: float
    mlp: float

    def layer(self) -> tuple[tuple[str, float, float], ...]:
        """Return name, rows and columns of a layer's tensors in units of the hidden width; 0 columns: a vector."""
        return (
            ("self_attn.q_proj", 1.0, 1.0), ("self_attn.k_proj", self.key_value, 1.0),
            ("self_attn.v_proj", self.key_value, 1.0), ("self_attn.o_proj", 1.0, 1.0), ("mlp.gate_proj", self.mlp, 1.0),
            ("mlp.up_proj", self.mlp, 1.0), ("mlp.down_proj", 1.0, self.mlp), ("input_layernorm", 1.0, 0.0),
            ("post_attention_layernorm", 1.0, 0.0),
        )  # fmt: skip


# config.json of Meta-Llama-3-8B: hidden 4096, 8 of 32 heads for K and V, MLP 14336; of Meta-Llama-3-70B: hidden 8192,
# 8 of 64 heads, MLP 28672
MODELS = {LLAMA_3_8B: Shapes(4096, 0.25, 3.5), LLAMA_3_70B: Shapes(8192, 0.125, 3.5)}


@dataclass(frozen=True)
class Made:
    """A checkpoint with the sums of every shard's bytes, known before they went to the disk."""

    checkpoint: Checkpoint
    sums: tuple[NDArray[np.uint64], ...]


@contextlib.contextmanager
def made(folder: str | Path, nbytes: int, shards: int, model: str = LLAMA_3_8B) -> Iterator[Made]:
    """Write ``shards`` files of ``nbytes`` together into a new folder below ``folder``; remove them at the end.

    Raises UserError, with the figures, where the space doesn't suffice or the folder can't be written.
    """
    check_room(folder, nbytes)
    with contextlib.ExitStack() as stack:
        try:
            where = stack.enter_context(scratch.folder(folder))
        except OSError as error:
            raise UserError(
                f"cannot write to {folder}: {error.strerror}; choose another folder with --scratch"
            ) from error
        yield _write_all(where, nbytes, shards, model)


def check_room(folder: str | Path, nbytes: int) -> None:
    """Raise UserError, with the free and the needed figure, unless ``nbytes`` fit into ``folder``."""
    total, _, free = shutil.disk_usage(folder)
    if not total:  # ramfs says nothing of its size: it takes memory as long as there is some
        free = hostmem.available_nbytes() or 0
    if nbytes > free:
        raise UserError(
            f"no space in {folder}: {format_size(nbytes)} needed, {format_size(free)} free; "
            "choose another folder with --scratch or a smaller -a nbytes"
        )


def header(nbytes: int, first_layer: int = 0, model: str = LLAMA_3_8B, last: str = _HEAD) -> bytes:
    """Return length and JSON header of a shard of exactly ``nbytes``; it is filled up with spaces.

    Whole layers come first; the tensor ``last`` takes the rest, in rows that 16 ranks can share where there are many.

    Raises ValueError below LEAST_SHARD.
    """
    if nbytes < LEAST_SHARD:
        raise ValueError(f"a shard of {nbytes} bytes is too small, {LEAST_SHARD} is the least")
    shapes = MODELS[model]
    hidden = _fitting_width(nbytes, shapes)
    layers = max((nbytes - LEAST_SHARD // 2) // (_layer_nbytes(hidden, shapes) + _LAYER_HEADER), 0)
    tensors = [shape for number in range(layers) for shape in _layer(first_layer + number, hidden, shapes)]
    used = sum(_elements(shape) for _, shape in tensors) * _BF16
    # Rows that would fill the whole rest make the header at least as long as it will be.
    row = hidden * _BF16
    bound = len(_json([*tensors, (last, [nbytes // row, hidden])]))
    rows = (nbytes - 8 - bound - used) // row
    rows -= rows % _EVEN if rows >= _EVEN**2 else 0
    text = _json([*tensors, (last, [rows, hidden])])
    length = nbytes - 8 - used - rows * row
    return length.to_bytes(8, "little") + text + b" " * (length - len(text))


def _fitting_width(nbytes: int, shapes: Shapes) -> int:
    hidden = shapes.hidden
    while hidden > 64 and _layer_nbytes(hidden, shapes) > nbytes // 4:
        hidden //= 2
    return hidden


def _layer(number: int, hidden: int, shapes: Shapes) -> list[tuple[str, list[int]]]:
    return [
        (f"model.layers.{number}.{name}.weight", [int(rows * hidden), *([int(cols * hidden)] if cols else [])])
        for name, rows, cols in shapes.layer()
    ]


def _layer_nbytes(hidden: int, shapes: Shapes) -> int:
    return sum(_elements(shape) for _, shape in _layer(0, hidden, shapes)) * _BF16


def _elements(shape: list[int]) -> int:
    return int(np.prod(shape))


def _json(tensors: list[tuple[str, list[int]]]) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, shape in tensors:
        end = at + _elements(shape) * _BF16
        entries[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, end]}
        at = end
    return json.dumps(entries, separators=(",", ":")).encode()


def _write_all(where: Path, nbytes: int, shards: int, model: str) -> Made:
    sizes = [nbytes // shards] * (shards - 1)
    sizes.append(nbytes - sum(sizes))
    found = []
    for number, size in enumerate(sizes, start=1):
        path = where / f"model-{number:05d}-of-{shards:05d}.safetensors"
        try:
            found.append(
                _write(path, size, number, model, _HEAD if number == shards else f"model.rest.{number}.up_proj.weight")
            )
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            raise UserError(
                f"no space in {where.parent}: {error.strerror} while writing {format_size(nbytes)}; "
                "choose another folder with --scratch or a smaller -a nbytes"
            ) from error
    return Made(open_checkpoint(where), tuple(found))


def _write(path: Path, nbytes: int, number: int, model: str, last: str) -> NDArray[np.uint64]:
    """Write one shard, flush it to the device and return the sums of its bytes."""
    start = np.frombuffer(header(nbytes, 1000 * (number - 1), model, last), np.uint8)
    random = np.random.Generator(np.random.SFC64())
    found = []
    with path.open("wb", buffering=0) as file:
        for at in range(0, nbytes, _PIECE):
            data = random.integers(0, 1 << 64, _PIECE // 8, np.uint64).view(np.uint8)[: nbytes - at]
            inside = start[at : at + len(data)]
            data[: len(inside)] = inside
            found.append(sums(data))
            _write_full(file, data)
        os.fsync(file.fileno())
    return np.concatenate(found)


def _write_full(file: BinaryIO, data: NDArray[np.uint8]) -> None:
    view = data.data
    while view:
        view = view[file.write(view) :]
