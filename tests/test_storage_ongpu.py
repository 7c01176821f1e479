"""The GPU target on a stand-in for CUDA: host memory for the device, copies that run only when they are waited for.

What is tested is all but CUDA: addresses, pitches, which event guards which slot, that nothing is overwritten too soon.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from iobench import gpu, mempolicy
from iobench.errors import Unavailable, WrongData
from iobench.gpu import Buffer, Device
from iobench.storage import files, load, make, ongpu, plan, read, ring, verify
from iobench.storage.mapped import mapped
from iobench.storage.plan import Area
from iobench.topology.graph import Topology
from iobench.units import KIB, MIB

CARD = Device(1, "a stand-in", "0000:00:06.0", 4, 1 << 20, 1 << 30, (9, 0), node="gpu:1")


class Stream:
    """Keeps what is enqueued until somebody waits."""

    def __init__(self) -> None:
        self.todo: list[Callable[[], Any]] = []
        self.ptr = self  # what memcpy2DAsync is given

    def synchronize(self) -> None:
        while self.todo:
            self.todo.pop(0)()


class Event:
    def __init__(self, block: bool = False, disable_timing: bool = False) -> None:
        self._stream: Stream | None = None
        self._count = 0

    def record(self, stream: Stream) -> None:
        self._stream, self._count = stream, len(stream.todo)

    def synchronize(self) -> None:
        if self._stream is not None:
            self._stream.synchronize()


class Cuda:
    """cudaMemcpyAsync, cudaMemcpy2DAsync and the rest by ctypes; ``devices`` are those that were made current."""

    def __init__(self) -> None:
        self.devices: list[int] = []
        self.registered: list[int] = []

    def setDevice(self, index: int) -> None:  # noqa: N802  CUDA's name
        self.devices.append(index)

    def memset(self, ptr: int, value: int, nbytes: int) -> None:
        ctypes.memset(ptr, value, nbytes)

    def hostRegister(self, ptr: int, nbytes: int, flags: int) -> None:  # noqa: N802
        self.registered.append(nbytes)

    def hostUnregister(self, ptr: int) -> None:  # noqa: N802
        self.registered.append(-self.registered[-1])

    def memcpy2DAsync(  # noqa: N802
        self, dst: int, dpitch: int, src: int, spitch: int, width: int, height: int, kind: int, stream: Stream
    ) -> None:
        assert width <= dpitch
        assert width <= spitch
        assert kind == 1

        def copy() -> None:
            for row in range(height):
                ctypes.memmove(dst + row * dpitch, src + row * spitch, width)

        stream.todo.append(copy)

    def memcpy(self, dst: int, src: int, nbytes: int, stream: Stream) -> None:
        stream.todo.append(lambda: ctypes.memmove(dst, src, nbytes) and None)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    found = Cuda()

    @contextlib.contextmanager
    def buffer(nbytes: int, device: Device) -> Iterator[Buffer]:
        area = np.zeros(nbytes + 64, np.uint8)
        yield Buffer(int(area.ctypes.data), nbytes, device.index)

    @contextlib.contextmanager
    def stream(device: Device) -> Iterator[Stream]:
        made = Stream()
        yield made
        made.synchronize()

    def sums(ptr: int, nbytes: int, device: Device) -> Any:
        return verify.sums(np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(ptr)))

    monkeypatch.setattr(gpu, "buffer", buffer)
    monkeypatch.setattr(gpu, "stream", stream)
    monkeypatch.setattr(gpu, "using", lambda device: contextlib.nullcontext(device))
    monkeypatch.setattr(gpu, "synchronize", lambda: None)
    monkeypatch.setattr(gpu, "memcpy", found.memcpy)
    monkeypatch.setattr(ongpu, "runtime", lambda: found)
    monkeypatch.setattr(ongpu, "require", lambda count=1: SimpleNamespace(cuda=SimpleNamespace(Event=Event)))
    monkeypatch.setattr(ongpu, "room_for", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(ongpu, "freed", lambda free: _after(free))
    monkeypatch.setattr(ongpu, "sums", sums)
    return found


@contextlib.contextmanager
def _after(free: Callable[[], Any]) -> Iterator[None]:
    yield
    free()


@pytest.fixture
def weights(tmp_path: Path) -> Iterator[files.Files]:
    with files.own(tmp_path, 2 * MIB + 9, 2) as found:
        yield found


@pytest.mark.parametrize("what", [plan.WHOLE, plan.TENSORS, plan.SLICES])
@pytest.mark.parametrize(("threads", "depth"), [(1, 1), (3, 2)])
def test_late_copies_bring_every_byte(cuda: Cuda, weights: files.Files, what: str, threads: int, depth: int) -> None:
    wanted = plan.plan(weights.checkpoint, what, 1, 2)
    with ongpu.memory(wanted.room, CARD) as target, ThreadPoolExecutor(threads) as pool:
        stage = load.Stage(weights, wanted, target, files.expected(weights, wanted), what)
        target.poison()
        with pytest.raises(WrongData):
            load.check(stage)
        with read.opened(weights.checkpoint) as fds, target.lanes(threads, depth, 64 * KIB) as lanes:
            ring.Ring(ring.requests(wanted, 64 * KIB), lanes, pool).run(fds)
            load.check(stage)
            target.poison()
            mapped(weights.checkpoint, wanted, 64 * KIB, lanes, pool)(fds)
            load.check(stage)
    nbytes = threads * depth * 64 * KIB
    assert cuda.registered == [nbytes, -nbytes]
    assert set(cuda.devices) == {CARD.index}, "every thread has to make the lane's device current"


def test_a_slot_is_free_only_when_its_copy_is_done(cuda: Cuda) -> None:
    with ongpu.memory(4096, CARD) as target, target.lanes(1, 2, 1024) as lanes:
        lane = lanes[0]
        lane.slots[0][:] = 7
        lane.give(0, 512, Area("a", 0, 0, 1024, 256))
        assert int(target.sums(1024, 256)[0]) == 0, "the stand-in copies when it is waited for"
        lane.wait(1)
        assert int(target.sums(1024, 256)[0]) == 0, "nothing was given from slot 1"
        lane.wait(0)
        assert np.array_equal(target.sums(1024, 256), verify.sums(np.full(256, 7, np.uint8)))


def test_one_rank_of_columns_is_one_copy_of_rows(cuda: Cuda) -> None:
    area = Area("o_proj", 0, 0, 0, width=3, pitch=10, rows=4)
    with ongpu.memory(512, CARD) as target, target.lanes(1, 1, 64) as lanes:
        lanes[0].slots[0][:] = np.arange(64, dtype=np.uint8)
        lanes[0].give(0, 5, area)
        lanes[0].drain()
        right = np.array([5 + 10 * row + column for row in range(4) for column in range(3)], np.uint8)
        assert np.array_equal(target.sums(0, 12), verify.sums(right))
        assert target.name == "gpu:1"


@pytest.mark.parametrize(
    ("nodes", "refused", "asked"), [(1, False, []), (2, False, [(1,)]), (2, True, [(1,)]), (0, False, [])]
)
def test_slots_lie_on_the_gpus_node_where_there_are_several_and_they_may(
    cuda: Cuda, monkeypatch: pytest.MonkeyPatch, nodes: int, refused: bool, asked: list[tuple[int, ...]]
) -> None:
    found: list[tuple[int, ...]] = []

    def apply(address: int, nbytes: int, policy: Any, root: str) -> None:
        found.append(policy.nodes)
        if refused:
            raise Unavailable("mbind is not allowed here")

    graph = Topology("some nodes")
    for node in range(nodes):
        graph.add(f"mem:{node}", "mem")
    monkeypatch.setattr(ongpu, "machine", lambda: graph)
    monkeypatch.setattr(mempolicy, "apply", apply)
    with ongpu.pinned(4096, dataclasses.replace(CARD, mem="mem:1")) as data:
        assert data.size == 4096
    assert found == asked


def test_made_files_are_what_the_sums_say(weights: files.Files) -> None:
    assert make.MODELS.keys() == {"llama-3-8b", "llama-3-70b"}
    for shard, sums in zip(weights.checkpoint.shards, weights.sums, strict=True):
        assert np.array_equal(verify.file_sums(shard.path, shard.nbytes), sums)
