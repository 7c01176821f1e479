"""Runs nvbandwidth and reads what it prints: JSON (-j), whose cells are strings, or the plain tables.

Seen in the wild and taken: cells "N/A" or "0.00" on the diagonal; warnings and a failed check's words before the JSON;
three matrices of one case, one below the other in a single JSON matrix or as three tables; waived cases; an error of
one case at the top level. Its own sums, minima and averages are not used: they add unrelated cells, count N/A as 0.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from iobench.errors import IobenchError, UserError, WrongData
from iobench.units import MIB

VARIABLE = "PEER"
NAME = "nvbandwidth"
SOURCE = "https://github.com/NVIDIA/nvbandwidth"
_SECONDS = 300
_WRONG = "Invalid value when checking the pattern"
_RUNNING = re.compile(r"^Running ([A-Za-z0-9_]+)\.\s*$")
_WAIVED = re.compile(r"^(?:Waived|ERROR|Error|Not Found)\b:?\s*(.*)$")
_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")

Matrix = list[list[float | None]]


@dataclass
class Case:
    """What one test case said: its matrices in order (GB/s, or ns for a latency), or why it has none."""

    name: str
    matrices: list[Matrix] = field(default_factory=list)
    reason: str = ""

    def cell(self, row: int, column: int, matrix: int = 0) -> float | None:
        """Return one cell; None where it is not applicable, missing or zero."""
        try:
            return self.matrices[matrix][row][column] or None
        except IndexError:
            return None


def find() -> str:
    """Return the program: what the variable PEER names, else nvbandwidth from PATH; UserError where there is none."""
    named = os.environ.get(VARIABLE)
    found = shutil.which(named or NAME)
    if found is None:
        place = f"{VARIABLE}={named} is no program" if named else f"no {NAME} in PATH"
        raise UserError(f"{place}: build it from {SOURCE} and give its path, {VARIABLE}=/path/to/{NAME}")
    return found


def run(program: str, cases: Sequence[str], nbytes: int, samples: int = 2) -> dict[str, Case]:
    """Run ``cases`` with messages of ``nbytes`` (whole MiB) in one process; return them by name.

    A case that the program does not know has a reason. Raises WrongData where nvbandwidth's own check of the bytes
    failed, IobenchError with its words where it failed.
    """
    command = [program, "-j", "-i", str(samples), "-b", str(nbytes // MIB), "-t", *cases]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False, errors="replace")
    except subprocess.TimeoutExpired as error:
        raise IobenchError(f"{NAME} did not end within {_SECONDS} s") from error
    except OSError as error:
        raise UserError(f"{program} does not run: {error.strerror}; set {VARIABLE} to {NAME}") from error
    text = done.stdout + "\n" + done.stderr
    if _WRONG in text:
        raise WrongData(f"{NAME}: {_line_with(text, _WRONG)}")
    found = parse(done.stdout)
    if not any(case.matrices for case in found.values()):
        raise IobenchError(f"{NAME} gave no results (status {done.returncode}): {_last_words(text)}")
    return {name: found.get(name, Case(name, reason="not in its output")) for name in cases}


def parse(text: str) -> dict[str, Case]:
    """Return the cases of nvbandwidth's output, JSON or plain text."""
    data = _json_in(text)
    if data is None:
        return _parse_tables(text)
    top = data.get(NAME, data)
    error = str(top.get("error", ""))
    return {case.name: case for case in (_json_case(entry, error) for entry in top.get("testcases") or ())}


def _json_in(text: str) -> dict[str, Any] | None:
    """Return the first object in the text that has nvbandwidth's shape; other words may stand around it."""
    decoder = json.JSONDecoder()
    for match in re.finditer(r"^\s*\{", text, re.MULTILINE):
        try:
            data, _ = decoder.raw_decode(text[match.end() - 1 :])
        except ValueError:
            continue
        if isinstance(data, dict) and (NAME in data or "testcases" in data):
            return data
    return None


def _json_case(entry: dict[str, Any], error: str) -> Case:
    rows = [[_cell(cell) for cell in row] for row in entry.get("bandwidth_matrix") or () if isinstance(row, list)]
    status = str(entry.get("status", ""))
    case = Case(str(entry.get("name", "")), _stacked(rows))
    if status != "Passed" or not rows:
        case.matrices = []
        case.reason = " ".join(filter(None, (status, str(entry.get("error", "")) or error))) or "no matrix"
    return case


def _stacked(rows: Matrix) -> list[Matrix]:
    """Split matrices that stand one below the other: those of GPU pairs are square."""
    width = len(rows[0]) if rows else 0
    if width and len(rows) > width and len(rows) % width == 0 and width > 1:
        return [rows[start : start + width] for start in range(0, len(rows), width)]
    return [rows] if rows else []


def _parse_tables(text: str) -> dict[str, Case]:
    found: dict[str, Case] = {}
    case: Case | None = None
    matrix: Matrix | None = None
    for line in text.splitlines():
        if running := _RUNNING.match(line):
            case, matrix = found.setdefault(running[1], Case(running[1])), None
        elif case is None:
            continue
        elif waived := _WAIVED.match(line):
            case.reason = waived[0].strip()
        elif _is_header(line):
            matrix = []
            case.matrices.append(matrix)
        elif matrix is not None:
            row = _row(line)
            if row is None:
                matrix = None
            else:
                matrix.append(row)
    for case in found.values():
        if not case.matrices and not case.reason:
            case.reason = "no matrix"
    return found


def _is_header(line: str) -> bool:
    """Tell a line of column numbers 0 1 2 ..."""
    words = line.split()
    return bool(words) and line[0].isspace() and words == [str(number) for number in range(len(words))]


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


def _line_with(text: str, words: str) -> str:
    return next(line.strip() for line in text.splitlines() if words in line)


def _last_words(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip() and line.strip() not in "{}"]
    return lines[-1][:200] if lines else "it printed nothing"
