"""Mapped files on their way to a target: map, move out of the mapping in blocks, unmap. Page faults do the reading."""

from __future__ import annotations

import contextlib
import mmap
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from iobench.errors import Unavailable
from iobench.storage import plan, read
from iobench.storage.checkpoint import Checkpoint
from iobench.storage.plan import Area, Plan
from iobench.storage.target import rows

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from iobench.storage.target import Lane


def mapped(
    checkpoint: Checkpoint, wanted: Plan, block: int, lanes: Sequence[Lane], pool: ThreadPoolExecutor
) -> Callable[[Sequence[int]], None]:
    """Return the operation that brings a plan to the lanes' target; each part is moved straight from the mapping."""
    parts = [part for area in wanted.areas for part in plan.cut(area, block)]

    def run(fds: Sequence[int]) -> None:
        with contextlib.ExitStack() as stack:
            views = [
                stack.enter_context(_mapped(fd, shard.nbytes)) for fd, shard in zip(fds, checkpoint.shards, strict=True)
            ]

            def move(queue: deque[Area], number: int) -> None:
                for part in read.until_empty(queue):
                    lanes[number].put(_taken(views[part.shard], part), part.start)
                lanes[number].drain()

            read.spread(move, parts, pool, len(lanes))
            views.clear()

    return run


def _taken(view: memoryview, part: Area) -> NDArray[np.uint8]:
    """Return a part's bytes; of several rows a packed copy, as loaders make it, of one row a view."""
    import numpy as np

    bare = np.frombuffer(view[part.offset : part.offset + part.span], np.uint8)
    return bare if part.rows == 1 else np.ascontiguousarray(rows(bare, 0, part)).reshape(-1)


@contextlib.contextmanager
def _mapped(fd: int, nbytes: int) -> Iterator[memoryview]:
    try:
        area = mmap.mmap(fd, nbytes, prot=mmap.PROT_READ)
    except OSError as error:  # FUSE with direct_io
        raise Unavailable(f"this filesystem maps no files into memory: {error.strerror}") from error
    with area, memoryview(area) as view:
        yield view
