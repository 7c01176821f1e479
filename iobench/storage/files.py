"""The files of a load: made by iobench or the user's own, with the sums of their bytes and what holds them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from iobench.errors import IobenchError
from iobench.storage import verify
from iobench.storage.checkpoint import Checkpoint, open_checkpoint
from iobench.storage.device import Device, device_of
from iobench.storage.filesystem import Filesystem, filesystem_of
from iobench.storage.make import LLAMA_3_8B, made
from iobench.storage.plan import Area, Plan
from iobench.storage.target import rows
from iobench.units import format_size

if TYPE_CHECKING:
    from numpy.typing import NDArray


_STORED = 0.98  # of a file's size: metadata of filesystems takes some, compression and holes more


@dataclass(frozen=True)
class Files:
    """A checkpoint, the sums of every file, the filesystem and the device that hold it."""

    checkpoint: Checkpoint
    sums: tuple[NDArray[np.uint64], ...]
    filesystem: Filesystem
    device: Device | None
    seconds: float  # that making the files, or reading them once for their sums, took

    @property
    def nbytes(self) -> int:
        return self.checkpoint.nbytes

    @property
    def notes(self) -> list[str]:
        """Return what is unusual about the files, whatever reads them."""
        holes = [note for shard in self.checkpoint.shards if (note := _holes(shard.path))]
        return [*self.checkpoint.notes, *holes]


def _holes(path: Path) -> str:
    """Say that a file takes less of the disk than its size: what isn't there is read from nowhere."""
    state = path.stat()
    stored = state.st_blocks * 512  # st_blocks counts 512 bytes, whatever the filesystem's blocks are
    if stored >= _STORED * state.st_size:
        return ""
    return (
        f"{path.name} has holes or is compressed: {format_size(stored)} of its {format_size(state.st_size)} lie on the "
        "disk, so fewer bytes than asked for come from it"
    )


@dataclass(frozen=True)
class Expected:
    """What must lie at ``start`` of the destination: ``nbytes`` with these sums."""

    name: str
    start: int
    nbytes: int
    sums: NDArray[np.uint64]


@contextlib.contextmanager
def own(folder: str | Path, nbytes: int, shards: int, model: str = LLAMA_3_8B) -> Iterator[Files]:
    """Make a checkpoint of ``nbytes`` in ``folder``; it goes at the end. Raises as ``make.made``."""
    start = time.perf_counter()
    with made(folder, nbytes, shards, model) as found:
        yield _held(found.checkpoint, found.sums, start)


def users(path: str | Path) -> Files:
    """Open the user's checkpoint; its sums come from one buffered read."""
    checkpoint = open_checkpoint(path)
    start = time.perf_counter()
    sums = tuple(verify.file_sums(shard.path, shard.nbytes) for shard in checkpoint.shards)
    return _held(checkpoint, sums, start)


def expected(files: Files, plan: Plan) -> list[Expected]:
    """Return what a load by ``plan`` must give: the files' own sums, or those of the parts by an ordinary read."""
    return [Expected(area.name, area.start, area.nbytes, _sums(files, area)) for area in plan.areas]


def first_shard(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint of the first file alone."""
    return Checkpoint(checkpoint.shards[0].path, checkpoint.shards[:1])


def _held(checkpoint: Checkpoint, sums: Sequence[NDArray[np.uint64]], start: float) -> Files:
    first, seconds = checkpoint.shards[0].path, time.perf_counter() - start
    return Files(checkpoint, tuple(sums), filesystem_of(first), device_of(first), seconds)


def _sums(files: Files, area: Area) -> NDArray[np.uint64]:
    shard = files.checkpoint.shards[area.shard]
    if area.rows == 1 and (area.offset, area.width) == (0, shard.nbytes):
        return files.sums[area.shard]
    return area_sums(files.checkpoint, area)


def area_sums(checkpoint: Checkpoint, area: Area) -> NDArray[np.uint64]:
    """Return the sums of an area's bytes by an ordinary read of its file; IobenchError where that ends before."""
    shard = checkpoint.shards[area.shard]
    if area.rows == 1:
        return verify.file_sums(shard.path, area.width, area.offset)
    with shard.path.open("rb") as file:
        file.seek(area.offset)
        data = np.frombuffer(file.read(area.span), np.uint8)
    if data.size < area.span:
        raise IobenchError(f"{shard.path.name} ends at {area.offset + data.size}: it was cut while it was measured")
    return verify.sums(np.ascontiguousarray(rows(data, 0, area)).reshape(-1))
