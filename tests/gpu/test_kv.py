"""KV-cache reads on a GPU: every layout and format proven, a planted fault found."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from iobench import gpu
from iobench import probe as probes
from iobench.errors import WrongData
from iobench.kernels import gpu as kernels
from iobench.timing.sampler import Sampler

pytestmark = pytest.mark.gpu
KV = probes.load("kv")


@pytest.fixture
def sampler() -> Iterator[Sampler]:
    made = Sampler(budget=0.05)
    yield made
    made.close()


def point(**more: Any) -> dict[str, Any]:
    usual = {
        "gpu": 0, "model": "llama-3-8b", "batch": 1, "tokens": 1000, "layout": "paged", "dtype": "fp16", "block": 16,
        "walk": "head", "mode": "graph",
    }  # fmt: skip
    return {**usual, **more}


@pytest.mark.parametrize("dtype", ["fp16", "int8", "fp8"])
@pytest.mark.parametrize(("layout", "block"), [("contiguous", 16), ("paged", 8), ("paged", 16), ("paged", 64)])
@pytest.mark.parametrize("walk", ["head", "token"])
def test_every_layout_is_proven(sampler: Sampler, layout: str, block: int, dtype: str, walk: str) -> None:
    samples = KV.measure(point(layout=layout, block=block, dtype=dtype, walk=walk, batch=3), sampler)
    assert samples.verified
    assert samples.evidence["steps_verified"] >= samples.timed.ops * len(samples.timed.seconds[0])


def test_events_and_one_token(sampler: Sampler) -> None:
    assert KV.measure(point(mode="events", tokens=1), sampler).verified


def test_a_kernel_that_skips_its_tail_is_found(monkeypatch: pytest.MonkeyPatch, sampler: Sampler) -> None:
    text = kernels.source("kv").read_text(encoding="utf-8")
    fault = ("first < end; first += together * U", "first + together * U <= end; first += together * U")
    assert fault[0] in text
    module = gpu.require().RawModule(code=text.replace(*fault), options=("-std=c++17",), backend="nvrtc")
    true = kernels.function
    monkeypatch.setattr(
        kernels, "function", lambda file, name: module.get_function(name) if file == "kv" else true(file, name)
    )
    with pytest.raises(WrongData):
        KV.measure(point(), sampler)
