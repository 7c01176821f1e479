"""Copies and chases between memories, without a GPU: slots, the kernels' coverage on the CPU, NVLink counters."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from iobench import gpu
from iobench.errors import WrongData
from iobench.gpu import Device, chasing, copying, nvlink, nvml
from iobench.units import GIB, KIB, MIB

import host_kernels

L2 = 60 * MIB
DRIVER = """
extern "C" void copy(char *dst, const char *src, u64 nbytes, u64 stride, u64 slots, u64 turn, u64 repeats,
                     unsigned blocks, unsigned threads) {
  every_thread(Index{blocks, 1, 1}, threads, [&] { transfer_copy(dst, src, nbytes, stride, slots, turn, repeats); });
}
extern "C" void exchange(char *dst_a, const char *src_a, char *dst_b, const char *src_b, u64 nbytes, u64 stride,
                         u64 slots, u64 turn, u64 repeats, unsigned blocks, unsigned threads) {
  every_thread(Index{blocks, 1, 1}, threads,
               [&] { transfer_exchange(dst_a, src_a, dst_b, src_b, nbytes, stride, slots, turn, repeats); });
}
extern "C" void link_and_chase(char *base, const u64 *offsets, u64 count, u64 start, unsigned warm, unsigned loads,
                               unsigned target, unsigned blocks, u64 *found) {
  every_thread(Index{2, 1, 1}, 32, [&] { transfer_link(base, offsets, count); });
  every_thread(Index{blocks, 1, 1}, 1, [&] { transfer_chase((u64)base + offsets[start], warm, loads, target, found); });
}
"""


def card(index: int = 0) -> Device:
    return Device(index, "H200", f"0000:00:0{index}.0", 132, L2, 141 * GIB, (9, 0), node=f"gpu:{index}")


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("kernels")
    return host_kernels.build(folder, "transfer", DRIVER)


def u64(*values: int) -> list[ctypes.c_uint64]:
    return [ctypes.c_uint64(value) for value in values]


@pytest.mark.parametrize("nbytes", [4, 5, 16, 255, 256, 4096, 5000, 64 * KIB, MIB + 256, 64 * MIB, GIB])
def test_slots_cover_more_than_twice_the_cache_or_say_why_not(nbytes: int) -> None:
    slots = copying.layout(nbytes, L2)
    assert slots.stride >= nbytes
    assert slots.count >= 1
    if nbytes % 256 == 0:
        assert slots.gapless
        assert slots.region_nbytes > 2 * L2
        assert slots.region_nbytes <= 2 * L2 + 2 * nbytes
    else:
        assert slots.stride % (4 * KIB) == 0
        assert slots.count <= 2048
    offsets = {slots.offset(turn) for turn in range(min(slots.count, 3000))}
    assert len(offsets) == min(slots.count, 3000)
    assert slots.offset(slots.count) == 0
    assert max(offsets) + nbytes <= slots.region_nbytes


def test_what_was_touched() -> None:
    slots = copying.layout(64 * MIB, L2)
    assert slots.count == 2
    assert [slots.touched_nbytes(turns) for turns in (0, 1, 2, 9)] == [0, 64 * MIB, 128 * MIB, 128 * MIB]


def test_blocks_and_repeats() -> None:
    assert copying.blocks(4, 132) == 1
    assert copying.blocks(16 * 512 + 1, 132) == 2
    assert copying.blocks(GIB, 132) == 132
    assert copying.repeats(64 * MIB, 50e9, 4e-3) == 3
    assert copying.repeats(GIB, 50e9, 4e-3) == 1


@given(
    nbytes=st.integers(1, 9000),
    blocks=st.integers(1, 7),
    threads=st.sampled_from([1, 32, 96]),
    shift=st.sampled_from([0, 4, 1]),
    turn=st.integers(0, 5),
    repeats=st.integers(1, 4),
)
def test_the_copy_kernel_moves_every_byte_and_no_other(
    kernels: ctypes.CDLL, nbytes: int, blocks: int, threads: int, shift: int, turn: int, repeats: int
) -> None:
    slots, stride = 3, 16 * KIB
    source = np.random.default_rng(nbytes).integers(1, 255, slots * stride + 16, np.uint8)
    target = np.zeros_like(source)
    right = np.zeros_like(source)
    for at in ((turn + number) % slots * stride + shift for number in range(repeats)):
        right[at : at + nbytes] = source[at : at + nbytes]
    ends = [ctypes.c_void_p(array.ctypes.data + shift) for array in (target, source)]
    kernels.copy(*ends, *u64(nbytes, stride, slots, turn, repeats), blocks, threads)
    np.testing.assert_array_equal(target, right)


@given(nbytes=st.integers(1, 9000), blocks=st.integers(1, 5), threads=st.sampled_from([64, 128]))
def test_the_exchange_kernel_moves_every_byte_both_ways(
    kernels: ctypes.CDLL, nbytes: int, blocks: int, threads: int
) -> None:
    slots, stride = 3, 16 * KIB
    generator = np.random.default_rng(nbytes)
    sources = [generator.integers(1, 255, slots * stride, np.uint8) for _ in range(2)]
    targets = [np.zeros_like(source) for source in sources]
    ends = [ctypes.c_void_p(a.ctypes.data) for pair in zip(targets, sources, strict=True) for a in pair]
    kernels.exchange(*ends, *u64(nbytes, stride, slots, 2, 2), blocks, threads)
    for source, target in zip(sources, targets, strict=True):
        right = np.zeros_like(source)
        for at in (2 * stride, 0):
            right[at : at + nbytes] = source[at : at + nbytes]
        np.testing.assert_array_equal(target, right)


def test_a_copy_kernel_that_skips_its_tail_is_caught(tmp_path: Path) -> None:
    """The suite's own check: the test above must fail on a kernel with the classic fault."""
    fault = ("for (; i < count; i += step) dst[i] = src[i];", "")
    faulty = host_kernels.build(tmp_path, "transfer", DRIVER, fault)
    source_data = np.full(48 * KIB, 7, np.uint8)
    target = np.zeros_like(source_data)
    ends = [ctypes.c_void_p(array.ctypes.data) for array in (target, source_data)]
    faulty.copy(*ends, *u64(40 * KIB, 48 * KIB, 1, 0, 1), 1, 32)
    assert target[: 40 * KIB].min() == 0


