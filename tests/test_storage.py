"""Storage: readers, sums, the checkpoint that the probe makes."""

from __future__ import annotations

import errno
import os
import shutil
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from iobench import hostmem
from iobench.errors import IobenchError, Unavailable, UserError, WrongData
from iobench.storage import filesystem, layout, make, plan, read, ring, target, verify
from iobench.storage import mapped as mapping
from iobench.storage.mapped import mapped
from iobench.units import MIB


@pytest.fixture
def weights(tmp_path: Path) -> Iterator[make.Made]:
    with make.made(tmp_path, 3 * MIB + 5, 2) as found:
        yield found


# The checkpoint that the probe makes


@pytest.mark.parametrize(("nbytes", "shards"), [(MIB, 1), (3 * MIB + 5, 2), (64 * 1024 * 7 + 1, 7), (40 * MIB, 3)])
def test_made_shards_have_the_size_asked_for_and_are_whole(tmp_path: Path, nbytes: int, shards: int) -> None:
    with make.made(tmp_path, nbytes, shards) as found:
        assert found.checkpoint.nbytes == nbytes
        assert len(found.checkpoint.shards) == shards
        assert found.checkpoint.notes == []
        for shard, sums in zip(found.checkpoint.shards, found.sums, strict=True):
            assert np.array_equal(verify.file_sums(shard.path, shard.nbytes), sums)
    assert list(tmp_path.iterdir()) == []


