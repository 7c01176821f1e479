"""Collective operations without a GPU: definitions, the data and its check, and the GPU's twin built for the CPU."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from iobench.collectives import values
from iobench.collectives.data import check_rule
from iobench.collectives.nccl import version_text
from iobench.collectives.ops import OPS, Work
from iobench.errors import Unavailable, UserError, WrongData
from tests.host_kernels import build

BEFORE = """
static unsigned __float_as_uint(float value) { unsigned bits; std::memcpy(&bits, &value, 4); return bits; }
#define atomicAdd add_here
#define atomicMin least_here
static void add_here(unsigned long long* at, unsigned long long value) { *at += value; }
static void least_here(unsigned long long* at, unsigned long long value) { if (value < *at) *at = value; }
"""
DRIVER = """
#define CALLS(NAME, TYPE) \\
    extern "C" void run_fill_##NAME(void* p, u64 n, unsigned rank, unsigned seed, unsigned levels) { \\
        every_thread(Index{3, 1, 1}, 32, [=] { fill_##NAME((TYPE*)p, n, rank, seed, levels); }); \\
    } \\
    extern "C" void run_check_##NAME(void* p, u64 n, int rule, unsigned ranks, u64 part, u64 offset, unsigned mine, \\
                                     unsigned seed, unsigned levels, u64* found) { \\
        every_thread(Index{3, 1, 1}, 32, [=] { \\
            check_##NAME((TYPE*)p, n, rule, ranks, part, offset, mine, seed, levels, found); \\
        }); \\
    }
CALLS(float32, Float32)
CALLS(float16, Float16)
CALLS(bfloat16, BFloat16)
CALLS(float8, Float8)
"""


def simulate(work: Work, seed: int = 3) -> list[np.ndarray]:
    """Return every rank's result, computed from all ranks' inputs by the operation's own definition."""
    inputs = [values.sent(work, rank, seed) for rank in range(work.ranks)]
    n = work.ranks
    total = np.sum(inputs, axis=0)
    parts = [np.split(one, n) for one in inputs] if work.op.name in ("all_to_all",) else []
    return {
        "all_reduce": lambda: [total] * n,
        "reduce": lambda: [total] * n,
        "reduce_scatter": lambda: np.split(total, n),
        "all_gather": lambda: [np.concatenate(inputs)] * n,
        "broadcast": lambda: [inputs[0]] * n,
        "all_to_all": lambda: [np.concatenate([parts[s][rank] for s in range(n)]) for rank in range(n)],
        "sendrecv": lambda: [inputs[(rank - 1) % n] for rank in range(n)],
    }[work.op.name]()


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("op", OPS)
def test_results_by_the_operations_own_definition_pass(op: str, ranks: int) -> None:
    work = Work.of(op, 96 * ranks, "float32", ranks)
    for rank, result in enumerate(simulate(work)):
        values.compare(result.astype(np.float32), work, rank, 3)
        assert values.due_at(work, rank, 3, len(result) - 1) == result[-1]


def lost_chunk(results: list[np.ndarray]) -> np.ndarray:
    results[1][8:16] = 0
    return results[1]


def swapped_chunks(results: list[np.ndarray]) -> np.ndarray:
    one = results[1]
    one[:8], one[8:16] = one[8:16].copy(), one[:8].copy()
    return one


def last_element(results: list[np.ndarray]) -> np.ndarray:
    results[1][-1] += 1
    return results[1]


def not_a_number(results: list[np.ndarray]) -> np.ndarray:
    results[1][5] = np.nan
    return results[1]


@pytest.mark.parametrize("spoil", [lost_chunk, swapped_chunks, last_element, not_a_number])
@pytest.mark.parametrize("op", OPS)
def test_spoiled_results_are_wrong_data(op: str, spoil: Callable[[list[np.ndarray]], np.ndarray]) -> None:
    work = Work.of(op, 1024, "float32", 4)
    results = [result.astype(np.float32).copy() for result in simulate(work)]
    with pytest.raises(WrongData, match=f"{op}: .* of rank 1's result are wrong, the first is element"):
        values.compare(spoil(results), work, 1, 3)


def test_a_wrong_number_of_ranks_shows_in_the_sum() -> None:
    right = Work.of("all_reduce", 4096, "float32", 4)
    three = np.sum([values.sent(right, rank, 0) for rank in range(3)], axis=0)
    with pytest.raises(WrongData):
        values.compare(three.astype(np.float32), right, 0, 0)


@pytest.mark.parametrize("dtype", values.EXACT)
@pytest.mark.parametrize("ranks", [2, 7, 8, 16])
def test_sums_stay_exact_in_the_type_in_any_order(dtype: str, ranks: int) -> None:
    work = Work.of("all_reduce", 1 << 16, dtype, ranks)
    assert (values.levels(work) - 1) * ranks <= values.EXACT[dtype]
    assert len(np.unique(values.sent(work, 1, 0))) == values.levels(work)


def test_a_type_too_narrow_for_the_ranks_says_so() -> None:
    with pytest.raises(Unavailable, match="float8 holds no sum of 17 ranks exactly"):
        values.levels(Work.of("all_reduce", 1024, "float8", 17))
    assert values.levels(Work.of("all_gather", 17 * 16, "float8", 17)) == 17


def test_sizes_that_are_no_whole_elements_are_refused() -> None:
    with pytest.raises(UserError, match="choose a multiple of 4"):
        Work.of("all_reduce", 10, "float32", 2)
    with pytest.raises(UserError, match="2 parts of whole float32s: choose a multiple of 8"):
        Work.of("all_gather", 12, "float32", 2)
    with pytest.raises(UserError, match="all_to_all has no in-place form"):
        Work.of("all_to_all", 64, "float32", 2, inplace=True)


