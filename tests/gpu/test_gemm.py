"""Matrix products on a GPU: every format proven, a wrong result found."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from iobench import probe as probes
from iobench.errors import Unavailable, WrongData
from iobench.timing.sampler import Sampler

pytestmark = pytest.mark.gpu
GEMM = probes.load("gemm")


@pytest.fixture
def sampler() -> Iterator[Sampler]:
    made = Sampler(budget=0.05)
    yield made
    made.close()


def point(**more: Any) -> dict[str, Any]:
    usual = {
        "gpu": 0, "model": "llama-3-8b", "product": "out", "dtype": "fp16", "tokens": 32, "mode": "events"
    }  # fmt: skip
    return {**usual, **more}


def measure(where: dict[str, Any], sampler: Sampler) -> probes.Samples:
    try:
        return GEMM.measure(where, sampler)
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp8"])
@pytest.mark.parametrize("tokens", [1, 32, 4096])
@pytest.mark.parametrize("mode", ["events", "graph"])
def test_every_format_is_proven(sampler: Sampler, dtype: str, tokens: int, mode: str) -> None:
    samples = measure(point(dtype=dtype, tokens=tokens, mode=mode), sampler)
    assert samples.verified
    assert samples.evidence["flops"] == 2 * tokens * 4096 * 4096
    assert 0 < samples.evidence["relative_error"] < 0.02


def test_a_wrong_product_is_found(monkeypatch: pytest.MonkeyPatch, sampler: Sampler) -> None:
    import sys

    module = sys.modules["iobench_probe_gemm"]
    true = module.Products._plain

    def off(self: Any, right: Any, result: Any) -> None:
        true(self, right, result)
        result[0, 0] += 1000

    monkeypatch.setattr(module.Products, "_plain", off)
    with pytest.raises(WrongData):
        measure(point(), sampler)
