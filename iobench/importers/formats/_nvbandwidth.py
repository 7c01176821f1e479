"""What nvbandwidth prints, taken apart: cases with their matrices, out of plain tables or JSON (-j).

Seen in the wild and taken: cells "N/A" or "0.00" on the diagonal; warnings and a failed check's words before the JSON;
three matrices of one case, one below the other in a single JSON matrix or as three tables; waived cases; an error of
one case at the top level; tables cut out of a log, without their case's name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from iobench.units import MIB

NAME = "nvbandwidth"
WRONG = "Invalid value when checking the pattern"
_RUNNING = re.compile(r"^Running ([A-Za-z0-9_]+)\.\s*$")
_WAIVING = re.compile(r"^Waiving ([A-Za-z0-9_]+)\.\s*$")  # up to 0.2, in place of "Running"
_WAIVED = re.compile(r"^(?:Waived|ERROR|Error|Not Found)\b:?\s*(.*)$")
_SUM = re.compile(r"^SUM ([A-Za-z0-9_]+) ([0-9.eE+-]+)\s*$")
_TITLE = re.compile(r"\((?:row|column)\)|\(GB/s\)|\(ns\)|simultaneous write CE BW", re.IGNORECASE)
_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_COMMAND = re.compile(r"\bnvbandwidth\b[^\n]*?\s(?:-b|--bufferSize)[ =]?([0-9]{1,7})\b")

Matrix = list[list[float | None]]


@dataclass
class Case:
    """What one test case said: its matrices in order (GB/s, or ns for a latency), or why it has none.

    ``rows`` holds the line numbers of each matrix's rows, ``sums`` the sum that nvbandwidth printed below each.
    """

    name: str
    matrices: list[Matrix] = field(default_factory=list)
    reason: str = ""
    rows: list[list[int]] = field(default_factory=list)
    sums: list[float | None] = field(default_factory=list)
    titles: list[str] = field(default_factory=list)
    widths: list[int] = field(default_factory=list)
    number: int = 0
    wrong: str = ""
    nbytes: int = 0

    def open(self, title: str, width: int) -> None:
        """Start a matrix."""
        self.matrices.append([])
        self.rows.append([])
        self.sums.append(None)
        self.titles.append(title)
        self.widths.append(width)

    def cell(self, row: int, column: int, matrix: int = 0) -> float | None:
        """Return one cell; None where it is not applicable, missing or zero."""
        try:
            return self.matrices[matrix][row][column] or None
        except IndexError:
            return None


def parse(text: str) -> dict[str, Case]:
    """Return the cases of one run's output by name, JSON or plain text."""
    data = json_in(text)
    cases = json_cases(data) if data is not None else list(cases_of(text.splitlines()))
    return {case.name: case for case in cases}


# ---- the tables ----------------------------------------------------------------------


def cases_of(lines: list[str]) -> Iterator[Case]:
    """Yield the cases of plain output in order; tables without a case's name are named by the sum below them."""
    reader = _Reader()
    for number, line in enumerate(lines, start=1):
        done = reader.take(number, line)
        if done is not None:
            yield _closed(done)
    if reader.case is not None:
        yield _closed(reader.case)


class _Reader:
    """Where in the output the reader is: the case at hand, a title that waits for its table, a table being read."""

    def __init__(self) -> None:
        self.case: Case | None = None
        self.title = ""
        self.in_table = False
        self.nbytes = 0

    def take(self, number: int, line: str) -> Case | None:
        """Take one line; return the case that it ends, if it does."""
        line = line.strip()  # pasted into a list or a test, it is indented
        if command := _COMMAND.search(line):
            self.nbytes = int(command[1]) * MIB
        if running := _RUNNING.match(line):
            done, self.case = self.case, Case(running[1], number=number, nbytes=self.nbytes)
            self.title, self.in_table = "", False
            return done
        if waiving := _WAIVING.match(line):
            done, self.case = self.case, Case(waiving[1], number=number, reason="Waived by nvbandwidth")
            self.title, self.in_table = "", False
            return done
        if summed := _SUM.match(line):
            value = float(summed[2]) if _NUMBER.fullmatch(summed[2]) else None
            _add_sum(self._any_case(number), summed[1], value)
            self.title, self.in_table = "", False
        elif _TITLE.search(line) and not line.startswith(("NOTE", "SUM", "nvbandwidth")):
            self._any_case(number)
            self.title, self.in_table = line.strip(), False
        elif self.case is not None:
            self._inside(self.case, number, line)
        return None

    def _any_case(self, number: int) -> Case:
        if self.case is None:
            self.case = Case("", number=number, nbytes=self.nbytes)
        return self.case

    def _inside(self, case: Case, number: int, line: str) -> None:
        if WRONG in line:
            case.wrong = line.strip()
        elif waived := _WAIVED.match(line):
            case.reason = waived[0].strip()
        elif self.title and _is_header(line):
            case.open(self.title, len(line.split()))
            self.title, self.in_table = "", True
        elif self.in_table:
            row = _row(line)
            self.in_table = row is not None
            if row is not None:
                case.matrices[-1].append(row)
                case.rows[-1].append(number)


