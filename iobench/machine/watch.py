"""Watches the machine while a point runs: who else used it, what was stolen, throttled and clocked.

The parent calls ``begin``, ``sample`` a few times a second, ``end``. Nothing here runs in the process
that measures.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from iobench.machine import counters, cpu, memory, processes, read
from iobench.machine.system import tick_seconds

_FRESH_SECONDS = 0.01
_MOST_FREQUENCY_CPUS = 8  # reading a frequency may interrupt that CPU
_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal")


class Watch:
    """Brackets one point: ``session`` is the session id of the measuring processes, ``cpus`` what they may use."""

    def __init__(self, session: int, cpus: set[int], root: str | Path = "/") -> None:
        self.session, self.cpus, self.root = session, set(cpus), Path(root)
        self._tick = tick_seconds()
        self._pid = os.getpid()
        self._cpufreq = cpu.has_cpufreq(self.root)
        self._sensors = _sensors(self.root)
        self._turn = 0
        self._before: dict[str, Any] = {}
        self._counters = counters.Counters(0.0)
        self._scan = processes.Scan()
        self._last = (self._before, self._counters, self._scan)
        self._ended = float("-inf")
        self._reset()

    def begin(self) -> None:
        """Take the readings before the point; those of an ``end`` right before are used again."""
        self._reset()
        if time.perf_counter() - self._ended <= _FRESH_SECONDS:
            self._before, self._counters, self._scan = self._last
            return
        self._before = self._moment()
        self._counters = counters.take(self.root)
        self._scan = self._processes()

    def sample(self) -> None:
        """Note what only shows while the point runs: running tasks and frequencies (some 0.1 ms)."""
        if (running := _load(self.root).get("running")) is not None:
            self._running.append(int(running))
        if self._cpufreq:
            self._hertz += cpu.frequencies(self.root, self._some_cpus())

    def end(self) -> dict[str, dict[str, Any]]:
        """Return {"before", "during", "after"}: plain data; an unknown figure has no key."""
        after, scan = counters.take(self.root), self._processes()
        self.sample()
        during = {**self._changes(after), **self._shares(after, scan), **self._sampled()}
        state = {"before": self._before, "during": during, "after": self._moment()}
        self._last, self._ended = (state["after"], after, scan), time.perf_counter()
        return state

    def _reset(self) -> None:
        self._running: list[int] = []
        self._hertz: list[float] = []

    def _processes(self) -> processes.Scan:
        return processes.scan(self.root, self.session, self._tick, self._pid)

    def _moment(self) -> dict[str, Any]:
        return read.known(
            **_load(self.root),
            memory_available_nbytes=memory.available(self.root),
            frequency_hz=_spread(cpu.frequencies(self.root, self._some_cpus())),
            temperature_celsius=_temperature(self._sensors),
        )

    def _some_cpus(self) -> list[int]:
        """A few of the CPUs, others in each turn."""
        ordered = sorted(self.cpus)
        start = self._turn % max(len(ordered), 1)
        self._turn += _MOST_FREQUENCY_CPUS
        return (ordered[start:] + ordered[:start])[:_MOST_FREQUENCY_CPUS]

    def _shares(self, after: counters.Counters, scan: processes.Scan) -> dict[str, Any]:
        """Who used how many CPUs on average; nothing where the kernel's figures can't tell."""
        ours = counters.use(self._counters, after, self.cpus, self._tick)
        if ours is None:
            return {}
        kernel = max(scan.kernel_seconds - self._scan.kernel_seconds, 0.0)
        shares: dict[str, Any] = {
            "steal_fraction": ours.steal / (ours.seconds * ours.count),
            "busy_cpus": ours.busy / ours.seconds,
            "interrupt_cpus": ours.interrupts / ours.seconds,
            "kernel_thread_cpus": kernel / ours.seconds,
        }
        if not processes.leader_gone(self._scan, scan, self.session):
            own = processes.own_seconds(self._scan, scan, self._pid)
            # Kernel threads mostly work for us (writeback, encryption): they are told apart, not blamed.
            shares["own_cpus"] = own / ours.seconds
            shares["others_cpus"] = max(ours.busy - own - kernel, 0.0) / ours.seconds
        elsewhere = counters.use(self._counters, after, set(after.cpus) - self.cpus, self._tick)
        if elsewhere:
            shares["elsewhere_cpus"] = elsewhere.busy / elsewhere.seconds
            shares["elsewhere_count"] = elsewhere.count
        return shares

    def _changes(self, after: counters.Counters) -> dict[str, Any]:
        before = self._counters
        switches = None
        if before.context_switches is not None and after.context_switches is not None:
            switches = after.context_switches - before.context_switches
        pressure = counters.change(before.pressure_us, after.pressure_us)
        return read.known(
            seconds=after.at - before.at,
            context_switches=switches,
            events=counters.change(before.vmstat, after.vmstat),
            pressure_seconds={name: value * 1e-6 for name, value in pressure.items()},
            throttled=counters.change(before.throttled, after.throttled),
        )

    def _sampled(self) -> dict[str, Any]:
        return read.known(running_most=max(self._running, default=None), frequency_hz=_spread(self._hertz))


def _load(root: Path) -> dict[str, float]:
    """Load average of the last minute and the tasks running now (this one included)."""
    words = (read.text(root / "proc/loadavg") or "").split()
    try:
        return {"load": float(words[0]), "running": int(words[3].partition("/")[0])}
    except (IndexError, ValueError):
        return {}


def _spread(values: list[float]) -> dict[str, float]:
    if not values:
        return {}
    ordered = sorted(values)
    return {"min": ordered[0], "median": ordered[len(ordered) // 2], "max": ordered[-1]}


def _sensors(root: Path) -> list[Path]:
    """The files with processor temperatures in thousandths of a degree."""
    zones = sorted((root / "sys/class/thermal").glob("thermal_zone*/temp"))
    chips = [
        file
        for folder in sorted((root / "sys/class/hwmon").glob("hwmon*"))
        if read.text(folder / "name") in _SENSORS
        for file in sorted(folder.glob("temp*_input"))
    ]
    return zones + chips


def _temperature(sensors: list[Path]) -> float | None:
    values = [value / 1000 for sensor in sensors if (value := read.number(sensor)) is not None]
    # Unconnected sensors read 0, -273 or absurd values.
    return max((value for value in values if 0 < value < 150), default=None)
