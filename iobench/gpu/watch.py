"""Watches GPUs while they work: link state of every hop, clocks, power, throttling, replays, other processes."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from iobench.gpu import links, nvml
from iobench.gpu.others import Other, others
from iobench.topology.sysfs import Tree

if TYPE_CHECKING:
    from iobench.gpu.device import Device
    from iobench.topology.pci import End

HERTZ = 20.0
_BEFORE_SECONDS = 1.0  # NVML averages a process's use over up to a second: a short block alone may hold no value
# NVML's reasons for a lower clock (nvmlClocksEventReason*); an idle GPU's (0x1) is no fault
_REASONS = {
    0x2: "application clocks setting", 0x4: "software power cap", 0x8: "hardware slowdown", 0x10: "sync boost",
    0x20: "software thermal slowdown", 0x40: "hardware thermal slowdown", 0x80: "hardware power brake",
    0x100: "display clocks setting",
}  # fmt: skip
_FAULTS = 0x8 | 0x20 | 0x40 | 0x80


@dataclass
class Seen:
    """All that was read of one GPU."""

    name: str
    hops: list[links.Hop]
    states: dict[str, Counter[End]] = field(default_factory=dict)
    readings: list[nvml.Reading] = field(default_factory=list)
    samples: int = 0
    replays: int | None = None
    processes: list[Other] = field(default_factory=list)

    def take(self, tree: Tree, gpu: nvml.Gpu | None) -> None:
        """Read everything once. Where sysfs does not show the state of the GPU's own link, NVML's word counts."""
        self.samples += 1
        states = {hop.name: links.now(tree, hop) for hop in self.hops}
        if gpu is not None:
            reading = gpu.read()
            self.readings.append(reading)
            own = self.hops[-1].name if self.hops else self.name
            if links.bytes_per_s(states.get(own, reading.link)) is None or own not in states:
                states[own] = reading.link
        for name, state in states.items():
            self.states.setdefault(name, Counter())[state] += 1

    def best(self, hop: str) -> End | None:
        """Return the fastest state that a hop was seen in: what it could do once the load had woken it."""
        known = [state for state in self.states.get(hop, ()) if links.bytes_per_s(state) is not None]
        return max(known, key=lambda state: links.bytes_per_s(state) or 0.0, default=None)

    def narrowest(self) -> float | None:
        """Return the rate of the slowest hop, each at its best state seen."""
        rates = [links.bytes_per_s(state) for hop in self.states if (state := self.best(hop)) is not None]
        return min((rate for rate in rates if rate is not None), default=None)


class Watch:
    """What was seen. Read it after the block has ended."""

    def __init__(self, devices: Sequence[Device], tree: Tree, hertz: float) -> None:
        self._tree, self._pause = tree, 1 / hertz
        self._gpus = [nvml.at(device.pci) for device in devices] if tree.live else [None for _ in devices]
        self.seen = {device.index: _seen(device, tree, gpu) for device, gpu in zip(devices, self._gpus, strict=True)}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpu-watch", daemon=True)
        self._began = self._elapsed = 0.0

    def evidence(self) -> dict[str, Any]:
        """Return plain data: per GPU link histogram of each hop, clocks, power, temperature, throttling, replays."""
        return {seen.name: _evidence(seen, self._elapsed) for seen in self.seen.values()}

    def link_bytes_per_s(self, device: Device) -> float | None:
        """Return what the narrowest hop to ``device`` could move at its best state seen: for Leg.bytes_per_s of
        legs between host and GPU. None where nothing was seen."""
        return self.seen[device.index].narrowest()

    @property
    def limit_notes(self) -> list[str]:
        """One sentence per hop that stayed below its maximum under load: for Samples.notes."""
        return [note for seen in self.seen.values() for note in _limit_notes(seen)]

    @property
    def suspect(self) -> str:
        """The reason for Samples.suspect: another process busy on a GPU, throttling by heat or power brake; else ""."""
        found = []
        for seen in self.seen.values():
            busy = [str(other) for other in seen.processes if other.busy]
            if busy:
                found.append(f"{seen.name} was busy with another process: {', '.join(busy)}")
            reasons = _reason_words(reading.reasons & _FAULTS for reading in seen.readings if reading.reasons)
            if reasons:
                found.append(f"{seen.name} was slowed: {', '.join(reasons)}")
        return "; ".join(found)

    def __enter__(self) -> Watch:
        self._began = time.time()
        self._before = [gpu.replays() if gpu else None for gpu in self._gpus]
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._elapsed = time.time() - self._began
        since = int((self._began - _BEFORE_SECONDS) * 1e6)
        for seen, gpu, before in zip(self.seen.values(), self._gpus, self._before, strict=True):
            if gpu is None:
                continue
            after = gpu.replays()
            seen.replays = after - before if after is not None and before is not None else None
            seen.processes = others(gpu.processes(since))

    def _run(self) -> None:
        """Sample until told to stop, and once more then."""
        stopped = False
        while True:
            for seen, gpu in zip(self.seen.values(), self._gpus, strict=True):
                seen.take(self._tree, gpu)
            if stopped:
                return
            stopped = self._stop.wait(self._pause)


@contextlib.contextmanager
def watch(devices: Sequence[Device], *, root: str = "/", hertz: float = HERTZ) -> Iterator[Watch]:
    """Sample ``devices`` in a background thread, 20 times per second and at both ends.

    Enter it once buffers are ready and hold only the timed work in it: what is seen is to be the state under load.
    """
    with Watch(devices, Tree(root), hertz) as seen:
        yield seen


def _seen(device: Device, tree: Tree, gpu: nvml.Gpu | None) -> Seen:
    """Start with the hops that sysfs shows; where it shows no link of the GPU's own, NVML says what it can do."""
    name = device.node or f"cuda:{device.index}"
    hops = [hop for hop in links.hops(tree, device.pci) if links.bytes_per_s(hop.most) is not None]
    if gpu is not None and (not hops or hops[-1].name != device.pci):
        most = gpu.most()
        if links.bytes_per_s(most) is not None:
            hops.append(links.Hop(device.pci, most))
    return Seen(name, hops)


