"""How often a sample repeats a pass, so that it lasts long enough to be timed."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

SAMPLE_SECONDS = 300e-6  # shorter passes are repeated: the threads start within about 1 us of each other
_MOST_REPEATS = 1 << 20
_PILOT = 3  # samples


class _Take(Protocol):
    def __call__(self, count: int) -> NDArray[np.float64]: ...


class Repeated:
    """Work that repeats its pass ``repeats`` times in a sample; ``take(count)`` returns samples in seconds."""

    repeats: int

    def fill_sample(self, take: _Take) -> None:
        """Choose ``repeats``: short passes are repeated until they fill SAMPLE_SECONDS."""
        while self.repeats < _MOST_REPEATS:
            seconds = float(np.min(take(_PILOT)))
            if seconds >= SAMPLE_SECONDS / 2:
                return
            self.repeats = min(int(self.repeats * max(2.0, SAMPLE_SECONDS / max(seconds, 1e-9))), _MOST_REPEATS)
