"""What a launch keeps from point to point: files and targets are made again only when others are asked for."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path
from typing import Any

from iobench import hostmem
from iobench.errors import Unavailable
from iobench.storage import files as held
from iobench.storage import plan as plans
from iobench.storage import target as targets
from iobench.storage.files import Files
from iobench.storage.load import Stage
from iobench.storage.make import check_room
from iobench.storage.target import Target
from iobench.units import format_size

HOST = "host"


class Workspace:
    """Holds one set of files and one target on top of it, with its expected sums."""

    def __init__(self) -> None:
        self._files, self._target = _Held(), _Held()

    def stage(
        self,
        key: Hashable,
        make: Callable[[], contextlib.AbstractContextManager[Files]],
        target: str = HOST,
        what: str = plans.WHOLE,
        rank: int = 0,
        tp: int = 1,
    ) -> Stage:
        """Return the stage of the files ``key`` for one rank's part on one target."""
        files = self._kept(key, make)
        made: Stage = self._target.get((key, target, what, rank, tp), lambda: staged(files, target, what, rank, tp))
        return made

    def files(self, key: Hashable, make: Callable[[], contextlib.AbstractContextManager[Files]]) -> Files:
        """Return the files ``key`` for another process to load: it needs the memory that a target would hold."""
        self._target.close()
        return self._kept(key, make)

    def _kept(self, key: Hashable, make: Callable[[], contextlib.AbstractContextManager[Files]]) -> Files:
        if not self._files.holds(key):
            self._target.close()
        found: Files = self._files.get(key, make)
        return found

    def close(self) -> None:
        self._target.close()
        self._files.close()


class _Held:
    def __init__(self) -> None:
        self._key: Hashable = None
        self._stack = contextlib.ExitStack()
        self._value: Any = None

    def holds(self, key: Hashable) -> bool:
        return self._value is not None and key == self._key

    def get(self, key: Hashable, make: Callable[[], contextlib.AbstractContextManager[Any]]) -> Any:
        if not self.holds(key):
            self.close()
            self._value, self._key = self._stack.enter_context(make()), key
        return self._value

    def close(self) -> None:
        self._value = None
        self._stack.close()


@contextlib.contextmanager
def workspace() -> Iterator[Workspace]:
    """Yield an empty workspace and close what it holds at the end."""
    space = Workspace()
    try:
        yield space
    finally:
        space.close()


@contextlib.contextmanager
def own_files(folder: str | Path, nbytes: int, shards: int, model: str, target: str = HOST) -> Iterator[Files]:
    """Make a checkpoint of ``nbytes`` in ``folder``, once the room for it and its memory is known to be there."""
    check_room(folder, nbytes)
    if target == HOST:
        _check_memory(nbytes, "a smaller -a nbytes")
    with held.own(folder, nbytes, shards, model) as files:
        yield files


@contextlib.contextmanager
def users_files(path: str | Path, target: str = HOST) -> Iterator[Files]:
    """Open the user's checkpoint."""
    from iobench.storage.checkpoint import open_checkpoint

    if target == HOST:
        _check_memory(open_checkpoint(path).nbytes, "one of its shards with --path")
    yield held.users(path)


@contextlib.contextmanager
def staged(files: Files, target: str = HOST, what: str = plans.WHOLE, rank: int = 0, tp: int = 1) -> Iterator[Stage]:
    """Yield files with a target for one rank's part of them, and the sums that must lie there after a load."""
    plan = plans.plan(files.checkpoint, what, rank, tp)
    with _memory(target, plan.room) as memory:
        yield Stage(files, plan, memory, held.expected(files, plan), what)


@contextlib.contextmanager
def _memory(target: str, nbytes: int) -> Iterator[Target]:
    if target == HOST:
        with targets.host(nbytes) as memory:
            yield memory
        return
    from iobench import gpu
    from iobench.storage import ongpu

    gpu.require()
    with ongpu.memory(nbytes, gpu.device(0)) as there:
        yield there


def _check_memory(nbytes: int, instead: str) -> None:
    have = hostmem.available_nbytes()
    if have is not None and nbytes > have * hostmem.MOST_OF_MEMORY:
        raise Unavailable(
            f"a checkpoint of {format_size(nbytes)} is more than half of the {format_size(have)} of memory available: "
            f"load {instead}"
        )