@pytest.mark.parametrize(("nbytes", "pattern"), [(4 * KIB, "random"), (2 * MIB, "random"), (2 * MIB, "stride")])
def test_the_chase_visits_each_node_once_and_comes_back(kernels: ctypes.CDLL, nbytes: int, pattern: str) -> None:
    order = chasing.offsets(nbytes, pattern, 3)
    assert len(np.unique(order)) == len(order)
    assert (order % 128 == 0).all()
    memory, found = np.zeros(nbytes, np.uint8), np.zeros(3, np.uint64)
    base = memory.ctypes.data
    for warm, loads, end in ((0, 1, 1), (3, len(order) - 4, len(order) - 1), (8, len(order) - 8, 0)):
        arguments = [ctypes.c_void_p(base), ctypes.c_void_p(order.ctypes.data), *u64(len(order), 0)]
        kernels.link_and_chase(*arguments, warm, loads, 2, 5, ctypes.c_void_p(found.ctypes.data))
        assert int(found[0]) == base + int(order[end])
        assert found[1] > 0
        assert found[2] > 0


def test_chases_of_any_size_draw_from_the_whole_footprint() -> None:
    order = chasing.offsets(GIB, "random", 1)
    assert len(order) == 1 << 14
    assert len(np.unique(order)) == len(order)
    assert int(order.max()) > GIB * 0.99
    assert int(order.max()) < GIB
    assert not np.array_equal(order, np.sort(order))
    assert not np.array_equal(order, chasing.offsets(GIB, "random", 2))


@pytest.fixture
def chase(monkeypatch: pytest.MonkeyPatch) -> tuple[chasing.Chase, np.ndarray[Any, Any]]:
    """A chase whose launches have left [where it stopped, cycles, ns] of each SM in the array."""
    order = chasing.offsets(64 * KIB, "random", 1)
    left = np.zeros((132, 3), np.uint64)
    stream = SimpleNamespace(synchronize=lambda: None)
    made = chasing.Chase(1000, order, card(), left.ctypes.data, stream)
    monkeypatch.setattr(made, "_launch", lambda: [7] * 132)
    monkeypatch.setattr(gpu, "memcpy", lambda dst, src, nbytes, stream: ctypes.memmove(dst, src, nbytes))
    left[:] = (7, 1980, 1000)
    return made, left


def test_a_sample_is_the_mean_over_all_sms(chase: tuple[chasing.Chase, np.ndarray[Any, Any]]) -> None:
    made, left = chase
    left[0, 2] = 1132
    assert made.sample() == pytest.approx(1001e-9)
    assert made.cycles == [1980]


