"""Reads in flight: io_uring and native AIO on real files, short reads, files that end early, kernels that forbid it."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import platform
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from iobench import hostmem
from iobench.errors import IobenchError, Unavailable, WrongData
from iobench.storage import aio, files, flight, load, plan, read, ring, target, uring, verify
from iobench.storage.files import Files
from iobench.storage.flight import Reads
from iobench.storage.plan import Area
from iobench.units import KIB, MIB
from tests.conftest import cli_environment

QUEUES = ("io_uring", "aio")


@pytest.fixture
def weights(tmp_path: Path) -> Iterator[Files]:
    with files.own(tmp_path, 3 * MIB + 77, 2) as found:
        yield found


def need(engine: str) -> None:
    """Skip where the engine can't be had: four at once of the largest that a test wants."""
    try:
        with contextlib.ExitStack() as stack:
            for _ in range(4):
                stack.enter_context(flight.reads(engine, 16))
    except Unavailable as reason:
        pytest.skip(str(reason))


def loaded(weights: Files, engine: str, threads: int, depth: int, direct: bool) -> np.ndarray:
    """Read all files straight to their places in poisoned memory; return a copy of it."""
    found = weights.checkpoint
    alignment = 1
    if direct:
        try:
            alignment = read.alignment_of(found, 64 * KIB)
        except Unavailable as reason:
            pytest.skip(str(reason))
    with (
        hostmem.buffer(read.room(found)) as memory,
        read.opened(found, direct) as fds,
        ThreadPoolExecutor(threads) as pool,
    ):
        verify.poison(memory.data)
        todo = read.pieces(found, 64 * KIB, alignment)
        read.reader(todo, memory.data.data, pool, threads, engine, depth)(fds)
        return memory.data.copy()


@pytest.mark.parametrize("engine", QUEUES)
@pytest.mark.parametrize(("threads", "depth"), [(1, 1), (1, 16), (3, 4)])
@pytest.mark.parametrize("direct", [True, False])
def test_whole_files_arrive_at_their_places(
    weights: Files, engine: str, threads: int, depth: int, direct: bool
) -> None:
    need(engine)
    memory = loaded(weights, engine, threads, depth, direct)
    for shard, sums, start in zip(weights.checkpoint.shards, weights.sums, read.slots(weights.checkpoint), strict=True):
        verify.check(memory[start : start + shard.nbytes], sums, shard.path.name)


