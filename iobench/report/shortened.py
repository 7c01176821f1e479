"""A run too long to be read: which of its points a report shows, so that it stays one page.

Every point is judged and every series fitted; verdicts are counted over all of them and warnings name the worst.
Figures, tables and key figures show points that are not as they should be, and whole series at even distances.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from iobench.check import Verdict
from iobench.record import Record, Run

MOST_POINTS = 3000  # of one probe: a table that a browser and a reader can still take
MOST_ODD = 200
MOST_SERIES = 100  # of models
_SHOWN = 600  # points of a probe once it has too many
_SIZE = "nbytes"
_ODD = ("wrong", "impossible", "failed", "suspect")

T = TypeVar("T")


def shortened(run: Run, verdicts: Mapping[str, Verdict]) -> Run:
    """Return ``run`` itself, or one with fewer records of the probes that have more than MOST_POINTS."""
    by_probe: dict[str, list[Record]] = {}
    for record in run:
        by_probe.setdefault(record.probe, []).append(record)
    if all(len(records) <= MOST_POINTS for records in by_probe.values()):
        return run
    kept: list[Record] = []
    for records in by_probe.values():
        kept += records if len(records) <= MOST_POINTS else _chosen(records, verdicts)
    return replace(run, records=kept, derived={})


def sentences(run: Run, shown: Run) -> dict[str, str]:
    """Return probe -> a sentence on what the report leaves out; empty where it shows everything."""
    if shown is run:
        return {}
    before, after = _counts(run), _counts(shown)
    told = (
        f"of them: up to {MOST_ODD} that are not as they should be, and whole series at even distances. The others "
        "stand in the records file, their models in models.json."
    )
    return {
        probe: f"{count} points were measured and judged; figures and table show {after[probe]} {told}"
        for probe, count in before.items()
        if count > after[probe]
    }


def spaced(items: Sequence[T], most: int) -> list[T]:
    """Return ``most`` of the items at even distances, the first always among them; all where they are no more."""
    if len(items) <= most:
        return list(items)
    return [items[number * len(items) // most] for number in range(most)]


def _chosen(records: list[Record], verdicts: Mapping[str, Verdict]) -> list[Record]:
    odd = spaced([record for record in records if verdicts[record.key].status in _ODD], MOST_ODD)
    series: dict[Any, list[Record]] = {}
    for record in records:
        series.setdefault(_series(record), []).append(record)
    groups = list(series.values())
    longest = max(len(group) for group in groups)
    keep = {id(record) for group in spaced(groups, max(_SHOWN // longest, 1)) for record in spaced(group, _SHOWN)}
    keep |= {id(record) for record in odd}
    return [record for record in records if id(record) in keep]


def _series(record: Record) -> Any:
    return record.mode, tuple([repr(value) for axis, value in record.point.items() if axis != _SIZE])


def _counts(run: Run) -> dict[str, int]:
    counts: dict[str, int] = {}
    for record in run:
        counts[record.probe] = counts.get(record.probe, 0) + 1
    return counts
