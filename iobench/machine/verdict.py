"""Decides whether a point was disturbed, and says by what and what to do."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from iobench.machine.system import tick_seconds

OTHERS_LIMIT_CPUS = 0.10  # other programs on our CPUs, in CPUs
OWN_SHARE = 0.01  # of our own CPUs on top: the kernel's cost of our wake-ups is in nobody's account
ELSEWHERE_LIMIT_FRACTION = 0.02  # of the CPUs that we may not use: they share the memory with us
STEAL_LIMIT_FRACTION = 0.01
# Each CPU's times come in whole ticks (10 ms), so a sum over n CPUs is wrong by 0.41 sqrt(n) ticks (one
# sigma). Measured on quiet 2-CPU points of 0.1 s to 0.3 s: 2.1 ticks at most. Less is no evidence.
NOISE_TICKS = 3.0


def disturbance(state: Mapping[str, Mapping[str, Any]], cpus: set[int]) -> str:
    """Return "" for an undisturbed point, else what disturbed it with the figure, the limit and the next step.

    ``state`` is what ``Watch.end`` returned, ``cpus`` what the processes might use. A short point needs a
    larger figure: on 2 CPUs others are noticed from 0.42 CPUs at 0.1 s, 0.14 at 0.3 s, 0.10 from 0.43 s on.
    """
    during = state.get("during", {})
    found = [_others(during, cpus), _elsewhere(during), _steal(during, cpus), _throttled(during)]
    return "; ".join(sentence for sentence in found if sentence)


def _noise_cpu_seconds(count: int) -> float:
    return NOISE_TICKS * math.sqrt(max(count, 1)) * tick_seconds()


def _others(during: Mapping[str, Any], cpus: set[int]) -> str:
    used, seconds = during.get("others_cpus", 0.0), during.get("seconds", 0.0)
    limit = OTHERS_LIMIT_CPUS + OWN_SHARE * during.get("own_cpus", 0.0)
    if used <= limit or used * seconds <= _noise_cpu_seconds(len(cpus)):
        return ""
    return (
        f"others used {used:.2f} CPUs (limit {limit:.2f}) while it ran: stop them (top shows them) "
        "or run again on a quiet machine"
    )


def _elsewhere(during: Mapping[str, Any]) -> str:
    used, count = during.get("elsewhere_cpus", 0.0), during.get("elsewhere_count", 0)
    limit = OTHERS_LIMIT_CPUS + ELSEWHERE_LIMIT_FRACTION * count
    if used <= limit or used * during.get("seconds", 0.0) <= _noise_cpu_seconds(count):
        return ""
    return (
        f"others used {used:.2f} CPUs (limit {limit:.2f}) outside of the CPUs allowed to iobench: they share the "
        "memory with it; ask for the whole machine or run again when it is quiet"
    )


def _steal(during: Mapping[str, Any], cpus: set[int]) -> str:
    fraction, seconds = during.get("steal_fraction", 0.0), during.get("seconds", 0.0)
    if fraction <= STEAL_LIMIT_FRACTION or fraction * seconds * len(cpus) <= _noise_cpu_seconds(len(cpus)):
        return ""
    return (
        f"the hypervisor took {fraction:.1%} of the CPUs' time (limit {STEAL_LIMIT_FRACTION:.0%}) while it ran: "
        "use a machine with dedicated CPUs or run again"
    )


def _throttled(during: Mapping[str, Any]) -> str:
    throttled = during.get("throttled", {})
    if throttled.get("count", 0) <= 0:
        return ""
    return (
        f"the control group's CPU quota stopped it {throttled['count']:.0f} times "
        f"({throttled.get('seconds', 0.0):.2f} s): raise the quota or use fewer CPUs"
    )
