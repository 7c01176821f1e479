"""Two runs in a row: does the second run's median lie in the interval that the first one states?

A peer of itself: an interval that the next run's median leaves too often is not honest. A point
agrees when the second median lies in the first's interval or within 3 % of the first median.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from iobench.record import Record, Run
from iobench.run import run as run_probes
from iobench.units import format_point, format_seconds

BAR = 0.9
NEAR_FRACTION = 0.03
BUDGET_SECONDS = 100.0
QUICK_SECONDS = 30.0


def run(say: Callable[[str], Any], quick: bool = False) -> bool:
    """Measure everything twice and say how many points agree; True when 9 of 10 do."""
    budget = QUICK_SECONDS if quick else BUDGET_SECONDS
    with tempfile.TemporaryDirectory(prefix="iobench-repeat-", dir=Path.cwd()) as folder:
        runs = []
        for number in ("first", "second"):
            say(f"{number} run of all probes, up to {budget:.0f} s ...")
            runs.append(run_probes(out=Path(folder) / number, budget=budget))
        return judge(runs[0], runs[1], say)


def judge(first: Run, second: Run, say: Callable[[str], Any]) -> bool:
    """Compare two runs point by point, say each disagreement and the share that agrees."""
    later = {record.key: record for record in second if record.used}
    pairs = [(record, later[record.key]) for record in first if record.used and record.key in later]
    agreed: dict[str, list[bool]] = {}
    for a, b in pairs:
        agreed.setdefault(a.probe, []).append(agrees(a, b))
        if not agreed[a.probe][-1]:
            say(_sentence(a, b))
    if not pairs:
        say("FAIL: the two runs have no point in common")
        return False
    for probe, values in agreed.items():
        say(f"{probe}: {sum(values)} of {len(values)} points agree")
    disturbed = sum("suspect" in (a.status, b.status) for a, b in pairs)
    if disturbed:
        say(f"{disturbed} of these points were disturbed by others' load: repeat this on a quiet machine")
    share = sum(map(sum, agreed.values())) / len(pairs)
    met = share >= BAR
    say(f"{'PASS' if met else 'FAIL'}: {share:.1%} of {len(pairs)} points agree (bar {BAR:.0%})")
    return met


def agrees(first: Record, second: Record) -> bool:
    """Tell whether the second median lies in the first's interval or within 3 % of its median."""
    a, b = first.time, second.time.median
    return a.low <= b <= a.high or abs(b - a.median) <= NEAR_FRACTION * a.median


def _sentence(first: Record, second: Record) -> str:
    a, b = first.time, second.time.median
    return (
        f"apart: {first.probe} {format_point(first.point)}: {format_seconds(a.median)} "
        f"[{format_seconds(a.low)}, {format_seconds(a.high)}], then {format_seconds(b)} ({b / a.median - 1:+.1%})"
    )
