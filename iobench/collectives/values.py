"""What each rank puts in, and what must come out: whole numbers that the type holds exactly, even summed.

Element i of rank r's input is a hash of (i, r, seed) modulo a small number, chosen so that the sum over all ranks
stays exact in the type: any order of summation gives the same bits. A lost or repeated chunk, a wrong rank, a wrong
number of ranks or a rounding type shows in the result. The twin on the GPU is kernels/gpu/collective.cu.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from iobench.collectives.ops import ROOT, Work
from iobench.errors import Unavailable, WrongData

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# the largest n such that 0..n are all exact: 2^(significant bits). float8 is E4M3.
EXACT = {"float32": 1 << 24, "float16": 1 << 11, "bfloat16": 1 << 8, "float8": 1 << 4}
_LEAST_LEVELS = 2
_M1, _M2, _GOLDEN = 0x7FEB352D, 0x846CA68B, 0x9E3779B9


def levels(work: Work) -> int:
    """Return how many values an element takes (0 ... levels-1); Unavailable where they could not be told apart."""
    terms = work.ranks if work.op.reduces else 1
    count = min(EXACT[work.dtype] // terms, EXACT["bfloat16"] * 4) + 1
    if count < _LEAST_LEVELS:
        raise Unavailable(
            f"{work.dtype} holds no sum of {work.ranks} ranks exactly, so a result can't be verified: choose a wider "
            "dtype"
        )
    return count


def element(index: NDArray[np.uint64], rank: int, seed: int, count: int) -> NDArray[np.uint32]:
    """Return a rank's input at ``index``, uint32: a 32-bit integer hash (lowbias32, C. Wellons, 2018) modulo count."""
    import numpy as np

    mixed = (index ^ (index >> np.uint64(32))).astype(np.uint32)
    with np.errstate(over="ignore"):
        x = mixed * np.uint32(_GOLDEN) + np.uint32((rank * 0x85EBCA6B + seed * 0xC2B2AE35) & 0xFFFFFFFF)
        x ^= x >> np.uint32(16)
        x *= np.uint32(_M1)
        x ^= x >> np.uint32(15)
        x *= np.uint32(_M2)
        x ^= x >> np.uint32(16)
    return x % np.uint32(count)


def sent(work: Work, rank: int, seed: int) -> NDArray[np.float32]:
    """Return a rank's whole input as float32."""
    import numpy as np

    index = np.arange(work.send_nbytes // work.item, dtype=np.uint64)
    return element(index, rank, seed, levels(work)).astype(np.float32)


def due(work: Work, rank: int, seed: int) -> NDArray[np.float32]:
    """Return what a rank's result must be, as float32."""
    import numpy as np

    items = work.receive_nbytes // work.item
    index = np.arange(items, dtype=np.uint64)
    count, name = levels(work), work.op.name
    if work.op.reduces:
        place = index + np.uint64(rank * items if name == "reduce_scatter" else 0)
        total = np.zeros(items, dtype=np.uint32)
        for source in range(work.ranks):
            total += element(place, source, seed, count)
        return total.astype(np.float32)
    if name in ("all_gather", "all_to_all"):
        part = max(items // work.ranks, 1)
        found = np.empty(items, dtype=np.uint32)
        offset = rank * part if name == "all_to_all" else 0
        inside = np.arange(part, dtype=np.uint64) + np.uint64(offset)
        for source in range(work.ranks):
            found[source * part : (source + 1) * part] = element(inside, source, seed, count)
        return found.astype(np.float32)
    source = ROOT if name == "broadcast" else (rank - 1) % work.ranks
    return element(index, source, seed, count).astype(np.float32)


def due_at(work: Work, rank: int, seed: int, index: int) -> int:
    """Return one element of what a rank's result must be."""
    import numpy as np

    at, count, name = np.array([index], dtype=np.uint64), levels(work), work.op.name
    part = max(work.receive_nbytes // work.item // work.ranks, 1)
    if work.op.reduces:
        offset = rank * (work.receive_nbytes // work.item) if name == "reduce_scatter" else 0
        return sum(int(element(at + np.uint64(offset), source, seed, count)[0]) for source in range(work.ranks))
    if name in ("all_gather", "all_to_all"):
        inside = np.array([index % part + (rank * part if name == "all_to_all" else 0)], dtype=np.uint64)
        return int(element(inside, index // part, seed, count)[0])
    source = ROOT if name == "broadcast" else (rank - 1) % work.ranks
    return int(element(at, source, seed, count)[0])


def decode(raw: bytes, dtype: str) -> float:
    """Return the value of one element's bytes (little-endian)."""
    import numpy as np

    if dtype == "float32":
        return float(np.frombuffer(raw, np.float32)[0])
    if dtype == "float16":
        return float(np.frombuffer(raw, np.float16)[0])
    if dtype == "bfloat16":
        return float(np.frombuffer(b"\0\0" + raw, np.float32)[0])
    bits = raw[0]  # E4M3: sign, 4 bits of exponent biased by 7, 3 of mantissa; no infinity, S.1111.111 is NaN
    if bits & 0x7F == 0x7F:
        return float("nan")
    exponent, mantissa = bits >> 3 & 0xF, bits & 7
    magnitude = (mantissa / 8 if not exponent else 1 + mantissa / 8) * 2.0 ** (max(exponent, 1) - 7)
    return -magnitude if bits & 0x80 else magnitude


def compare(found: NDArray[np.float32], work: Work, rank: int, seed: int) -> None:
    """Compare a whole result, as float32, with what it must be; WrongData names the first element that differs."""
    import numpy as np

    right = due(work, rank, seed)
    if found.shape != right.shape:
        raise WrongData(f"{work.op.name}: rank {rank} got {found.size} elements, not {right.size}")
    wrong = np.flatnonzero(~(found == right))
    if len(wrong):
        first = int(wrong[0])
        raise WrongData(verdict(work, rank, len(wrong), first, float(found[first]), float(right[first])))


def verdict(work: Work, rank: int, wrong: int, first: int, got: float, right: float) -> str:
    """Return the sentence on a wrong result."""
    items = work.receive_nbytes // work.item
    return (
        f"{work.op.name}: {wrong} of {items} elements of rank {rank}'s result are wrong, the first is element {first}: "
        f"{got:g}, not {right:g}"
    )