def _add_sum(case: Case, name: str, value: float | None) -> None:
    bare = re.sub(r"_(?:(?:read|write)[12]|total)$", "", name)
    if not case.name:
        case.name = bare
    if case.sums and bare == case.name:
        case.sums[-1] = value


def _closed(case: Case) -> Case:
    if not case.matrices and not case.reason:
        case.reason = case.wrong or "no matrix"
    return case


def _is_header(line: str) -> bool:
    """Tell a line of column numbers 0 1 2 ..."""
    words = line.split()
    return bool(words) and words == [str(number) for number in range(len(words))]


def _row(line: str) -> list[float | None] | None:
    words = line.split()
    if len(words) < 2 or not words[0].isdigit() or not all(word == "N/A" or _NUMBER.fullmatch(word) for word in words):
        return None
    return [_cell(word) for word in words[1:]]


def _cell(value: Any) -> float | None:
    """Return a cell's number, whether it stands there as a number or in a string; None for N/A."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    match = _NUMBER.fullmatch(str(value).strip())
    return float(match[0]) if match else None


# ---- the JSON ----------------------------------------------------------------------


def json_in(text: str) -> dict[str, Any] | None:
    """Return the first object in the text that has nvbandwidth's shape; other words may stand around it."""
    decoder = json.JSONDecoder()
    for place, match in enumerate(re.finditer(r"^[ \t]*\{", text, re.MULTILINE)):
        if place > 100:
            return None
        try:
            data, _ = decoder.raw_decode(text, match.end() - 1)
        except (ValueError, RecursionError):
            continue
        if isinstance(data, dict) and (NAME in data or "testcases" in data):
            return data
    return None


def json_cases(data: dict[str, Any]) -> list[Case]:
    top = data.get(NAME, data)
    entries = top.get("testcases") if isinstance(top, dict) else None
    error = str(top.get("error", "")) if isinstance(top, dict) else ""
    entries = entries if isinstance(entries, list) else []
    return [_json_case(entry, error) for entry in entries if isinstance(entry, dict)]


def _json_case(entry: dict[str, Any], error: str) -> Case:
    cells = entry.get("bandwidth_matrix")
    rows = [[_cell(cell) for cell in row] for row in cells if isinstance(row, list)] if isinstance(cells, list) else []
    status = str(entry.get("status", ""))
    case = Case(str(entry.get("name", "")), _stacked(rows))
    case.rows = [[0] * len(matrix) for matrix in case.matrices]
    case.titles = [str(entry.get("bandwidth_description", ""))] * len(case.matrices)
    case.widths = [max(map(len, matrix), default=0) for matrix in case.matrices]
    case.sums = [None] * len(case.matrices)
    if case.sums:
        case.sums[-1] = _cell(entry.get("sum"))  # of the last matrix only
    if status != "Passed" or not rows:
        case.matrices = []
        case.reason = " ".join(filter(None, (status, str(entry.get("error", "")) or error))) or "no matrix"
        case.wrong = case.reason if WRONG in case.reason else ""
    return case


def _stacked(rows: Matrix) -> list[Matrix]:
    """Split matrices that stand one below the other: those of GPU pairs are square."""
    width = len(rows[0]) if rows else 0
    if width and len(rows) > width and len(rows) % width == 0 and width > 1:
        return [rows[start : start + width] for start in range(0, len(rows), width)]
    return [rows] if rows else []
