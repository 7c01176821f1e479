"""The operations: bytes of each rank's buffers, bus bytes, and which element of the result comes from where.

``nbytes`` is S of the algorithm bandwidth (nccl-tests, doc/PERFORMANCE.md): a rank's buffer for all_reduce,
broadcast, reduce and sendrecv, all ranks' parts together for all_gather, reduce_scatter and all_to_all.
Bus bytes are what each of n ranks must send at least; over the time they give the bus bandwidth, which compares
between numbers of ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

from iobench import busbytes
from iobench.errors import UserError

DTYPES = {"float32": 4, "float16": 2, "bfloat16": 2, "float8": 1}
ROOT = 0


@dataclass(frozen=True)
class Op:
    """One collective operation.

    ``parts``: whether nbytes is split into one part per rank. ``bus`` names the factor: "2(n-1)/n", "(n-1)/n" or "1".
    ``reduces``: the result is a sum over ranks. ``inplace``: NCCL defines it in place.
    """

    name: str
    parts: bool
    bus: str
    reduces: bool
    inplace: bool

    def factor(self, ranks: int) -> float:
        """Return bus bytes over nbytes."""
        return busbytes.factor(self.name, ranks)

    def moved(self, nbytes: int, ranks: int) -> int:
        """Return the bus bytes of one operation."""
        return round(nbytes * self.factor(ranks))

    @property
    def moved_rule(self) -> str:
        """How ``moved`` follows from nbytes, in words."""
        return "bus bytes: nbytes" if self.bus == "1" else f"bus bytes: nbytes * {self.bus}, what each of n ranks sends"

    def send_nbytes(self, nbytes: int, ranks: int) -> int:
        """Return the bytes of a rank's input."""
        return nbytes // ranks if self.name == "all_gather" else nbytes

    def receive_nbytes(self, nbytes: int, ranks: int) -> int:
        """Return the bytes of a rank's result."""
        return nbytes // ranks if self.name == "reduce_scatter" else nbytes

    def has_result(self, rank: int) -> bool:
        """Tell whether this rank gets a result."""
        return self.name != "reduce" or rank == ROOT

    def whole(self, nbytes: int, ranks: int, dtype: str) -> bool:
        """Tell whether nbytes is whole elements for every rank."""
        unit = DTYPES[dtype] * (ranks if self.parts else 1)
        return nbytes > 0 and nbytes % unit == 0


OPS = {
    op.name: op
    for op in (
        Op("all_reduce", parts=False, bus="2(n-1)/n", reduces=True, inplace=True),
        Op("all_gather", parts=True, bus="(n-1)/n", reduces=False, inplace=True),
        Op("reduce_scatter", parts=True, bus="(n-1)/n", reduces=True, inplace=True),
        Op("broadcast", parts=False, bus="1", reduces=False, inplace=True),
        Op("reduce", parts=False, bus="1", reduces=True, inplace=True),
        Op("all_to_all", parts=True, bus="(n-1)/n", reduces=False, inplace=False),
        Op("sendrecv", parts=False, bus="1", reduces=False, inplace=False),
    )
}


@dataclass(frozen=True)
class Work:
    """One operation at one size: what every rank of a group must agree on."""

    op: Op
    nbytes: int
    dtype: str
    ranks: int
    inplace: bool = False

    @classmethod
    def of(cls, op: str, nbytes: int, dtype: str, ranks: int, inplace: bool = False) -> Work:
        """Return the work; UserError where the size is no whole number of elements, or it cannot be in place."""
        chosen = OPS[op]
        if not chosen.whole(nbytes, ranks, dtype):
            each = f"{ranks} parts of whole {dtype}s" if chosen.parts else f"whole {dtype}s"
            multiple = DTYPES[dtype] * (ranks if chosen.parts else 1)
            raise UserError(f"-a nbytes={nbytes} is no {each}: choose a multiple of {multiple}")
        if inplace and not chosen.inplace:
            raise UserError(f"{op} has no in-place form: leave -a inplace=yes out")
        return cls(chosen, nbytes, dtype, ranks, inplace)

    @property
    def item(self) -> int:
        return DTYPES[self.dtype]

    @property
    def send_nbytes(self) -> int:
        return self.op.send_nbytes(self.nbytes, self.ranks)

    @property
    def receive_nbytes(self) -> int:
        return self.op.receive_nbytes(self.nbytes, self.ranks)

    @property
    def slot_nbytes(self) -> int:
        """The bytes one buffer must have: the larger of input and result where they share it."""
        return max(self.send_nbytes, self.receive_nbytes)

    @property
    def moved(self) -> int:
        return self.op.moved(self.nbytes, self.ranks)

    def send_offset(self, rank: int) -> int:
        """Return where in an in-place buffer the input starts: a gather's own part."""
        return rank * self.send_nbytes if self.inplace and self.op.name == "all_gather" else 0

    def receive_offset(self, rank: int) -> int:
        """Return where in an in-place buffer the result starts: a scatter's own part."""
        return rank * self.receive_nbytes if self.inplace and self.op.name == "reduce_scatter" else 0
