"""The bus factor: nccl-tests' definition, the same wherever a bus bandwidth is formed."""

import pytest
from iobench import busbytes
from iobench.collectives.ops import OPS
from iobench.importers.collective import moved_of
from iobench.units import MIB


@pytest.mark.parametrize(("op", "ranks", "expected"), [
    ("all_reduce", 8, 1.75), ("all_reduce", 2, 1.0), ("all_gather", 8, 0.875), ("reduce_scatter", 4, 0.75),
    ("all_to_all", 16, 0.9375), ("broadcast", 8, 1.0), ("reduce", 8, 1.0), ("sendrecv", 2, 1.0), ("whatever", 8, 1.0),
])  # fmt: skip
def test_the_factor_is_that_of_nccl_tests(op, ranks, expected):
    assert busbytes.factor(op, ranks) == expected


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_measured_and_imported_operations_move_the_same_bytes(op):
    for ranks in (2, 3, 8, 72):
        assert op.moved(64 * MIB, ranks) == moved_of(op.name, 64 * MIB, ranks)[0]
    named = {"2(n-1)/n": 2, "(n-1)/n": 1, "1": 0}
    assert named[op.bus] == busbytes.ROUNDS[op.name]
