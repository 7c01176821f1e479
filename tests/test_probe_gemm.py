"""Matrix products: shapes, bytes, which points; no GPU needed."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from iobench import probe as probes
from iobench import topology
from iobench.errors import Unavailable
from iobench.paths import data_dir
from iobench.topology.graph import Topology

GEMM = probes.load("gemm")
MODULE = sys.modules["iobench_probe_gemm"]
H200 = topology.load(data_dir("topologies") / "1x-h200.json")


def points(graph: Topology, *assignments: str) -> list[dict[str, Any]]:
    return list(GEMM.points(graph, probes.narrow(GEMM, assignments)))


@pytest.mark.parametrize(
    ("model", "weights"),
    # weights of one layer without its norms, from the models' published shapes
    [("llama-3-8b", 4096 * (6144 + 4096 + 3 * 14336)), ("llama-3-70b", 8192 * (10240 + 8192 + 3 * 28672))],
)
def test_the_products_are_a_layers_weights(model: str, weights: int) -> None:
    shapes = [MODULE.shape_of(model, product, 7) for product in GEMM.axes["product"].values]
    assert sum(shape.depth * shape.columns for shape in shapes) == weights
    assert {shape.rows for shape in shapes} == {7}
    assert sum(shape.flops for shape in shapes) == 2 * 7 * weights


def test_bytes_of_a_product() -> None:
    shape = MODULE.Shape(rows=3, depth=5, columns=7)
    assert shape.flops == 210
    assert shape.moved(2) == (15 + 35) * 2 + 21 * 2
    assert shape.moved(1) == (15 + 35) + 21 * 2


def test_default_points() -> None:
    found = points(H200)
    assert len(found) == 2 * 4 * 3 * 4
    assert {point["gpu"] for point in found} == {0}
    with pytest.raises(Unavailable, match="NVIDIA GPU"):
        points(Topology("empty"))


class Operands:
    """Enough of a device for Products on torch's CPU tensors."""

    index, l2_nbytes = 0, 1000


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Products of small matrices whose tensors lie in host memory."""
    torch = pytest.importorskip("torch")
    work = object.__new__(MODULE.Products)
    work.torch, work.shape, work.dtype, work.device, work.slots = torch, MODULE.Shape(20, 32, 16), "bf16", Operands(), 3
    generator = torch.Generator().manual_seed(1)
    work.left = torch.randn(20, 32, generator=generator).bfloat16()
    work.right = [torch.randn(16, 32, generator=generator).bfloat16().t() for _ in range(3)]
    work.results = [torch.full((20, 16), float("nan"), dtype=torch.bfloat16) for _ in range(3)]
    work._multiply = work._plain
    return work


def test_right_products_pass(products: Any) -> None:
    assert 0 < products.check() < 8e-3


def test_what_the_timed_products_left_is_verified(products: Any) -> None:
    products.check()
    products.results[1][0, 0] += 100
    with pytest.raises(MODULE.WrongData, match="differs from float32"):
        products.check()


def test_rows_to_verify_hold_the_ends(products: Any) -> None:
    assert products._rows()[0] == 0
    assert products._rows()[-1] == 19
    assert len(products._rows()) == 8
    products.shape = MODULE.Shape(1, 32, 16)
    assert products._rows() == [0]


def test_an_unwritten_or_wrong_result_is_found(products: Any) -> None:
    products._multiply = lambda right, result: result[:-1].copy_(products.left[:-1] @ right)
    with pytest.raises(MODULE.WrongData, match="NaN"):
        products.check()
    for result in products.results:
        result.fill_(float("nan"))
    products._multiply = lambda right, result: result.copy_((products.left @ right) * 1.02)
    with pytest.raises(MODULE.WrongData, match="differs from float32"):
        products.check()
