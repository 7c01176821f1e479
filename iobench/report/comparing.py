"""What ``iobench compare`` says of two runs or more, as text and as files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from iobench.compare import Comparison, Contrast, compare, contrast
from iobench.compare.contrasts import split
from iobench.errors import UserError
from iobench.record import Run
from iobench.report import compared, contrasted


@dataclass(frozen=True)
class Asked:
    """What was asked for: runs with their names, messages to cost, and how to narrow and split.

    ``where`` is axis -> wanted values in lower case, ``by`` an axis whose values are compared within each run.
    """

    runs: Sequence[Run]
    names: Sequence[str]
    at: Sequence[int] = ()
    where: Mapping[str, Sequence[str]] | None = None
    by: str = ""
    mixed: bool = False

    @cached_property
    def parts(self) -> list[tuple[str, Run]]:
        """The runs, or each run's parts."""
        whole = list(zip(self.names, self.runs, strict=True))
        if not self.by:
            return whole
        return [
            (f"{name} {_label(self.by, value)}" if len(whole) > 1 else _label(self.by, value), part)
            for name, run in whole
            for value, part in split(run, self.by, least=2 if len(whole) == 1 else 1)
        ]

    @cached_property
    def contrast(self) -> Contrast:
        """The comparison over sizes."""
        names, runs = zip(*self.parts, strict=True)
        return contrast(runs, names, self.at, self.where, self.mixed, self.by)

    @cached_property
    def points(self) -> Comparison | None:
        """The comparison point by point, where there are two whole runs."""
        return compare(*self.runs) if len(self.runs) == 2 and not (self.by or self.where) else None

    @property
    def over_sizes(self) -> bool:
        """Tell whether the comparison over sizes says more than the one point by point."""
        if self.points is None or self.at or self.mixed:
            return True
        matches = self.contrast.matches
        if not self._own:
            return not matches or any(not match.exact or len(match.sizes) > 1 for match in matches)
        return any(not match.exact for match in matches) or bool(self.contrast.refused)

    @property
    def by_points(self) -> bool:
        """Tell whether the comparison point by point is shown: for runs of iobench, or where nothing else is."""
        if self.points is None:
            return False
        return not self.over_sizes or (self._own and bool(self.points.rows))

    @property
    def _own(self) -> bool:
        return not any(run.header.request.get(key) for run in self.runs for key in ("whose", "imported"))


def _label(axis: str, value: str) -> str:
    """Return a word as it is, and of which axis a number is."""
    return value if value[:1].isalpha() and value not in ("True", "False") else f"{axis} {value.lower()}"


def text(asked: Asked, every_size: bool = True) -> str:
    """Return the comparison as Markdown: point by point where two runs share points, over sizes where that adds.

    ``every_size`` False leaves out the tables by size.
    """
    parts = [compared.render(asked.points)] if asked.points is not None and asked.by_points else []
    if asked.over_sizes:
        parts.append(contrasted.render(asked.contrast, every_size=every_size))
    return "\n\n".join(parts)


def parse_where(assignments: Sequence[str]) -> dict[str, list[str]]:
    """Return axis -> values of "ranks=8,16", in lower case; UserError where it is none."""
    found = {}
    for assignment in assignments:
        axis, equals, values = assignment.partition("=")
        if not equals or not axis.strip() or not values.strip():
            raise UserError(f"-a {assignment}: write AXIS=VALUES, as in -a ranks=8 or -a inplace=false")
        found[axis.strip()] = [value.strip().lower() for value in values.split(",")]
    return found


def write(asked: Asked, folder: Path) -> tuple[Path, Path]:
    """Write compare.md, compare.html and figures/ into ``folder``; UserError where that fails."""
    from iobench.report import contrast_files

    return contrast_files.write(asked.contrast, asked.points if asked.by_points else None, folder)
