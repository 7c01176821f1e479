"""What launchers and loggers put before the lines of nccl-tests, and inside them: who printed a line."""

from __future__ import annotations

import re

_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ][\d:.]+Z?(?:[+-]\d\d:?\d\d)?|\d\d:\d\d:\d\d(?:[.,]\d+)?")
_INNER = re.compile(r"\[\d{1,6},\d{1,6}\]<std(?:out|err)>:")  # mpirun tags every write, several to a line
_MARK = re.compile(r"\[[0-9]{1,6}\]")


def one_tag(line: str) -> str:
    """Return a line without the tags that stand inside it: a launcher puts one before every write of its rank."""
    if line.count("]<std") > 1:
        own = line.find(":", line.find("]<std")) + 1
        return line[:own] + _INNER.sub(" ", line[own:])
    mark = line[: line.find("]") + 1] if line[:1] == "[" and "NCCL" not in line else ""
    return mark + line[len(mark) :].replace(mark, " ") if _MARK.fullmatch(mark) else line


def tag_of(text: str) -> str:
    """Return what stands before a line's own text, without comment marks and times: who printed it."""
    text = text.strip(" #\t")
    return _TIME.sub("", text).strip(" #\t") if text else ""
