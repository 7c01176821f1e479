"""KV-cache reads: layouts, which points, what the kernels read in every format; no GPU needed."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from iobench import probe as probes
from iobench import topology
from iobench.errors import Unavailable
from iobench.kernels.gpu import kvcache
from iobench.kernels.gpu.kvcache import FORMATS, MODELS, Layout, block_table, steps_in
from iobench.paths import data_dir
from iobench.topology.graph import Topology
from iobench.units import GIB, KIB, MIB
from tests.host_kernels import build

KV = probes.load("kv")
H200 = topology.load(data_dir("topologies") / "1x-h200.json")
L2 = 60 * MIB

DRIVER = """
extern "C" void run(int step, int format, LAYER_PARAMETERS, unsigned group, unsigned splits, unsigned threads,
                    word* sums) {
  unsigned grid = step == 2 ? sequences * (heads / group) * 2 * splits : 3;
  every_thread({grid, 1, 1}, threads, [&] {
#define ARGUMENTS keys, values, key_scales, value_scales, table, number, layers, sequences, tokens, heads, shift, blocks
    if (step == 0) fill_layer(ARGUMENTS, format);
    if (step == 1) expect_layer(ARGUMENTS, format, sums);
    if (step == 2 && format == 0) read_fp16(ARGUMENTS, group, splits, sums);
    if (step == 2 && format == 1) read_int8(ARGUMENTS, group, splits, sums);
    if (step == 2 && format == 2) read_fp8(ARGUMENTS, group, splits, sums);
  });
}
"""


class OnHost:
    """One layer of a cache on the CPU."""

    def __init__(self, library: ctypes.CDLL, layout: Layout, table: np.ndarray | None, number: int = 0) -> None:
        self.library, self.layout, self.number = library, layout, number
        self.planes = [np.full(layout.plane_nbytes + 16, 0x77, dtype=np.uint8) for _ in range(2)]
        self.scales = [np.full(max(layout.scales_nbytes // 4, 1), np.nan, dtype=np.float32) for _ in range(2)]
        self.table = table

    def run(self, step: int, group: int = 1, splits: int = 1) -> np.ndarray:
        layout = self.layout
        sums = np.zeros((2, layout.sequences, layout.heads), dtype=np.uint64)
        arrays = [*self.planes, *self.scales]
        at = [ctypes.c_void_p(array.ctypes.data) for array in arrays]
        at.append(ctypes.c_void_p(self.table.ctypes.data if self.table is not None else None))
        shift = layout.block.bit_length() - 1
        numbers = (self.number, layout.layers, layout.sequences, layout.tokens, layout.heads, shift, layout.blocks)
        self.library.run(
            step, FORMATS.index(layout.dtype), *at, *numbers, group, splits, 256, ctypes.c_void_p(sums.ctypes.data)
        )
        return sums


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return build(tmp_path_factory.mktemp("kv"), "kv", DRIVER)


def small(**changes: Any) -> Layout:
    usual: dict[str, Any] = {
        "layers": 3, "heads": 2, "sequences": 2, "tokens": 50, "dtype": "fp16", "paged": False, "block": 16,
    }  # fmt: skip
    return Layout(**{**usual, **changes})


def table_of(layout: Layout) -> np.ndarray | None:
    return block_table(layout, 5) if layout.paged else None


# ---- the kernels


@settings(max_examples=60, deadline=None)
@given(
    dtype=st.sampled_from(FORMATS),
    paged=st.booleans(),
    block=st.sampled_from([8, 16, 32, 64]),
    tokens=st.integers(1, 150),
    sequences=st.integers(1, 3),
    heads=st.sampled_from([1, 2, 8]),
    splits=st.integers(1, 7),
    number=st.integers(0, 2),
    all_heads=st.booleans(),
)
def test_a_step_reads_every_value_of_every_layout(
    library: ctypes.CDLL,
    dtype: str,
    paged: bool,
    block: int,
    tokens: int,
    sequences: int,
    heads: int,
    splits: int,
    number: int,
    all_heads: bool,
) -> None:
    layout = small(dtype=dtype, paged=paged, block=block, tokens=tokens, sequences=sequences, heads=heads)
    cache = OnHost(library, layout, table_of(layout), number)
    cache.run(0)
    wanted = cache.run(1)
    found = cache.run(2, heads if all_heads else 1, splits)
    assert steps_in(found, wanted) == 1
    assert all((plane[-16:] == 0x77).all() for plane in cache.planes), "it wrote behind its plane"


@pytest.mark.parametrize(
    "fault",
    [
        ("if (first + u * together < end) sum", "if (first + u * together + 1 < end) sum"),
        ("if (!layer.table) return", "if (true) return"),
        ("(unsigned)((word)layer.tokens * (split + 1) / splits);", "begin + layer.tokens / splits;"),
    ],
    ids=["last token", "table ignored", "rest of the split"],
)  # fmt: skip
def test_a_kernel_that_reads_less_is_found(tmp_path_factory: pytest.TempPathFactory, fault: tuple[str, str]) -> None:
    faulty = build(tmp_path_factory.mktemp("kv"), "kv", DRIVER)
    planted = build(tmp_path_factory.mktemp("planted"), "kv", DRIVER, replace=fault)
    layout = small(paged=True, tokens=50)
    cache = OnHost(faulty, layout, table_of(layout))
    cache.run(0)
    wanted = cache.run(1)
    cache.library = planted
    assert steps_in(cache.run(2, 1, 3), wanted) is None


def test_a_changed_value_is_found(library: ctypes.CDLL) -> None:
    layout = small(dtype="int8")
    cache = OnHost(library, layout, None)
    cache.run(0)
    wanted = cache.run(1)
    cache.planes[1][777] ^= 1
    assert steps_in(cache.run(2), wanted) is None


def test_values_and_scales_are_spread(library: ctypes.CDLL) -> None:
    """A cache of equal values would let a read of the wrong place pass."""
    layout = small(dtype="int8", tokens=64, block=16)
    cache = OnHost(library, layout, None)
    cache.run(0)
    values = cache.planes[0][: 2 * 64 * 2 * 128].view(np.int8)
    assert set(values) == set(range(-8, 8))
    assert min(Counter(values.tolist()).values()) > len(values) / 16 * 0.8
    assert set(cache.scales[0][:16]) <= {1.0, 0.5, 0.25, 0.125}
    assert len(set(cache.scales[0][:16])) > 1


# ---- layouts


def test_bytes_of_the_models() -> None:
    """A token of Llama-3-8B takes 2 * 32 layers * 8 heads * 128 * 2 bytes = 128 KiB, of 70B 320 KiB."""
    for name, each in (("llama-3-8b", 128 * KIB), ("llama-3-70b", 320 * KIB)):
        model = MODELS[name]
        layout = Layout(model.layers, model.heads, 1, 131072, "fp16", False, 16)
        assert layout.payload == layout.moved == each * 131072
    eight = Layout(32, 8, 2, 1000, "int8", True, 16)
    assert eight.payload == 2000 * 64 * KIB
    assert eight.read_scales == 2 * 32 * 2 * 63 * 8 * 4
    assert eight.read_table == 32 * 2 * 63 * 4
    assert eight.moved == eight.payload + eight.read_scales + eight.read_table
    assert eight.room >= 2 * 32 * 2 * 63 * 16 * 8 * 128, "the last block is allocated whole"


@given(
    st.sampled_from(FORMATS), st.booleans(), st.sampled_from([8, 16, 64]), st.integers(1, 200_000), st.integers(1, 8)
)
def test_steps_rotate_over_more_than_the_cache(dtype: str, paged: bool, block: int, tokens: int, batch: int) -> None:
    layout = Layout(32, 8, batch, tokens, dtype, paged, block)
    slots = layout.slots(L2)
    assert slots * layout.room >= 4 * L2
    assert layout.from_memory(L2) <= layout.payload + layout.read_scales
    splits = layout.splits(1, 132)
    assert 1 <= splits <= tokens


def test_every_multiprocessor_gets_blocks_of_a_long_context() -> None:
    layout = Layout(32, 8, 1, 131072, "fp16", False, 16)
    assert Layout(32, 8, 8, 1024, "fp16", False, 16).splits(1, 132) == 4, "one wave, not eight of crumbs"
    for batch in (1, 2, 3, 8, 17, 40):
        layout = Layout(32, 8, batch, 131072, "fp16", False, 16)
        blocks, wave = layout.splits(1, 132) * 16 * batch, 132 * 4
        assert blocks / (-(-blocks // wave) * wave) >= 0.9


def test_the_table_gives_each_block_once_and_out_of_order() -> None:
    layout = small(sequences=3, tokens=1000, paged=True)
    table = block_table(layout, 1)
    assert table.shape == (3, layout.blocks)
    assert sorted(table.ravel()) == list(range(3 * layout.blocks))
    assert (np.diff(table.ravel()) == 1).mean() < 0.1
    assert (table != block_table(layout, 2)).any()


def test_steps_are_counted_from_the_sums() -> None:
    expected = np.array([[5, 0], [-7, 12]], dtype=np.int64).astype(np.uint64)
    counted: Callable[[int], np.ndarray] = lambda steps: (expected.astype(np.int64) * steps).astype(np.uint64)  # noqa: E731
    assert steps_in(counted(1), expected) == 1
    assert steps_in(counted(900), expected) == 900
    wrong = counted(900)
    wrong[1, 1] += 1
    assert steps_in(wrong, expected) is None
    assert steps_in(counted(0), expected) is None
    moved = counted(3)
    moved[0, 1] = 1
    assert steps_in(moved, expected) is None, "a sum that must stay 0"


# ---- points


def points(graph: Topology, *assignments: str) -> list[dict[str, Any]]:
    return list(KV.points(graph, probes.narrow(KV, assignments)))


def test_default_points_hold_every_layout_beside_the_contiguous_one() -> None:
    found = points(H200)
    assert len(found) <= 90
    cases = Counter((p["model"], p["batch"], p["tokens"]) for p in found if p["block"] == 16)
    assert ("llama-3-70b", 1, 131072) in cases
    assert ("llama-3-8b", 8, 131072) in cases, "in INT8 and FP8 it has room"
    for model, batch, tokens in cases:
        formats = {
            (p["layout"], p["dtype"]) for p in found if (p["model"], p["batch"], p["tokens"]) == (model, batch, tokens)
        }
        assert ("paged", "int8") in formats
        assert (("paged", "fp16") in formats) == (("contiguous", "fp16") in formats)
    reference = [p for p in found if (p["model"], p["batch"], p["tokens"]) == ("llama-3-8b", 1, 32768)]
    assert {(p["layout"], p["block"]) for p in reference if p["dtype"] == "int8"} == {
        (layout, block) for layout in ("contiguous", "paged") for block in (8, 16, 32, 64)
    }


def test_what_does_not_fit_is_left_out() -> None:
    graph = Topology("small")
    graph.add("gpu:0", "gpu", vendor="NVIDIA", memory_bytes=24 * GIB)
    found = points(graph)
    assert max(p["tokens"] * p["batch"] * (1 if p["dtype"] == "fp16" else 0.5) for p in found) < 24 * GIB / (128 * KIB)
    assert not [p for p in found if p["model"] == "llama-3-70b" and p["tokens"] == 131072 and p["dtype"] == "fp16"]


def test_the_user_narrows() -> None:
    found = points(H200, "model=llama-3-8b", "layout=paged", "dtype=fp8", "block=32", "tokens=5000", "batch=3")
    assert [(p["layout"], p["dtype"], p["block"], p["tokens"], p["batch"]) for p in found] == [
        ("paged", "fp8", 32, 5000, 3)
    ]
    assert len(points(H200, "layout=contiguous", "tokens=1024", "batch=1", "model=llama-3-8b")) == 3
    with pytest.raises(Unavailable, match="NVIDIA GPU"):
        points(Topology("empty"))


def test_formats_have_their_names_in_the_order_of_the_kernels() -> None:
    text = kvcache.FORMATS
    assert text == ("fp16", "int8", "fp8"), "enum Format in kv.cu"
