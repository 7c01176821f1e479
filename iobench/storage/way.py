"""How a checkpoint is loaded: the method's name taken apart."""

from __future__ import annotations

from dataclasses import dataclass

from iobench.storage.flight import PREADV

COLD, WARM, DIRECT = "cold", "warm", "direct"
DATA, METADATA = "data", "metadata"
ONCE, EACH, NEVER = "once", "each", "never"
OWN = ("buffered", "mmap", "direct")
LOADERS = ("safetensors", "fastsafetensors", "runai", "kvikio", "kvikio-compat")


@dataclass(frozen=True)
class Way:
    """One way to load: ``method`` is "direct" or how-state, as in "buffered-cold".

    ``depth`` slots per thread, of ``block`` bytes; they are registered ``once`` before the clock, in ``each`` load, or
    never. By another ``engine`` than preadv each thread has ``depth`` reads in flight. ``cold`` says whether metadata
    goes too, ``load`` which load after throwing the files out is timed.
    """

    method: str
    threads: int = 1
    block: int = 1 << 20
    depth: int = 2
    register: str = ONCE
    cold: str = DATA
    load: int = 1
    align: int = 0  # bytes that O_DIRECT reads are aligned to; 0: what the filesystem asks for
    engine: str = PREADV  # how O_DIRECT reads are submitted

    @property
    def how(self) -> str:
        """Return buffered, mmap, direct or a loader's name."""
        return self.method.removesuffix("-cold").removesuffix("-warm")

    @property
    def state(self) -> str:
        """Return cold, warm, or direct for O_DIRECT, to which the page cache's state is nothing."""
        return next((state for state in (COLD, WARM) if self.method.endswith(f"-{state}")), DIRECT)

    @property
    def evicts(self) -> bool:
        """Whether the files are thrown out of the page cache before the first load."""
        return self.state != WARM