def test_the_safetensors_library_reads_them(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors")
    with make.made(tmp_path, 40 * MIB, 1) as found:
        path = found.checkpoint.shards[0].path
        with safetensors.safe_open(path, framework="np") as file:
            hidden = file.get_slice("lm_head.weight").get_shape()[1]
            assert file.get_slice("model.layers.0.mlp.gate_proj.weight").get_shape() == [3.5 * hidden, hidden]
            assert file.get_slice("model.layers.0.input_layernorm.weight").get_shape() == [hidden]


def test_the_bytes_do_not_compress_and_no_block_comes_twice(tmp_path: Path) -> None:
    with make.made(tmp_path, 20 * MIB, 1) as found:
        data = found.checkpoint.shards[0].path.read_bytes()
    assert len(zlib.compress(data[: 2 * MIB], 1)) > 0.99 * 2 * MIB - 4096
    blocks = [data[at : at + 4096] for at in range(0, len(data), 4096)]
    assert len(set(blocks)) == len(blocks)


@settings(max_examples=60, deadline=None)
@given(nbytes=st.integers(make.LEAST_SHARD, 64 << 30))
def test_a_header_describes_a_file_of_any_size(nbytes: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.getbasetemp() / "sized.safetensors"
    file.write_bytes(make.header(nbytes))
    try:
        os.truncate(file, nbytes)  # the rest is a hole
    except OSError as error:
        pytest.skip(f"no file of {nbytes} bytes in the temporary folder: {error.strerror}")
    assert layout.read_layout(file).notes == ()
    file.unlink()


def test_a_shard_too_small_for_a_header_is_refused() -> None:
    with pytest.raises(ValueError, match="too small"):
        make.header(make.LEAST_SHARD - 1)


@pytest.mark.parametrize(
    ("usage", "words"),
    [
        ((1 << 40, 0, 2 * MIB), "3 MiB needed, 2 MiB free; choose another folder with --scratch"),
        ((0, 0, 0), "3 MiB needed, 1 MiB free; choose another folder with --scratch"),  # ramfs: memory is its room
    ],
)
def test_no_space_names_both_figures_and_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, usage: tuple[int, int, int], words: str
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    monkeypatch.setattr(hostmem, "available_nbytes", lambda: MIB)
    with pytest.raises(UserError, match=words), make.made(tmp_path, 3 * MIB, 1):
        pass
    assert list(tmp_path.iterdir()) == []
    with make.made(tmp_path, MIB, 1) as found:
        assert found.checkpoint.nbytes == MIB


def test_a_disk_that_fills_up_while_writing_is_said_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(make, "_write_full", full)
    with pytest.raises(UserError, match=r"no space in .*--scratch"), make.made(tmp_path, MIB, 1):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_can_not_be_written_is_said(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    if os.access(tmp_path, os.W_OK):
        pytest.skip("root writes everywhere")
    with pytest.raises(UserError, match="--scratch"), make.made(tmp_path, MIB, 1):
        pass


# Sums


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=3000), st.data())
def test_sums_find_every_changed_byte(content: bytes, data: st.DataObject) -> None:
    array = np.frombuffer(content, np.uint8).copy()
    expected = verify.sums(array)
    assert len(expected) == -(-len(array) // verify.UNIT)
    verify.check(array, expected, "same")
    if len(array):
        place = data.draw(st.integers(0, len(array) - 1))
        array[place] ^= data.draw(st.integers(1, 255))
        with pytest.raises(WrongData, match=f"the first at {place // 512 * 512}"):
            verify.check(array, expected, "changed")


def test_sums_find_swapped_sectors_and_wrong_lengths() -> None:
    array = np.random.default_rng(1).integers(0, 256, 4096, np.uint8)
    expected = verify.sums(array)
    swapped = np.roll(array, 512)
    for wrong in (swapped, array[:3584], np.zeros(0, np.uint8)):
        with pytest.raises(WrongData):
            verify.check(wrong, expected, "wrong")


def test_the_sum_of_large_words_wraps(tmp_path: Path) -> None:
    array = np.full(1024, 255, np.uint8)
    assert verify.sums(array).tolist() == [(64 * (2**64 - 1)) % 2**64] * 2


def test_sums_of_a_file_that_became_shorter_are_refused(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(100))
    with pytest.raises(IobenchError, match="it was cut"):
        verify.file_sums(tmp_path / "f", 101)


# Reading


def loaded(found: make.Made, method: str, threads: int, block: int, alignment: int = 1) -> np.ndarray:
    """Read everything by one method into poisoned memory and return that memory."""
    checkpoint = found.checkpoint
    with (
        hostmem.buffer(read.room(checkpoint)) as memory,
        read.opened(checkpoint, direct=method == "direct") as fds,
        ThreadPoolExecutor(threads) as pool,
    ):
        verify.poison(memory.data)
        if method == "mmap":
            with target.Host(memory).lanes(threads, 1, 4096) as lanes:
                mapped(checkpoint, plan.files(checkpoint), block, lanes, pool)(fds)
        else:
            read.reader(read.pieces(checkpoint, block, alignment), memory.data.data, pool, threads)(fds)
        return memory.data.copy()


def test_files_that_can_not_be_mapped_are_said(weights: make.Made, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENODEV, "No such device")

    monkeypatch.setattr(mapping.mmap, "mmap", refused)
    operation = [weights.checkpoint, plan.files(weights.checkpoint), MIB, [target.NowhereLane([], None)]]
    with (
        read.opened(weights.checkpoint) as fds,
        ThreadPoolExecutor(1) as pool,
        pytest.raises(Unavailable, match="maps no files into memory: No such device"),
    ):
        mapped(*operation, pool)(fds)


def check_all(found: make.Made, memory: np.ndarray) -> None:
    for shard, sums, start in zip(found.checkpoint.shards, found.sums, read.slots(found.checkpoint), strict=True):
        verify.check(memory[start : start + shard.nbytes], sums, shard.path.name)


@pytest.mark.parametrize("method", ["buffered", "mmap", "direct"])
@pytest.mark.parametrize(("threads", "block"), [(1, 65536), (4, 262144), (3, 4096 * 5), (16, 16 * MIB)])
def test_every_reader_delivers_every_byte(weights: make.Made, method: str, threads: int, block: int) -> None:
    alignment = 1
    if method == "direct":
        try:
            alignment = read.alignment_of(weights.checkpoint, block)
        except Unavailable as reason:
            pytest.skip(str(reason))
    memory = loaded(weights, method, threads, block, alignment)
    check_all(weights, memory)
    first = weights.checkpoint.shards[0].nbytes
    beyond = memory[-(-first // 4096) * 4096 : read.slots(weights.checkpoint)[1]]
    assert (beyond == 0xA5).all(), "bytes were written outside the file's place"


def test_a_ring_of_small_buffers_reads_everything(weights: make.Made) -> None:
    wanted = plan.files(weights.checkpoint)
    nowhere = target.Nowhere(wanted.room, summing=True)
    with read.opened(weights.checkpoint) as fds, ThreadPoolExecutor(3) as pool, nowhere.lanes(3, 1, 65536) as lanes:
        ring.Ring(ring.requests(wanted, 65536), lanes, pool).run(fds)
    for area, sums in zip(wanted.areas, weights.sums, strict=True):
        verify.compare(nowhere.sums(area.start, area.nbytes), sums, area.name)


@settings(max_examples=80, deadline=None)
@given(
    nbytes=st.integers(1, 40000),
    block=st.sampled_from([4096, 8192, 12288]),
    most=st.integers(512, 9000),
    alignment=st.sampled_from([1, 512]),
)
def test_short_reads_go_on_from_an_aligned_offset(nbytes: int, block: int, most: int, alignment: int) -> None:
    content = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8).tobytes()
    asked: list[tuple[int, int]] = []

    def short(fd: int, views: list[memoryview], offset: int) -> int:
        asked.append((offset, len(views[0])))
        part = content[offset : offset + min(len(views[0]), most)]
        views[0][: len(part)] = part
        return len(part)

    memory = bytearray(-(-nbytes // 4096) * 4096)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "preadv", short)
        for offset in range(0, nbytes, block):
            wanted = min(block, nbytes - offset)
            view = memoryview(memory)[offset : offset + -(-wanted // alignment) * alignment]
            read.read_in_full(3, view, offset, wanted, alignment)
    assert bytes(memory[:nbytes]) == content
    assert all(offset % alignment == 0 and length % alignment == 0 for offset, length in asked)


def test_a_read_is_cut_at_what_one_system_call_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    most, asked = 0x7FFFF000, []

    class View:
        """Stands for a view of more than 2 GiB, which a test can't allocate."""

        def __init__(self, nbytes: int) -> None:
            self.nbytes = nbytes

        def __getitem__(self, part: slice) -> View:
            return View(self.nbytes - part.start)

    def preadv(fd: int, views: list[View], offset: int) -> int:
        asked.append((offset, views[0].nbytes))
        return min(views[0].nbytes, most)

    monkeypatch.setattr(os, "preadv", preadv)
    read.read_in_full(3, View(3 << 31), 0, 3 << 31, 4096)  # type: ignore[arg-type]
    assert asked == [(0, 3 << 31), (most, (3 << 31) - most), (2 * most, (3 << 31) - 2 * most)] + [
        (3 * most, (3 << 31) - 3 * most)
    ] * (3 * most < 3 << 31)


@pytest.mark.parametrize("alignment", [1, 512])
def test_a_file_cut_while_it_is_read_is_an_error(weights: make.Made, alignment: int) -> None:
    path = weights.checkpoint.shards[0].path
    todo_nbytes = weights.checkpoint.shards[0].nbytes
    os.truncate(path, todo_nbytes - 100_000)
    with pytest.raises(IobenchError, match="it was cut"):
        loaded(weights, "buffered", 2, 65536, alignment)


def test_a_block_that_the_disk_does_not_take_is_unavailable(
    weights: make.Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read, "direct_access", lambda path: filesystem.DirectAccess(65536, "statx DIOALIGN"))
    with pytest.raises(Unavailable, match="multiples of 65536"):
        read.alignment_of(weights.checkpoint, 4096)
    assert read.alignment_of(weights.checkpoint, MIB) == 65536
