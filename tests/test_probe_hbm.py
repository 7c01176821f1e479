"""GPU memory: which points, what a grid covers, what is caught; no GPU needed."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from iobench import check, topology
from iobench import probe as probes
from iobench.errors import Unavailable, UserError
from iobench.kernels.gpu import pointers, streams
from iobench.kernels.gpu.streams import SEED, STEP, Layout, Shape, launches_in, pattern_sum
from iobench.paths import data_dir
from iobench.record import Leg, Line, Record
from iobench.topology.graph import Topology
from iobench.units import GB, GIB, KIB, MIB
from tests.host_kernels import build

HBM = probes.load("hbm")
H200 = topology.load(data_dir("topologies") / "1x-h200.json")
L2 = 60 * MIB

STREAMS_DRIVER = """
#define EACH_UNROLL(call) switch (unroll) { case 1: call(1); break; case 2: call(2); break; \\
                                            case 4: call(4); break; case 8: call(8); break; }
extern "C" void stream(int kernel, int unroll, unsigned blocks, unsigned threads, word* a, word* b, word* c, word words,
                       word stride, unsigned slots, unsigned passes, word* total) {
  double *x = (double*)a, *y = (double*)b, *z = (double*)c;
#define GRID {blocks, 1, 1}, threads
#define READ(U) every_thread(GRID, [&] { read_##U(a, words, stride, slots, passes, total); })
#define WRITE(U) every_thread(GRID, [&] { write_##U(a, words, stride, slots, passes, 12345); })
#define COPY(U) every_thread(GRID, [&] { copy_##U(a, b, words, stride, slots, passes); })
#define TRIAD(U) \\
  every_thread(GRID, [&] { triad_##U(x, y, z, words, stride, slots, passes, 3.0); })
  if (kernel == 0) EACH_UNROLL(READ)
  if (kernel == 1) EACH_UNROLL(WRITE)
  if (kernel == 2) EACH_UNROLL(COPY)
  if (kernel == 3) EACH_UNROLL(TRIAD)
}
extern "C" void fill(unsigned blocks, unsigned threads, word* a, word words, word seed) {
  every_thread({blocks, 1, 1}, threads, [&] { fill_words(a, words, seed); });
}
extern "C" word wrong(unsigned blocks, unsigned threads, word* a, word words, word seed) {
  word bad = 0;
  every_thread({blocks, 1, 1}, threads, [&] { wrong_words(a, words, seed, &bad); });
  return bad;
}
extern "C" void fill_triad(word* b, word* c, word words, word left, word right) {
  every_thread({2, 1, 1}, 32, [&] { fill_reals((double*)b, words, left); fill_reals((double*)c, words, right); });
}
extern "C" word triad_wrong(word* a, word words, word left, word right) {
  word bad = 0;
  every_thread({3, 1, 1}, 32, [&] { wrong_triad((double*)a, words, left, right, 3.0, &bad); });
  return bad;
}
"""
# The last, partly filled tile is left out: what a kernel without its check per vector does.
TAIL_SKIPPED = ("if (i < n) { FETCH; USE; }", "if (false) { FETCH; USE; }")
SKIPPED_TILES = ("first < n; first", "first + tile <= n; first")


class OnHost:
    """The stream kernels on the CPU over NumPy arrays."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        library.wrong.restype = library.triad_wrong.restype = ctypes.c_uint64

    def run(
        self, kernel: str, words: int, blocks: int, shape: Shape, slots: int = 1, passes: int = 1
    ) -> dict[str, Any]:
        """Run a kernel over poisoned and filled arrays; return the sum it made and the count of wrong words."""
        stride = words + words % 2 + 2
        a, b, c = (np.full(stride * slots, 0xA5A5A5A5A5A5A5A5, dtype=np.uint64) for _ in range(3))
        u64 = ctypes.c_uint64
        for slot in range(slots):
            at = slot * stride * 8
            if kernel == "triad":
                self.library.fill_triad(
                    ctypes.c_void_p(b.ctypes.data + at), ctypes.c_void_p(c.ctypes.data + at), u64(words), u64(1), u64(8)
                )
            else:
                source = a if kernel == "read" else b
                self.library.fill(3, 64, ctypes.c_void_p(source.ctypes.data + at), u64(words), u64(SEED + slot))
        total = np.zeros(1, dtype=np.uint64)
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in (a, b, c)]
        self.library.stream(
            streams.KERNELS.index(kernel), shape.unroll, blocks, shape.threads, *pointers, u64(words), u64(stride),
            slots, passes, ctypes.c_void_p(total.ctypes.data),
        )  # fmt: skip
        wrong = 0
        for slot in range(slots):
            at = ctypes.c_void_p(a.ctypes.data + slot * stride * 8)
            if kernel == "triad":
                wrong += self.library.triad_wrong(at, u64(words), u64(1), u64(8))
            elif kernel != "read":
                wrong += self.library.wrong(2, 32, at, u64(words), u64(SEED + (slot if kernel == "copy" else 0)))
        outside = a.reshape(slots, stride)[:, words:]
        return {"sum": int(total[0]), "wrong": wrong, "outside": int((outside != 0xA5A5A5A5A5A5A5A5).sum())}


@pytest.fixture(scope="module")
def on_host(tmp_path_factory: pytest.TempPathFactory) -> OnHost:
    return OnHost(build(tmp_path_factory.mktemp("hbm"), "hbm", STREAMS_DRIVER))


def points(graph: Topology, *assignments: str) -> list[dict[str, Any]]:
    return list(HBM.points(graph, probes.narrow(HBM, assignments)))


def right(kernel: str, words: int, slots: int, passes: int, found: dict[str, Any]) -> bool:
    if kernel == "read":
        sums = [pattern_sum(words, SEED + slot) for slot in range(slots)]
        return found["sum"] == sum(sums[number % slots] for number in range(passes)) % 2**64
    return found["wrong"] == 0 and found["outside"] == 0


# ---- the kernels


@settings(max_examples=60, deadline=None)
@given(
    kernel=st.sampled_from(streams.KERNELS),
    words=st.integers(1, 5000),
    blocks=st.integers(1, 40),
    unroll=st.sampled_from(streams.UNROLLS),
    warps=st.integers(1, 4),
    slots=st.integers(1, 3),
    more=st.integers(0, 3),
)
def test_every_kernel_handles_every_element_for_every_grid(
    on_host: OnHost, kernel: str, words: int, blocks: int, unroll: int, warps: int, slots: int, more: int
) -> None:
    shape, passes = Shape(32 * warps, unroll, 1), slots + more
    found = on_host.run(kernel, words, blocks, shape, slots, passes)
    assert right(kernel, words, slots, passes, found), found


@pytest.fixture(scope="module", params=[TAIL_SKIPPED, SKIPPED_TILES], ids=["tail", "tiles"])
def planted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> OnHost:
    return OnHost(build(tmp_path_factory.mktemp("planted"), "hbm", STREAMS_DRIVER, request.param))


@pytest.mark.parametrize("kernel", streams.KERNELS)
def test_a_kernel_that_skips_its_tail_is_found(planted: OnHost, kernel: str) -> None:
    shape = Shape(64, 4, 1)
    tile = 2 * shape.threads * shape.unroll
    whole, cut = planted.run(kernel, 8 * tile, 3, shape), planted.run(kernel, 8 * tile + 6, 3, shape)
    assert right(kernel, 8 * tile, 1, 1, whole), "whole tiles are not touched by the fault"
    assert not right(kernel, 8 * tile + 6, 1, 1, cut), cut


def test_the_rate_of_a_kernel_that_skips_is_impossible() -> None:
    """5,137 GB/s, once "measured" so on a memory of 4,814 GB/s; also through a working set's L2 allowance."""
    layout = Layout.of("read", 16 * GIB, L2, rotating=True)
    rates: dict[int, check.Verdict] = {}
    for gb_per_s in (4499, 5137):
        line = Line("hbm", "x", {"kernel": "read"}, nbytes=16 * GIB, moved=layout.moved, proven=True, verified=True)
        line.seconds = [[layout.moved / (gb_per_s * GB)] * 5]
        line.legs = [Leg("vram:0", "gpu:0", moved=layout.from_memory(L2))]
        rates[gb_per_s] = check.verdict(Record("hbm", line.point, [line]), H200)
    assert rates[4499].status == "ok"
    assert rates[4499].fraction == pytest.approx(0.931, abs=0.001)
    assert rates[5137].status == "impossible"


def test_the_pattern_sum_is_the_sum_of_the_pattern() -> None:
    for words, seed in ((1, 7), (2, 0), (1001, SEED), (4096, 3)):
        assert pattern_sum(words, seed) == sum((STEP * i + seed) % 2**64 for i in range(words)) % 2**64


@given(st.integers(1, 2**64 - 1), st.integers(1, 2**20))
def test_launches_are_counted_from_the_sum(once: int, launches: int) -> None:
    found = launches_in(once * launches % 2**64, once)
    assert found is not None
    assert (found - launches) * once % 2**64 == 0


def test_a_sum_of_no_whole_launches_is_refused() -> None:
    once = pattern_sum(1 << 20, SEED)
    assert launches_in(once * 12 % 2**64, once) == 12
    for wrong in (0, once * 12 + 1, once * 12 - STEP, once * 12 - pattern_sum(100, SEED)):
        assert launches_in(wrong % 2**64, once) is None
    assert launches_in(0, 0) is None


# ---- layouts and shapes


@given(st.sampled_from(sorted(streams.ARRAYS)), st.integers(4 * KIB, 100 * GIB), st.booleans())
def test_a_layout_counts_what_it_moves_and_outgrows_the_cache(kernel: str, nbytes: int, rotating: bool) -> None:
    layout = Layout.of(kernel, nbytes, L2, rotating)
    assert nbytes - 8 * layout.arrays < layout.moved <= nbytes
    assert layout.array_nbytes % 512 == 0
    assert layout.array_nbytes >= layout.words * 8
    assert (layout.slots - 1) * layout.stride < 4 * L2 or layout.slots == 1
    if rotating:
        assert layout.room >= 4 * L2
        assert layout.passes == 1 or layout.passes >= layout.slots, "every slot must be reached"
        assert layout.from_memory(L2) > 0.6 * layout.moved
    else:
        assert layout.slots == 1
    assert layout.from_memory(L2) <= layout.moved


def test_a_working_set_inside_the_cache_has_no_limit_of_the_memory() -> None:
    assert Layout.of("read", 32 * MIB, L2, rotating=False).from_memory(L2) == 0
    assert Layout.of("read", 120 * MIB, L2, rotating=False).from_memory(L2) == 60 * MIB


@pytest.mark.parametrize("text", ["256x4x8", "1024x1x2", "512x8x0", "32x2x32"])
def test_shapes_are_read_back(text: str) -> None:
    assert str(Shape.parse(text)) == text


@pytest.mark.parametrize(
    "text", ["", "256", "256x4", "100x4x2", "2048x4x2", "256x3x2", "256x4x99", "ax4x2", "256x4x2d"]
)
def test_a_malformed_shape_says_what_to_write(text: str) -> None:
    with pytest.raises(UserError, match="shape"):
        Shape.parse(text)


CANDIDATES = sorted(
    {shape for kernel in streams.KERNELS for passes in (1, 9) for shape in streams.candidates(kernel, passes)}, key=str
)


@pytest.mark.parametrize("kernel", streams.KERNELS)
def test_several_passes_need_a_grid_that_stays(kernel: str) -> None:
    """One tile per block would make all passes over its own tile: 256 MiB "read" from the L2 at 8,800 GB/s."""
    assert all(shape.per_sm for shape in streams.candidates(kernel, 9))
    assert any(not shape.per_sm for shape in streams.candidates(kernel, 1))
    small = streams.Streams(kernel, 0, Layout.of(kernel, 8 * MIB, L2, rotating=False), None, None)  # type: ignore[arg-type]
    assert small.passes > 1
    with pytest.raises(UserError, match="shape=256x1x0"):
        small.use(Shape.parse("256x1x0"))


def test_the_search_keeps_the_first_of_equals() -> None:
    assert streams.fastest([1.002, 1.0, 1.2]) == 0
    assert streams.fastest([1.01, 1.0, 0.999]) == 1
    assert streams.fastest([3.0]) == 0


@given(st.integers(1, 1 << 34), st.sampled_from(CANDIDATES))
def test_a_grid_is_never_empty_nor_larger_than_its_tiles(words: int, shape: Shape) -> None:
    blocks = shape.blocks(words, 132)
    assert 1 <= blocks <= max(-(-(words // 2) // (shape.threads * shape.unroll)), 1)
    if shape.per_sm:
        assert blocks <= 132 * shape.per_sm


# ---- the chase


@given(st.integers(256, 1 << 20), st.integers(0, 9))
@settings(max_examples=25, deadline=None)
def test_the_cycle_visits_every_line_once(nbytes: int, seed: int) -> None:
    order = pointers.order(nbytes, seed)
    assert sorted(order) == list(range(max(nbytes // 128, 2)))
    assert (order != pointers.order(nbytes, seed + 1)).any() or len(order) < 8


def test_large_sets_have_one_node_per_cell() -> None:
    nbytes = 96 * GIB
    order = np.sort(pointers.order(nbytes, 1).astype(np.int64))
    cell = nbytes // 128 // pointers.MOST_NODES
    assert len(order) == pointers.MOST_NODES
    assert (order // cell == np.arange(len(order))).all()
    assert order[-1] < nbytes // 128
    assert len(np.unique(order % cell)) > cell // 2, "a fixed place in each cell would use one channel only"


def test_single_loads_are_counted_in_bins() -> None:
    assert pointers.histogram(np.array([200, 219, 220, 900], dtype=np.uint16)) == [[200, 2], [220, 1], [900, 1]]


# ---- points


def test_default_points_reach_from_the_cache_to_most_of_the_card() -> None:
    found = points(H200)
    one = {point["nbytes"] for point in found if point.get("buffers") == "one"}
    rotating = {point["nbytes"] for point in found if point.get("buffers") == "rotating"}
    chase = [point["nbytes"] for point in found if point["kernel"] == "chase"]
    assert one == {8 * MIB, 32 * MIB, 64 * MIB, 128 * MIB}
    assert rotating == {256 * MIB, 2 * GIB, 16 * GIB, 96 * GIB}
    assert {point["kernel"] for point in found if point.get("buffers") == "rotating"} == {*streams.ARRAYS}
    assert (chase[0], chase[-1]) == (16 * KIB, 96 * GIB)
    assert len(found) <= 60, "the whole set has to fit into its minute"
    assert {point["gpu"] for point in found} == {0}


def test_all_gpus_unless_one_is_named() -> None:
    two = topology.load(data_dir("topologies") / "2x-h200.json")
    assert {point["gpu"] for point in points(two)} == {0, 1}
    assert {point["gpu"] for point in points(two, "gpu=1")} == {1}
    with pytest.raises(Unavailable, match="needs gpu:2: the topology has gpu:0, gpu:1"):
        points(two, "gpu=2")


def test_a_small_card_gets_small_sets() -> None:
    graph = Topology("small")
    graph.add("gpu:0", "gpu", vendor="NVIDIA", memory_bytes=8 * GIB)
    assert max(point["nbytes"] for point in points(graph)) == 6 * GIB


def test_the_user_narrows() -> None:
    found = points(H200, "kernel=read,memcpy", "buffers=rotating", "shape=256x4x8,512x4x4", "nbytes=1G")
    shapes = [(point["kernel"], point.get("shape")) for point in found]
    assert shapes == [("read", "256x4x8"), ("read", "512x4x4"), ("memcpy", None)]
    assert {point["kernel"] for point in points(H200, "kernel=triad", "buffers=one")} == {"triad"}


def test_no_gpu_is_said() -> None:
    with pytest.raises(Unavailable, match="NVIDIA GPU"):
        points(Topology("empty"))