def test_a_chase_that_stopped_elsewhere_is_wrong_data(chase: tuple[chasing.Chase, np.ndarray[Any, Any]]) -> None:
    made, left = chase
    left[3, 0] = 8
    with pytest.raises(WrongData, match="1 of 132 SMs"):
        made.sample()


@pytest.mark.parametrize("nodes", [32, 512, 1 << 14])
def test_no_node_is_visited_twice_in_one_launch(nodes: int) -> None:
    made = chasing.Chase(0, np.arange(nodes, dtype=np.uint64), card(), 0, None)
    assert made.loads > 0
    assert made.warm + made.loads <= nodes


def test_the_arena_frees_before_it_makes_a_larger_one() -> None:
    told: list[str] = []

    @contextmanager
    def make(nbytes: int) -> Iterator[Any]:
        told.append(f"+{nbytes}")
        yield SimpleNamespace(nbytes=nbytes)
        told.append(f"-{nbytes}")

    with copying.arena() as arena:
        first = arena.get("a", 10, make)
        assert arena.get("a", 7, make) is first
        assert arena.get("a", 20, make) is not first
        arena.get("b", 5, make)
        assert told == ["+16", "-16", "+32", "+8"]
    assert sorted(told[4:]) == ["-32", "-8"]


def test_an_arena_survives_a_buffer_that_does_not_fit() -> None:
    @contextmanager
    def refuses(nbytes: int) -> Iterator[Any]:
        raise MemoryError
        yield

    @contextmanager
    def make(nbytes: int) -> Iterator[Any]:
        yield SimpleNamespace(nbytes=nbytes)

    with copying.arena() as arena:
        with pytest.raises(MemoryError):
            arena.get("a", 10, refuses)
        assert arena.get("a", 10, make).nbytes == 16


class FakeNvml:
    """Links 0 to 3, one of them inactive; counters in KiB by link."""

    NVMLError = RuntimeError

    def __init__(self) -> None:
        self.sent = {0: 100, 1: 100, 2: 100}
        self.counts = True

    def nvmlDeviceGetNvLinkState(self, handle: Any, link: int) -> int:  # noqa: N802
        if link > 3:
            raise RuntimeError("not supported")
        return int(link != 3)

    def nvmlDeviceGetFieldValues(self, handle: Any, fields: list[tuple[int, int]]) -> list[Any]:  # noqa: N802
        if not self.counts:
            raise RuntimeError("not supported")
        return [self.field(*field) for field in fields]

    def field(self, kind: int, link: int) -> Any:
        count = sum(self.sent.values()) if link == 0xFFFFFFFF else self.sent[link]
        return SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(ullVal=count))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    library = FakeNvml()
    monkeypatch.setattr(nvml, "at", lambda pci: nvml.Gpu(library, pci))
    return library


def test_counters_prove_the_way_and_idle_links_are_named(fake: FakeNvml) -> None:
    with nvlink.counted([card(0), card(1)]) as carried:
        fake.sent[0] += 40 * KIB
        fake.sent[1] += 60 * KIB
    proof = carried.proof(100 * MIB)
    assert (proof.proven, proof.words) == (True, "NVLink")
    assert carried.proof(100 * MIB + 50 * KIB).proven  # counters come late and in whole KiB
    assert carried.proof(50 * MIB).words == "NVLink, other traffic beside it"
    less = carried.proof(101 * MIB)
    assert not less.proven
    assert "104857600 of 105906176 bytes" in less.words
    assert proof.evidence["sent_by_link"] == {0: 40 * MIB, 1: 60 * MIB, 2: 0}
    assert proof.evidence["sender"] == {"gpu": "gpu:0", "active": 3, "inactive": [3]}
    assert "gpu:0 has 1 inactive NVLinks: 3" in proof.notes
    assert "NVLinks of gpu:0 that carried nothing: 2" in proof.notes


def test_links_without_a_share_of_a_few_bytes_are_not_called_idle(fake: FakeNvml) -> None:
    with nvlink.counted([card(0), card(1)]) as carried:
        fake.sent[0] += 1
    assert not any("nothing" in note for note in carried.notes)


def test_without_counters_nothing_is_proven(fake: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.counts = False
    with nvlink.counted([card(0), card(1)]) as carried:
        pass
    assert carried.proof(1).proven is False
    assert "sent" not in carried.evidence()
    monkeypatch.setattr(nvml, "at", lambda pci: None)
    with nvlink.counted([card(0), card(1)]) as carried:
        pass
    assert carried.proof(1).proven is False
    assert carried.evidence() == {}
    assert carried.notes == []
