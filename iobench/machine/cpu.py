"""Facts about the processors: model, allowed CPUs, frequency policy, SMT, mitigations, clock source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from iobench.machine import read

_CPUS = "sys/devices/system/cpu"


def facts(root: Path) -> dict[str, Any]:
    """Return what is known of the processors and of the CPUs that this process may use."""
    info = cpuinfo(root)
    return read.known(
        model_name=info.get("model name") or info.get("cpu"),
        vendor=info.get("vendor_id") or info.get("CPU implementer"),
        family=read.integer(info.get("cpu family")),
        model=read.integer(info.get("model")),
        stepping=read.integer(info.get("stepping")),
        microcode=info.get("microcode"),
        online=read.number_list(read.text(root / _CPUS / "online")),
        allowed=allowed(root, "Cpus_allowed_list"),
        smt=_smt(root),
        frequency=_frequency_policy(root),
        mitigations=_mitigations(root),
        clocksource=read.text(root / "sys/devices/system/clocksource/clocksource0/current_clocksource"),
    )


def cpuinfo(root: Path) -> dict[str, str]:
    """Return the first value of each key of /proc/cpuinfo."""
    found: dict[str, str] = {}
    for line in read.lines(root / "proc/cpuinfo"):
        name, _, value = line.partition(":")
        if value.strip():
            found.setdefault(name.strip(), value.strip())
    return found


def allowed(root: Path, field: str) -> list[int] | None:
    """Return a list field of /proc/self/status: Cpus_allowed_list or Mems_allowed_list."""
    for line in read.lines(root / "proc/self/status"):
        name, _, value = line.partition(":")
        if name == field:
            return read.number_list(value)
    return None


def frequencies(root: Path, cpus: list[int]) -> list[float]:
    """Return the current frequency in Hz of each of ``cpus`` that cpufreq or /proc/cpuinfo tells."""
    found = [read.number(root / f"{_CPUS}/cpu{cpu}/cpufreq/scaling_cur_freq") for cpu in cpus]
    return [khz * 1e3 for khz in found if khz] or _cpuinfo_frequencies(root, set(cpus))


def has_cpufreq(root: Path) -> bool:
    return any((root / _CPUS).glob("cpu*/cpufreq/scaling_cur_freq"))


def _cpuinfo_frequencies(root: Path, cpus: set[int]) -> list[float]:
    found, cpu = [], -1
    for line in read.lines(root / "proc/cpuinfo"):
        name, _, value = line.partition(":")
        if name.strip() == "processor":
            cpu = read.integer(value.strip()) or 0
        elif name.strip() == "cpu MHz" and cpu in cpus:
            found.append(_hertz(value))
    return [value for value in found if value > 0]


def _hertz(megahertz: str) -> float:
    try:
        return float(megahertz) * 1e6
    except ValueError:
        return 0.0


def _frequency_policy(root: Path) -> dict[str, Any]:
    """Driver, governors and bounds; nothing in most virtual machines. Boost: 1 on, 0 off."""
    policies = sorted((root / _CPUS).glob("cpu[0-9]*/cpufreq"))
    governors = {name for policy in policies if (name := read.text(policy / "scaling_governor"))}
    drivers = {name for policy in policies if (name := read.text(policy / "scaling_driver"))}
    lows = [khz for policy in policies if (khz := read.number(policy / "scaling_min_freq"))]
    highs = [khz for policy in policies if (khz := read.number(policy / "scaling_max_freq"))]
    no_turbo = read.number(root / _CPUS / "intel_pstate/no_turbo")
    boost = read.number(root / _CPUS / "cpufreq/boost") if no_turbo is None else int(not no_turbo)
    return read.known(
        driver=",".join(sorted(drivers)) or None,
        governor=",".join(sorted(governors)) or None,
        min_hz=min(lows) * 1e3 if lows else None,
        max_hz=max(highs) * 1e3 if highs else None,
        boost=None if boost is None else bool(boost),
    )


def _smt(root: Path) -> bool | None:
    active = read.number(root / _CPUS / "smt/active")
    return None if active is None else bool(active)


def _mitigations(root: Path) -> dict[str, str]:
    """Name -> setting of the mitigations that are on or missing; what can't affect this CPU is left out."""
    folder = root / _CPUS / "vulnerabilities"
    found = {file.name: read.text(file) for file in sorted(folder.glob("*"))} if folder.is_dir() else {}
    return {name: value for name, value in found.items() if value and value != "Not affected"}
