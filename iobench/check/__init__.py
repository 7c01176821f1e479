"""Is that number right: physics, what machines of this class do, a baseline, and the other machines of a fleet.

``judge(run)`` gives every record a Verdict. ``assess(run, against)`` adds the expected band and the baseline,
``outliers(runs)`` tells which node or link of many machines differs.
"""

from __future__ import annotations

from iobench._callable import make_callable
from iobench.check.assess import Assessment, Finding, assess
from iobench.check.bottleneck import Limit, find_limit
from iobench.check.judging import STATUSES, Verdict, judge, topology_of, verdict
from iobench.check.outliers import Fleet, Outlier, outliers

__all__ = [
    "STATUSES",
    "Assessment",
    "Finding",
    "Fleet",
    "Limit",
    "Outlier",
    "Verdict",
    "assess",
    "find_limit",
    "judge",
    "outliers",
    "topology_of",
    "verdict",
]

make_callable(__name__, judge)