def _evidence(seen: Seen, elapsed: float) -> dict[str, Any]:
    most = {hop.name: links.words(hop.most) for hop in seen.hops}
    readings = seen.readings
    found: dict[str, Any] = {
        "samples": seen.samples,
        "hertz": round(seen.samples / elapsed, 1) if elapsed > 0 else None,
        "links": [
            {"hop": hop, "most": most.get(hop), "seen": {links.words(state): count for state, count in states.items()}}
            for hop, states in seen.states.items()
        ],
        "link_bytes_per_s": seen.narrowest(),
        "sm_hz": _spread(reading.sm_hz for reading in readings),
        "memory_hz": _spread(reading.memory_hz for reading in readings),
        "watts": _spread(reading.watts for reading in readings),
        "celsius": _spread(reading.celsius for reading in readings),
        "throttle": _histogram(readings),
        "replays": seen.replays,
        "processes": [f"{other}{', busy' if other.busy else ''}" for other in seen.processes],
    }
    return {name: value for name, value in found.items() if value is not None}


def _limit_notes(seen: Seen) -> list[str]:
    notes = []
    for hop in seen.hops:
        best, most = seen.best(hop.name), links.bytes_per_s(hop.most)
        if best is not None and most is not None and (links.bytes_per_s(best) or most) < most:
            notes.append(
                f"link of {hop.name} (to {seen.name}) ran at {links.words(best)} under load, its maximum is "
                f"{links.words(hop.most)}"
            )
    return notes


def _spread(values: Iterable[float | int | None]) -> list[float | int] | None:
    """Return least, median and most; None where nothing was read."""
    known = sorted(value for value in values if value is not None)
    return [known[0], known[len(known) // 2], known[-1]] if known else None


def _histogram(readings: Iterable[nvml.Reading]) -> dict[str, int] | None:
    known = [reading.reasons for reading in readings if reading.reasons is not None]
    counts = Counter(word for mask in known for word in _reason_words([mask]))
    return dict(counts) if known else None


def _reason_words(masks: Iterable[int]) -> list[str]:
    together = 0
    for mask in masks:
        together |= mask
    return [word for bit, word in _REASONS.items() if together & bit]
