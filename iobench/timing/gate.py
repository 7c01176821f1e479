"""The gate: a kernel at the head of a stream that waits for the host, so that launch cost stays outside a timing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from iobench.timing.sampler import Sampler

TIMEOUT_SECONDS = 0.5
_WORDS, _LATE = 32, 16  # the two words lie in cache lines of their own


@dataclass
class Gate:
    """Counts tickets: a closed gate lets its stream go once the flag has reached its ticket.

    ``late`` counts the openings that came after the kernel had given up: what was timed then holds launch cost.
    """

    words: NDArray[np.uint32]
    ptr: int
    kernel: Any
    timeout: float = TIMEOUT_SECONDS
    ticket: int = 0
    late: int = 0
    passed: int = 0

    @contextlib.contextmanager
    def closed(self) -> Iterator[None]:
        """Block the current stream until the block of code ends, however it ends."""
        import numpy as np

        self.ticket += 1
        self.passed += 1
        flag, late = np.uint64(self.ptr), np.uint64(self.ptr + 4 * _LATE)
        self.kernel((1,), (1,), (flag, late, np.uint32(self.ticket), np.uint64(self.timeout * 1e9)))
        try:
            yield
        finally:
            self.words[0] = self.ticket

    def count_late(self) -> bool:
        """Tell whether the last gate gave up before it was opened; call it once its stream has gone on."""
        gave_up = int(self.words[_LATE]) == self.ticket
        self.late += gave_up
        return gave_up

    def reset(self) -> None:
        """Start counting anew."""
        self.late = self.passed = 0

    @property
    def notes(self) -> list[str]:
        if not self.late:
            return []
        return [
            f"the gate gave up after {self.timeout:g} s in {self.late} of {self.passed} samples (the launch queue was "
            "full or the host was late): launch cost is inside them"
        ]


def shared(sampler: Sampler, index: int) -> Gate:
    """Return the launch's one gate, whose flag lies in pinned memory that every device sees.

    It is made with device ``index`` current, so that no other GPU gets a context for it.
    """
    from cupy.cuda import Device

    with Device(index):
        gate: Gate = sampler.shared("cuda gate", _gate)
    gate.reset()
    return gate


@contextlib.contextmanager
def _gate() -> Iterator[Gate]:
    import numpy as np

    from iobench.gpu.memory import pinned
    from iobench.kernels.gpu import function

    with pinned(4 * _WORDS) as area:
        yield Gate(area.data.view(np.uint32), area.ptr, function("gate", "gate"))
