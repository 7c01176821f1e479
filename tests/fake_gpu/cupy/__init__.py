"""As much of cupy as collectives use: the runtime, streams, graphs, and the kernels of collective.cu in numpy."""

from pathlib import Path
from typing import Any

import numpy as np
from iobench.collectives import values
from iobench.collectives.ops import DTYPES

from cupy import cuda
from cupy.cuda.memory import looking

__all__ = ["RawModule", "cuda"]
KINDS = {"float32": np.uint32, "float16": np.uint16, "bfloat16": np.uint16, "float8": np.uint8}
SOURCE = Path(values.__file__).parents[1] / "kernels/gpu/collective.cu"


class RawModule:
    def __init__(self, *, code: str, options: tuple[str, ...], backend: str) -> None:
        assert code == SOURCE.read_text(encoding="utf-8"), "the fake knows collective.cu only"
        assert options == ("-std=c++17",)
        assert backend == "nvrtc"

    def get_function(self, name: str) -> Any:
        what, _, dtype = name.partition("_")
        return {"fill": Fill, "check": Check}[what](dtype)


class Kernel:
    def __init__(self, dtype: str) -> None:
        self.dtype, self.codes = dtype, codes(dtype)

    def __call__(self, grid: tuple[int], block: tuple[int], arguments: tuple[Any, ...]) -> None:
        assert all(isinstance(argument, np.generic) for argument in arguments), "the width of an argument is unknown"
        assert isinstance(grid, tuple)
        assert isinstance(block, tuple)
        self.run(*map(int, arguments))

    def run(self, *arguments: int) -> None:
        raise NotImplementedError


class Fill(Kernel):
    def run(self, address: int, items: int, rank: int, seed: int, levels: int) -> None:
        numbers = values.element(np.arange(items, dtype=np.uint64), rank, seed, levels)
        looking(address, items * DTYPES[self.dtype]).view(KINDS[self.dtype])[:] = self.codes[numbers]


class Check(Kernel):
    def run(
        self, address: int, items: int, rule: int, ranks: int, part: int, offset: int, mine: int, seed: int,
        levels: int, found: int,
    ) -> None:  # fmt: skip
        index = np.arange(items, dtype=np.uint64)
        if rule == 0:
            shifted = index + np.uint64(offset)
            right = sum((values.element(shifted, rank, seed, levels) for rank in range(ranks)), np.uint32(0))
        elif rule == 1:
            inside, source = index % np.uint64(part) + np.uint64(offset), index // np.uint64(part)
            right = np.zeros(items, np.uint32)
            for rank in range(ranks):
                right[source == rank] = values.element(inside[source == rank], rank, seed, levels)
        else:
            right = values.element(index, mine, seed, levels)
        raw = looking(address, items * DTYPES[self.dtype]).view(KINDS[self.dtype])
        wrong = np.flatnonzero(raw != self.codes[right])
        counts = looking(found, 24).view(np.uint64)
        counts[0] += len(wrong)
        counts[1] = min(int(counts[1]), *map(int, wrong[:1])) if len(wrong) else counts[1]
        counts[2] += items


def codes(dtype: str) -> "np.ndarray[Any, Any]":
    """Return the bits of 0, 1, 2 ... in a type."""
    numbers = np.arange(values.EXACT[dtype] + 1 if dtype != "float32" else 1 << 16)
    if dtype == "float32":
        return numbers.astype(np.float32).view(np.uint32)
    if dtype == "float16":
        return numbers.astype(np.float16).view(np.uint16)
    if dtype == "bfloat16":
        return (numbers.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    table = {values.decode(bytes([code]), dtype): code for code in range(128)}
    return np.array([table[float(number)] for number in numbers], np.uint8)
