"""Waiting for another process that ends in time, in which a pause of the whole machine does not count."""

from __future__ import annotations

import time

_MOST_OF_A_LOOK = 1.0  # of the seconds between two looks counts: who looks more often and is late did not run


class Patience:
    """Seconds that are ``left`` to wait; look more often than once a second.

    Time in which this process was stopped does not count: whom it waits for was most likely stopped with it.
    """

    def __init__(self, seconds: float) -> None:
        self.left = seconds
        self._looked = time.monotonic()

    def look(self) -> float:
        """Count the time since the last look; return what is left."""
        now = time.monotonic()
        self.left, self._looked = self.left - min(now - self._looked, _MOST_OF_A_LOOK), now
        return self.left
