"""Somebody's published figures judged by physics: possible, unlikely or impossible, by which bound and how far.

``read(file)`` takes a table as CSV or TOML, ``judge(claims)`` gives each a Ruling, ``text`` lays them out. The
figures the project started from ship as topologies/claims/sits2026.csv.
"""

from __future__ import annotations

from iobench.claims.judging import Ruling, judge
from iobench.claims.table import COLUMNS, Claim, read, shipped
from iobench.claims.words import text

__all__ = ["COLUMNS", "Claim", "Ruling", "judge", "read", "shipped", "text"]
