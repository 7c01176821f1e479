"""What a load's time was spent on, and which part bounds it: judged from the same run's own measurements. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

_BOUND = 0.9  # a part that alone takes this share of the load leaves no more than a tenth to be won elsewhere
_BUSY = 0.9
IN_TURN, NONE = "in turn", "none alone"


@dataclass(frozen=True)
class Stages:
    """Seconds of one load's parts; None where a part was not measured or there is none.

    ``open`` the files, ``register`` the slots (pinning; part of the load only with register=each), ``read`` and
    ``copy`` the same bytes alone, ``verify`` after the load, ``cpu`` of all threads together during it.
    """

    load: float
    open: float | None = None
    register: float | None = None
    read: float | None = None
    copy: float | None = None
    verify: float | None = None
    cpu: float | None = None

    def evidence(self) -> dict[str, Any]:
        """Return what was measured, without the load itself (the samples say it)."""
        return {name: value for name, value in asdict(self).items() if value is not None and name != "load"}


def bound(stages: Stages, source: str, path: str, cpus: int) -> str:
    """Return what bounds a load: ``source`` (drive, page cache), ``path`` (PCIe, memory), "CPU", IN_TURN or NONE.

    The larger of the parts that alone take nine tenths of the load; the CPU where as many as the load can use (threads
    or ``cpus``) were busy all the time, which outranks a part that they did. IN_TURN: both together take as long as the
    load, so they don't overlap. "" where nothing was measured.
    """
    if stages.load <= 0 or (stages.read is None and stages.copy is None):
        return ""
    if stages.cpu is not None and stages.cpu >= _BUSY * cpus * stages.load:
        return "CPU"
    parts = {source: stages.read or 0.0, path: stages.copy or 0.0}
    name = max(parts, key=parts.__getitem__)
    if parts[name] >= _BOUND * stages.load:
        return name
    return IN_TURN if sum(parts.values()) >= _BOUND * stages.load else NONE


def middle(values: list[float]) -> float | None:
    """Return the median, None of nothing."""
    return median(values) if values else None


def sentence(name: str, text: Mapping[str, str]) -> str:
    """Return the note on the bound in words; ``text`` shows the seconds of load, read and copy. "" without a bound."""
    if not name:
        return ""
    parts = ", ".join(f"{part} alone {text[part]}" for part in ("read", "copy") if part in text)
    start = {NONE: "no part bounds the load alone", IN_TURN: "reads and copies take turns"}.get(
        name, f"bound by {name}"
    )
    return f"{start}: it takes {text['load']}, {parts}"
