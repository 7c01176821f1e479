"""Writes a rank's input on its GPU and verifies every element of its result, by kernels/gpu/collective.cu."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from iobench.collectives import values
from iobench.collectives.ops import ROOT, Work
from iobench.errors import WrongData

if TYPE_CHECKING:
    from iobench.gpu import Device

_NOWHERE = 2**64 - 1


@dataclass(frozen=True)
class Data:
    """The data of one rank on one stream; ``seed`` tells slots apart."""

    device: Device
    stream: Any
    rank: int

    def fill(self, address: int, work: Work, seed: int) -> None:
        """Write the rank's input to device memory; not waited for."""
        import numpy as np

        items, levels = work.send_nbytes // work.item, values.levels(work)
        arguments = (np.uint64(address), np.uint64(items), np.uint32(self.rank), np.uint32(seed), np.uint32(levels))
        self._launch(f"fill_{work.dtype}", arguments)

    def check(self, addresses: Sequence[int], work: Work) -> None:
        """Compare every element of the results of seeds 0, 1, ...; WrongData names the count and the first."""
        import numpy as np
        from cupy.cuda import runtime as api

        found = np.tile(np.array([0, _NOWHERE, 0], dtype=np.uint64), (len(addresses), 1))
        area = int(api.malloc(found.nbytes))
        try:
            api.memcpy(area, found.ctypes.data, found.nbytes, api.memcpyDefault)
            for seed, address in enumerate(addresses):
                counts = np.uint64(area + seed * found[0].nbytes)
                self._launch(f"check_{work.dtype}", (*self._arguments(address, work, seed), counts))
            self.stream.synchronize()
            api.memcpy(found.ctypes.data, area, found.nbytes, api.memcpyDefault)
        finally:
            api.free(area)
        for seed, address in enumerate(addresses):
            self._judge(address, work, seed, [int(number) for number in found[seed]])

    def _arguments(self, address: int, work: Work, seed: int) -> tuple[Any, ...]:
        import numpy as np

        rule, part, offset, mine = check_rule(work, self.rank)
        items, levels = work.receive_nbytes // work.item, values.levels(work)
        return (
            np.uint64(address), np.uint64(items), np.int32(rule), np.uint32(work.ranks), np.uint64(part),
            np.uint64(offset), np.uint32(mine), np.uint32(seed), np.uint32(levels),
        )  # fmt: skip

    def _judge(self, address: int, work: Work, seed: int, found: list[int]) -> None:
        wrong, first, looked = found
        items = work.receive_nbytes // work.item
        if looked != items:
            raise WrongData(f"{work.op.name}: the check looked at {looked} of {items} elements")
        if wrong:
            got = self._read(address + first * work.item, work)
            right = float(values.due_at(work, self.rank, seed, first))
            raise WrongData(values.verdict(work, self.rank, wrong, first, got, right))

    def _read(self, address: int, work: Work) -> float:
        import numpy as np
        from cupy.cuda import runtime as api

        raw = np.zeros(4, dtype=np.uint8)
        api.memcpy(raw.ctypes.data, address, work.item, api.memcpyDefault)
        return values.decode(raw.tobytes()[: work.item], work.dtype)

    def _launch(self, name: str, arguments: tuple[Any, ...]) -> None:
        from iobench.kernels import gpu as kernels

        with self.stream:
            kernels.function("collective", name)((8 * self.device.sm_count,), (256,), arguments)


def check_rule(work: Work, rank: int) -> tuple[int, int, int, int]:
    """Return the kernel's rule, part, offset and source rank for a rank's result (see kernels/gpu/collective.cu)."""
    items = work.receive_nbytes // work.item
    part = max(items // work.ranks, 1)
    name = work.op.name
    if work.op.reduces:
        return 0, part, rank * items if name == "reduce_scatter" else 0, 0
    if name in ("all_gather", "all_to_all"):
        return 1, part, rank * part if name == "all_to_all" else 0, 0
    return 2, part, 0, ROOT if name == "broadcast" else (rank - 1) % work.ranks
