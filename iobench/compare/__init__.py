"""Compares runs: two of them point by point, or any number of topologies over message sizes.

``compare(a, b)`` joins the points that both runs measured (``points``); ``contrast(runs)`` matches their series
over sizes, also where transport, ranks, library or sizes differ, and says which is faster where (``contrasts``).
"""

from __future__ import annotations

from iobench._callable import make_callable
from iobench.compare.contrasts import Contrast, Match, contrast
from iobench.compare.points import SAME, VERDICTS, Comparison, Row, compare

__all__ = ["SAME", "VERDICTS", "Comparison", "Contrast", "Match", "Row", "compare", "contrast"]

make_callable(__name__, compare)
