"""Everything that check says of a run: physics, the band of its class, a baseline; and the exit status of it all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from iobench.check import pairs
from iobench.check.baseline import hold_against
from iobench.check.classes import machine_of
from iobench.check.expected import Standing, expect
from iobench.check.judging import STATUSES, Verdict, judge, topology_of
from iobench.errors import EXIT_FAILED, EXIT_OK, EXIT_WRONG_DATA
from iobench.record import Record, Run, no_collections
from iobench.units import format_point

WORDS = (*STATUSES, "slow")  # slow: possible and proven, but below what was expected


@dataclass(frozen=True)
class Finding:
    """One record: the verdict of physics, and how it stands to the band of its class and to the baseline."""

    record: Record
    verdict: Verdict
    expected: Standing | None = None
    baseline: Standing | None = None

    @property
    def word(self) -> str:
        """The verdict's status; "slow" where it is a good number that is below what was expected."""
        return "slow" if self.below and self.verdict.usable else self.verdict.status

    @property
    def below(self) -> bool:
        """Whether it is slower than its band or its baseline."""
        return any(standing is not None and standing.word == "below" for standing in (self.expected, self.baseline))

    @property
    def point(self) -> str:
        """Which point it is, as the command line takes it."""
        return f"{self.record.probe} {format_point(self.record.point)}".strip()

    @property
    def sentence(self) -> str:
        """The one line that check prints."""
        told = [standing.sentence for standing in (self.expected, self.baseline) if standing is not None]
        return "; ".join([self.verdict.sentence, *told])


@dataclass(frozen=True)
class Assessment:
    """All findings of a run in its order."""

    findings: tuple[Finding, ...]
    machine: str
    joined: int
    baseline: str = ""
    matrices: tuple[pairs.Matrix, ...] = ()

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    @property
    def exit_status(self) -> int:
        """3 for wrong data or a number that breaks physics, 1 for one below expectation or a failed one, else 0."""
        statuses = {finding.verdict.status for finding in self.findings}
        if statuses & {"wrong", "impossible"}:
            return EXIT_WRONG_DATA
        bad = any(finding.word in ("slow", "failed") for finding in self.findings)
        return EXIT_FAILED if bad or any(matrix.slow for matrix in self.matrices) else EXIT_OK

    @property
    def summary(self) -> list[str]:
        """What the lines come to, in a few sentences."""
        counts = Counter(finding.word for finding in self.findings)
        told = ", ".join(f"{counts[word]} {word}" for word in WORDS if counts[word])
        lines = [f"{len(self.findings)} points: {told or 'none'}"]
        banded = [finding for finding in self.findings if finding.expected]
        kind = self.machine or "unknown class"
        if banded:
            lines.append(f"expected band ({kind}): {_spread([f.expected for f in banded])}")
        else:
            lines.append(f"expected band ({kind}): none of these points has one")
        if self.baseline:
            held = [finding.baseline for finding in self.findings if finding.baseline]
            lines.append(f"against {self.baseline}: {_spread(held) if held else 'no point is in both runs'}")
        doubtful = sum(bool(finding.verdict.doubt) for finding in self.findings)
        if doubtful:
            lines.append(f"doubtful: {doubtful} above what packet headers leave of a link; see their lines")
        return [*lines, *(matrix.sentence for matrix in self.matrices)]


def assess(run: Run, against: Run | None = None) -> Assessment:
    """Judge every record of ``run``, against ``against`` too where it is given; UserError for a damaged header."""
    with no_collections():
        findings = _findings(run, {record.key: record for record in against} if against else {})
    joined = sum(finding.baseline is not None for finding in findings)
    name = f"{against.machine} {against.header.created}".strip() if against else ""
    machine = machine_of(run, topology_of(run))
    matrices = pairs.matrices(finding.record for finding in findings if finding.verdict.usable)
    return Assessment(tuple(findings), machine.id if machine else "", joined, name, tuple(matrices))


def _findings(run: Run, before: Mapping[str, Record]) -> list[Finding]:
    verdicts, machine = judge(run), machine_of(run, topology_of(run))
    findings = []
    for record in run:
        found = verdicts[record.key]
        usable = found.usable and bool(record.used)
        expected = expect(record, machine) if usable and record.moved else None
        baseline = hold_against(record, before.get(record.key)) if usable and before else None
        findings.append(Finding(record, found, expected, baseline))
    return findings


def _spread(standings: Sequence[Standing | None]) -> str:
    counts = Counter(standing.word for standing in standings if standing)
    names = {"below": "slower", "within": "as expected", "above": "faster"}
    return ", ".join(f"{counts[word]} {name}" for word, name in names.items() if counts[word])