@pytest.mark.parametrize(
    ("op", "moved"),
    [
        ("all_reduce", 1400), ("all_gather", 700), ("reduce_scatter", 700), ("all_to_all", 700), ("broadcast", 800),
        ("reduce", 800), ("sendrecv", 800),
    ],
)  # fmt: skip
def test_bus_bytes_are_those_of_nccl_tests(op: str, moved: int) -> None:
    assert Work.of(op, 800, "float16", 8).moved == moved


def test_parts_of_a_buffer() -> None:
    gather = Work.of("all_gather", 800, "float32", 4, inplace=True)
    assert (gather.send_nbytes, gather.receive_nbytes, gather.slot_nbytes) == (200, 800, 800)
    assert [gather.send_offset(rank) for rank in range(4)] == [0, 200, 400, 600]
    scatter = Work.of("reduce_scatter", 800, "float32", 4, inplace=True)
    assert (scatter.send_nbytes, scatter.receive_nbytes) == (800, 200)
    assert [scatter.receive_offset(rank) for rank in range(4)] == [0, 200, 400, 600]
    assert Work.of("all_gather", 800, "float32", 4).send_offset(3) == 0


def test_nbytes_stay_exact_beyond_32_bits() -> None:
    work = Work.of("all_reduce", 8 << 30, "float32", 2)
    assert work.moved == 8 << 30
    index = np.array([(1 << 31) + 5, (1 << 33) + 5, 5], dtype=np.uint64)
    assert len(set(values.element(index, 0, 0, 1000).tolist())) > 1


@pytest.mark.parametrize(("number", "text"), [(22809, "2.28.9"), (22304, "2.23.4"), (2708, "2.7.8"), (21801, "2.18.1")])
def test_version_numbers(number: int, text: str) -> None:
    assert version_text(number) == text


# --- the GPU's twin


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return build(tmp_path_factory.mktemp("kernels"), "collective", DRIVER, before=BEFORE)


def on_gpu(library: ctypes.CDLL, work: Work, rank: int, raw: Any, seed: int) -> list[int]:
    found = (ctypes.c_uint64 * 3)(0, 2**64 - 1, 0)
    rule, part, offset, mine = check_rule(work, rank)
    u, q = ctypes.c_uint32, ctypes.c_uint64
    getattr(library, f"run_check_{work.dtype}")(
        ctypes.c_void_p(raw.ctypes.data), q(raw.nbytes // work.item), rule, u(work.ranks), q(part), q(offset), u(mine),
        u(seed), u(values.levels(work)), found,
    )  # fmt: skip
    return list(found)


def encoded(numbers: np.ndarray, dtype: str) -> np.ndarray:
    """Return the bytes of whole numbers in a type, by a table that ``decode`` makes: independent of the kernel."""
    item = {"float32": 4, "float16": 2, "bfloat16": 2, "float8": 1}[dtype]
    if dtype == "float32":
        return np.frombuffer(numbers.astype(np.float32).tobytes(), np.uint8)
    codes = range(256 if item == 1 else 65536)
    table = {values.decode(code.to_bytes(item, "little"), dtype): code for code in reversed(codes)}
    return np.frombuffer(b"".join(table[float(n)].to_bytes(item, "little") for n in numbers), np.uint8)


@pytest.mark.parametrize("dtype", values.EXACT)
@pytest.mark.parametrize("op", OPS)
def test_the_kernels_agree_with_the_host(library: ctypes.CDLL, op: str, dtype: str) -> None:
    work = Work.of(op, 4 * 96, dtype, 4)
    for rank in range(4):
        made = np.zeros(work.send_nbytes, np.uint8)
        u, q = ctypes.c_uint32, ctypes.c_uint64
        getattr(library, f"run_fill_{dtype}")(
            ctypes.c_void_p(made.ctypes.data), q(work.send_nbytes // work.item), u(rank), u(9), u(values.levels(work))
        )
        assert np.array_equal(made, encoded(values.sent(work, rank, 9), dtype))
        result = encoded(values.due(work, rank, 9), dtype).copy()
        items = work.receive_nbytes // work.item
        assert on_gpu(library, work, rank, result, 9) == [0, 2**64 - 1, items]
        result[work.item * 7] ^= 1
        assert on_gpu(library, work, rank, result, 9) == [1, 7, items]


def test_seeds_and_ranks_give_different_data() -> None:
    work = Work.of("all_reduce", 4096, "float32", 8)
    made = {(rank, seed): values.sent(work, rank, seed) for rank, seed in itertools.product(range(8), range(4))}
    for one, other in itertools.combinations(made, 2):
        assert np.mean(made[one] == made[other]) < 0.05


def test_fault_planted_in_the_fill_is_found(tmp_path: Path) -> None:
    skips = ("i < items; i += step) {\n        put", "i + 32 < items; i += step) {\n        put")
    tail = build(tmp_path, "collective", DRIVER, replace=skips, before=BEFORE)
    work = Work.of("all_reduce", 4 * 96, "float32", 4)
    made = np.full(work.nbytes, 0xFF, np.uint8)
    u, q = ctypes.c_uint32, ctypes.c_uint64
    tail.run_fill_float32(ctypes.c_void_p(made.ctypes.data), q(96), u(0), u(0), u(values.levels(work)))
    assert not np.array_equal(made, encoded(values.sent(work, 0, 0), "float32"))