@pytest.mark.parametrize("engine", QUEUES)
@pytest.mark.parametrize("what", [plan.WHOLE, plan.TENSORS, plan.SLICES])
@pytest.mark.parametrize(("threads", "depth"), [(1, 1), (2, 3)])
def test_the_ring_brings_every_part(
    weights: Files, engine: str, what: str, threads: int, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    need(engine)
    monkeypatch.setattr(ring, "time", SimpleNamespace(perf_counter=itertools.count().__next__))
    wanted = plan.plan(weights.checkpoint, what, 1, 2)
    try:
        alignment = read.alignment_of(weights.checkpoint, 64 * KIB)
    except Unavailable as reason:
        pytest.skip(str(reason))
    with (
        target.host(wanted.room) as memory,
        memory.lanes(threads, depth, 64 * KIB) as lanes,
        read.opened(weights.checkpoint, direct=True) as fds,
        ThreadPoolExecutor(threads) as pool,
    ):
        made = ring.Ring(ring.requests(wanted, 64 * KIB, alignment), lanes, pool, alignment, engine)
        made.run(fds)
        load.check(load.Stage(weights, wanted, memory, files.expected(weights, wanted), what))
        assert made.spent.asked >= wanted.nbytes
        assert made.spent.read > 0


class Recorder:
    """A lane that notes the order of events, and whose slots must not be read into before they were waited for."""

    def __init__(self, slots: list[np.ndarray]) -> None:
        self.slots = slots
        self.busy: set[int] = set()
        self.most = 0

    def wait(self, slot: int) -> None:
        self.busy.discard(slot)

    def give(self, slot: int, head: int, area: Area) -> None:
        assert slot not in self.busy
        self.busy.add(slot)
        self.most = max(self.most, len(self.busy))

    def put(self, source: np.ndarray, start: int) -> None:
        raise AssertionError

    def drain(self) -> None:
        self.busy.clear()


@pytest.mark.parametrize("engine", QUEUES)
def test_slots_are_waited_for_before_they_are_filled_again(weights: Files, engine: str) -> None:
    need(engine)
    wanted = plan.files(weights.checkpoint)
    with target.slots(1, 4, 4096) as slots, ThreadPoolExecutor(1) as pool, read.opened(weights.checkpoint) as fds:
        lane = Recorder(slots[0])
        ring.Ring(ring.requests(wanted, 4096), [lane], pool, 1, engine).run(fds)
    assert 1 <= lane.most <= 4
    assert not lane.busy


@pytest.mark.parametrize("engine", QUEUES)
def test_a_file_that_shrinks_during_the_read_is_an_error(weights: Files, engine: str) -> None:
    need(engine)
    wanted = plan.files(weights.checkpoint)
    nowhere = target.Nowhere(wanted.room)
    with read.opened(weights.checkpoint) as fds, ThreadPoolExecutor(2) as pool, nowhere.lanes(2, 4, 64 * KIB) as lanes:
        os.truncate(weights.checkpoint.shards[1].path, MIB)
        with pytest.raises(IobenchError, match="it was cut while it was measured"):
            ring.Ring(ring.requests(wanted, 64 * KIB), lanes, pool, 1, engine).run(fds)
    with pytest.raises(IobenchError, match="it was cut while it was measured"):
        loaded(weights, engine, 1, 4, direct=False)


@pytest.mark.parametrize("engine", QUEUES)
def test_a_bad_descriptor_is_an_error_in_words(engine: str) -> None:
    need(engine)
    memory = np.zeros(4096, np.uint8)

    def fly(flying: Reads) -> None:
        flying.start(0, 1 << 20, int(memory.ctypes.data), 4096, 0, 4096)  # native AIO refuses it at once
        flying.finished()

    with flight.reads(engine, 1) as flying, pytest.raises(OSError, match="Bad file descriptor"):
        fly(flying)


@pytest.mark.parametrize("registered", [True, False])
def test_io_uring_fills_registered_buffers_and_others(tmp_path: Path, registered: bool) -> None:
    need("io_uring")
    content = os.urandom(100_000)
    (tmp_path / "file").write_bytes(content)
    memory = np.zeros(8192, np.uint8)
    places = [(int(memory.ctypes.data), 4096), (int(memory.ctypes.data) + 4096, 4096)]
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    try:
        with uring.opened(2, places if registered else ()) as queue:
            if registered and not queue.registered:
                pytest.skip("the kernel lets this user register no buffers (RLIMIT_MEMLOCK)")
            for turn in range(50):  # more than the ring has entries, so that its ends wrap around
                for number, (address, nbytes) in enumerate(places):
                    queue.read(fd, address, nbytes, turn * 777 + number, turn << 32 | number)
                found: list[tuple[int, int]] = []
                while len(found) < 2:
                    found += queue.done()
                assert sorted(found) == [(turn << 32, 4096), (turn << 32 | 1, 4096)]
                assert memory[:4096].tobytes() == content[turn * 777 : turn * 777 + 4096]
                assert memory[4096:].tobytes() == content[turn * 777 + 1 : turn * 777 + 4097]
            queue.read(fd, places[0][0], 4096, 99_999, 1)
            assert queue.done() == [(1, 1)]
    finally:
        os.close(fd)


class Stingy:
    """A queue that reads a little of what is asked for, in an order of its own, and is interrupted now and then."""

    registered = False

    def __init__(self, content: bytes, most: int, memory: np.ndarray) -> None:
        self._content, self._most, self._memory = content, most, memory
        self._waiting: deque[tuple[int, int, int, int]] = deque()
        self.asked: list[tuple[int, int]] = []
        self._turn = 0

    def read(self, fd: int, address: int, nbytes: int, offset: int, token: int) -> None:
        self.asked.append((offset, nbytes))
        self._waiting.append((address - int(self._memory.ctypes.data), nbytes, offset, token))

    def done(self) -> list[tuple[int, int]]:
        self._turn += 1
        start, nbytes, offset, token = self._waiting.pop() if self._turn % 2 else self._waiting.popleft()
        if self._turn % 5 == 0:
            return [(token, -errno.EINTR)]
        part = np.frombuffer(self._content[offset : offset + min(nbytes, self._most)], np.uint8)
        self._memory[start : start + len(part)] = part
        return [(token, len(part))]


@settings(max_examples=80, deadline=None)
@given(
    nbytes=st.integers(1, 40000),
    most=st.integers(512, 9000),
    alignment=st.sampled_from([1, 512]),
    depth=st.integers(1, 5),
)
def test_short_reads_go_on_from_an_aligned_offset(nbytes: int, most: int, alignment: int, depth: int) -> None:
    content = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
    memory = np.zeros(-(-nbytes // 4096) * 4096, np.uint8)
    queue = Stingy(content.tobytes(), most, memory)
    flying = Reads(queue)
    for number, offset in enumerate(range(0, nbytes, 8192)):
        wanted = min(8192, nbytes - offset)
        length = -(-wanted // alignment) * alignment
        flying.start(number, 0, int(memory.ctypes.data) + offset, length, offset, wanted, alignment)
        while len(flying) >= depth:
            flying.finished()
    while flying:
        assert flying.finished()
    assert np.array_equal(memory[:nbytes], content)
    assert all(offset % alignment == 0 and length % alignment == 0 for offset, length in queue.asked)


@pytest.mark.parametrize(
    ("number", "setting", "words"),
    [
        (errno.ENOSYS, None, "no io_uring"),
        (errno.EPERM, "2\n", r"kernel\.io_uring_disabled is 2"),
        (errno.EPERM, "0\n", "seccomp"),
        (errno.EPERM, None, "seccomp"),
        (errno.ENOMEM, None, "Cannot allocate memory"),
    ],
)
def test_what_forbids_io_uring_is_said_with_a_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, setting: str | None, words: str
) -> None:
    def refused(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    if setting is not None:
        (tmp_path / "proc/sys/kernel").mkdir(parents=True)
        (tmp_path / "proc/sys/kernel/io_uring_disabled").write_text(setting)
    monkeypatch.setattr(uring, "Uring", refused)
    with pytest.raises(Unavailable, match=words) as caught, uring.opened(1, root=tmp_path):
        pass
    assert "-a engine=" in str(caught.value)
    monkeypatch.setattr(aio, "Aio", refused)
    with pytest.raises(Unavailable, match="-a engine=preadv"), aio.opened(1):
        pass


def test_processors_that_python_can_not_order_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "mips")
    for engine in QUEUES:
        with pytest.raises(Unavailable, match="-a engine=preadv"), flight.reads(engine, 1):
            pass


def test_an_error_is_heard_when_every_thread_has_ended() -> None:
    """The files and the memory that the others read into go with it."""
    begun, ended = threading.Event(), []

    def work(queue: deque[int], number: int) -> None:
        if number == 0:
            begun.wait()
            raise WrongData("of the first")
        for one in read.until_empty(queue):
            begun.set()
            time.sleep(0.2)
            ended.append(one)

    with ThreadPoolExecutor(2) as pool:
        with pytest.raises(WrongData, match="of the first"):
            read.spread(work, range(1000), pool, 2)
        before = list(ended)
    assert ended == before, "a thread went on"
    assert len(ended) < 1000, "nothing more is begun after an error"


def test_every_thread_of_a_pool_is_started() -> None:
    with ThreadPoolExecutor(5) as pool:
        read.start_threads(pool, 5)
        assert len(pool._threads) == 5


MEASURED = """
import sys
from concurrent.futures import ThreadPoolExecutor
from iobench.errors import Unavailable
from iobench.storage import checkpoint, peak, plan, read, ring, target, verify
found = checkpoint.open_checkpoint(sys.argv[1])
wanted = plan.files(found)
try:
    alignment, direct = read.alignment_of(found, 1 << 20), True
except Unavailable:
    alignment, direct = 1, False
from pathlib import Path
Path("/proc/self/clear_refs").write_text("5")  # where that is forbidden, the peak is that of the start
before = peak.now()
nowhere = target.Nowhere(wanted.room, summing=True)
with read.opened(found, direct) as fds, ThreadPoolExecutor(4) as pool, nowhere.lanes(4, 2, 1 << 20) as lanes:
    ring.Ring(ring.requests(wanted, 1 << 20, alignment), lanes, pool, alignment).run(fds)
grown = peak.growth(before)
sums = verify.file_sums(found.shards[0].path, found.shards[0].nbytes)
verify.compare(nowhere.sums(0, found.shards[0].nbytes), sums, "shard")
print(grown)
"""


def test_the_ring_takes_the_same_memory_whatever_the_size(tmp_path: Path) -> None:
    """96 MiB through a ring of 8 MiB: the process grows by the ring, the sums and a little, not by the checkpoint."""
    with files.own(tmp_path, 96 * MIB, 1) as found:
        script = [sys.executable, "-c", MEASURED, str(found.checkpoint.path)]
        done = subprocess.run(script, capture_output=True, text=True, env=cli_environment(), timeout=900, check=False)
    if "clear_refs" in done.stderr or done.stdout.strip() == "None":
        pytest.skip("this kernel does not tell a process's peak, or does not count it anew")
    assert done.returncode == 0, done.stderr
    assert 4 * MIB <= int(done.stdout) < 64 * MIB  # the kernel adds up pages per CPU, and stacks may be huge pages
