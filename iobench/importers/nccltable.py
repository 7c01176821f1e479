"""The table that nccl-tests and its relatives print: its columns, its rows, and whether a row agrees with itself.

Rows are found by their element type with a size and a count before it, so whatever stands in front (mpirun's
``[1,0]<stdout>:``, srun's ``0:``, a pod's name, a time) is a tag. Columns are taken from the header where there is one.
A row whose algbw does not follow from its size and time was garbled, or follows another definition: it is not used.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import NamedTuple

from iobench.importers.collective import DTYPES
from iobench.units import GB, MS, US

_NAMES = {"bytes": "size", "n": "count", "op": "redop", "res": "error", "#wrong": "wrong", "cputime": "cputime"}
_SIDE = ("time", "cputime", "algbw", "busbw", "copybw", "wrong", "error", "i_min", "i_max", "i_p99", "i_cv%")
cache_of_a_few = lru_cache(maxsize=64)  # a log's header lines are the same again and again
_EXPONENTIAL = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,6})?e[+-]?[0-9]{1,3}")
_COUNTED = re.compile(r"[0-9.]{1,20}(?:e[+-][0-9]{1,3})?\*?%?|N/A|-?nan|-?inf", re.IGNORECASE)  # what a row ends in
_BARE = re.compile(r"\([^()]*\)")
_DIGITS = re.compile(r"[0-9]+$")
_EXPONENT = re.compile(r"[+-]?[0-9]{1,2}")
_MARKUP = "`|\"',"  # of a document that quotes the row
_MOST = 1e18
_ROOT = re.compile(r"-?[0-9]{1,9}")
_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d*)?(?:e[-+]?\d+)?|nan|inf)\*?$", re.I)
_SHAPES = {8: (4, 2), 4: (4, 1), 16: (8, 2), 10: (5, 2), 6: (3, 2), 3: (3, 1), 5: (5, 1)}
_NAMES_BY_WIDTH = {
    3: ("time", "algbw", "busbw"),
    4: ("time", "algbw", "busbw", "wrong"),
    5: ("time", "algbw", "busbw", "copybw", "wrong"),
    8: ("time", "algbw", "busbw", "wrong", "i_min", "i_max", "i_p99", "i_cv%"),
}
OLD_DEFINITION = "algbw is by the definition before 2020 (what one rank sends to the others): nbytes / time is used"
_MS = "times are in ms, as before nccl-tests 2"
_US_PER_GB = GB * US
_CLOSE = 0.005
_SLACK = 0.01  # a mean of bandwidths is not the bandwidth of the mean, but within this of it


@dataclass(frozen=True)
class Layout:
    """The columns of a table: which of redop and root it has, the columns of one placement, how many placements."""

    redop: bool
    root: bool
    side: tuple[str, ...]
    sides: int
    trailing: int = 0  # words behind the figures: when the row was printed, or iterations
    width: int = 0  # words of a whole row

    @property
    def lead(self) -> int:
        """Words before the figures."""
        return 3 + self.redop + self.root


class Side(NamedTuple):
    """One placement's figures of a row as printed."""

    inplace: bool
    time: str
    algbw: str
    busbw: str
    wrong: str
    cputime: bool
    old_error: bool
    rest: tuple[str, ...] = ()

    @property
    def printed(self) -> str:
        return f"{self.time} {self.algbw} {self.busbw} {self.wrong} {' '.join(self.rest)}".rstrip()


class Row(NamedTuple):
    """One row of the table; ``problem`` says why it can't be used, "" for a sound one."""

    number: int
    nbytes: int
    items: int
    dtype: str
    redop: str
    root: int
    sides: tuple[Side, ...]
    text: str = ""
    problem: str = ""


@cache_of_a_few
def layout(text: str) -> Layout | None:
    """Return the columns of a table's header line, None for any other line."""
    words = [_NAMES.get(word, word) for word in _BARE.sub("", text.lower()).replace("#  ", " ").split()]
    words = [word for word in words if word != "#"]
    if "size" not in words or "type" not in words or not {"time", "cputime"} & set(words):
        return None
    words = words[words.index("size") :]
    start = min(words.index(word) for word in ("time", "cputime") if word in words)
    columns = [word for word in words[start:] if word in _SIDE]
    lead = columns[0]
    second = columns.index(lead, 1) if lead in columns[1:] else len(columns)
    sides = 2 if second < len(columns) else 1
    redop, root = "redop" in words, "root" in words
    trailing = 2 * ("timestamp" in words) + ("#iters" in words)
    width = 3 + redop + root + second * sides + trailing
    return Layout(redop, root, tuple(columns[:second]), sides, trailing, width)


def find(tokens: list[str]) -> int:
    """Return the index of a row's element type, -1 where the tokens are no row."""
    if len(tokens) > 2 and tokens[2] in DTYPES and tokens[0].isdigit() and tokens[1].isdigit():
        return 2
    for index in range(2, min(len(tokens), 16)):
        if tokens[index] in DTYPES and tokens[index - 1].isdigit() and _DIGITS.search(tokens[index - 2]):
            return index
    return -1


def parse(number: int, tokens: list[str], at: int, known: Layout | None) -> Row | None:
    """Return the row whose element type is ``tokens[at]``; None where no figures follow (yet)."""
    if known and at == 2 and len(tokens) == known.width:
        return _quick(number, tokens, known)
    size = _DIGITS.search(tokens[at - 2])
    rest = tokens[at + 1 :]
    if rest:
        rest[-1] = rest[-1].rstrip(_MARKUP) or rest[-1]
    redop, root = "", -1
    if rest and not _NUMBER.match(rest[0]) and rest[0].isalpha():
        redop, rest = rest[0], rest[1:]
    has_root = known.root if known and _fits(known, len(rest)) else _looks_like_root(rest)
    if has_root and rest:
        root, rest = (int(rest[0]) if _ROOT.fullmatch(rest[0]) else -1), rest[1:]
    text = " ".join(tokens)[:480]
    base = (number, whole(size[0]) if size else -1, whole(tokens[at - 1]), tokens[at], redop, root)
    if not rest:
        return None
    if base[1] < 0 or base[2] < 0:
        return Row(*base, (), text, "size or count is no whole number of 19 digits at most")
    names, sides = _columns(known, len(rest))
    if not names:
        return Row(*base, (), text, f"{len(rest)} figures where {_expected(known)} belong")
    if not known and "wrong" in names and any(_EXPONENTIAL.fullmatch(text) for text in rest):
        names = tuple("error" if name == "wrong" else name for name in names)  # before 2.12: largest deviation
    if not known and not _COUNTED.fullmatch(rest[-1]):
        return Row(*base, (), text, "the row ends in the middle of a figure")
    figures = [rest[i * len(names) : (i + 1) * len(names)] for i in range(sides)]
    return Row(*base, tuple(_side(names, f, i == 1) for i, f in enumerate(figures)), text)


def _quick(number: int, tokens: list[str], known: Layout) -> Row | None:
    """Return the row of as many words as the header has columns: no need to find out which is which."""
    if tokens[-1][-1] in _MARKUP:
        tokens = [*tokens[:-1], tokens[-1].rstrip(_MARKUP) or tokens[-1]]
    redop = tokens[3] if known.redop else ""
    root = tokens[3 + known.redop] if known.root else "-1"
    nbytes, count = whole(tokens[0]), whole(tokens[1])
    if (redop and not redop.isalpha()) or not _ROOT.fullmatch(root) or nbytes < 0 or count < 0:
        return parse(number, tokens, 2, replace(known, width=0))
    start = known.lead
    names, width = known.side, len(known.side)
    sides = tuple(_side(names, tokens[start + i * width : start + (i + 1) * width], i == 1) for i in range(known.sides))
    return Row(number, nbytes, count, tokens[2], redop, int(root), sides)


def _fits(known: Layout, count: int) -> bool:
    wanted = len(known.side) * known.sides + known.root
    return count in (wanted, wanted + known.trailing)


def _looks_like_root(rest: list[str]) -> bool:
    if not rest or not _ROOT.fullmatch(rest[0]):
        return False
    return rest[0] == "-1" or (len(rest) in (5, 9, 11, 17, 19))


def _columns(known: Layout | None, count: int) -> tuple[tuple[str, ...], int]:
    if known:
        wanted = len(known.side) * known.sides
        return (known.side, known.sides) if count in (wanted, wanted + known.trailing) else ((), 0)
    width, sides = _SHAPES.get(count, (0, 0))
    return _NAMES_BY_WIDTH.get(width, ()), sides


def _expected(known: Layout | None) -> str:
    return str(len(known.side) * known.sides) if known else "4 or 8"


@cache
def _places(names: tuple[str, ...]) -> tuple[int, int, int, int, tuple[int, ...], bool, bool]:
    """Return where time, algbw, busbw and wrong stand in one placement's columns (-1: nowhere), and the others."""
    time = names.index("cputime" if "cputime" in names else "time")
    wrong = names.index("wrong") if "wrong" in names else names.index("error") if "error" in names else -1
    found = (time, *(names.index(name) if name in names else -1 for name in ("algbw", "busbw")), wrong)
    rest = tuple(index for index in range(len(names)) if index not in found)
    return *found, rest, "cputime" in names, "error" in names  # type: ignore[return-value]


def _side(names: tuple[str, ...], figures: list[str], inplace: bool) -> Side:
    time, algbw, busbw, wrong, rest, cputime, old_error = _places(names)
    return Side(
        inplace,
        figures[time],
        figures[algbw] if algbw >= 0 else "",
        figures[busbw] if busbw >= 0 else "",
        figures[wrong] if wrong >= 0 else "",
        cputime,
        old_error,
        tuple(figures[index] for index in rest) if rest else (),
    )


def whole(text: str) -> int:
    """Return a printed count, -1 for anything else and for what no 64-bit tool prints."""
    return int(text) if len(text) < 20 and text.isascii() and text.isdigit() else -1


def number(text: str) -> float:
    """Return a printed figure; NaN for anything that is none, infinity included."""
    try:
        value = float(text) if "_" not in text else math.nan
    except ValueError:
        return math.nan
    return value if -_MOST < value < _MOST else math.nan


def half_unit(text: str) -> float:
    """Return half a unit of a figure's last printed digit."""
    if text[-3:-2] == "." and text[:-3].isdigit():
        return 0.005
    mantissa, _, exponent = text.lower().partition("e")
    decimals = len(mantissa) - mantissa.find(".") - 1 if "." in mantissa else 0
    return 0.5 * 10.0 ** ((int(exponent) if _EXPONENT.fullmatch(exponent) else 0) - decimals)


def seconds_of(nbytes: int, side: Side, shared: float) -> tuple[float, str, str]:
    """Return seconds, what had to be normalised, and why the figures can't be used ("" for none).

    ``shared`` is (n-1)/n where the old definition of algbw (before nccl-tests 2.0.0's change) may apply, else 0.
    """
    time, algbw = number(side.time), number(side.algbw)
    if not (math.isfinite(time) and math.isfinite(algbw) and time > 0 and algbw >= 0):
        return 0.0, "", "time or algbw is no positive number"
    if side.cputime:
        return _from_algbw(nbytes, side, algbw)
    plain = nbytes / (time * _US_PER_GB)
    if abs(algbw - plain) <= _CLOSE * plain:  # most rows: no need to look at their digits
        return time * US, "", ""
    doubt = half_unit(side.time) / time + _SLACK
    printed = 1.02 * half_unit(side.algbw)
    for unit, share, said in (
        (US, 1.0, ""),
        (US, shared, OLD_DEFINITION),
        (MS, 1.0, _MS),
        (MS, shared, f"{_MS}; {OLD_DEFINITION}"),
    ):
        wanted = share * nbytes / (time * unit) / GB
        if share and abs(algbw - wanted) <= printed + wanted * doubt:
            return time * unit, said, ""
    return 0.0, "", f"algbw {side.algbw} does not follow from {nbytes} bytes in {side.time} us"


def _from_algbw(nbytes: int, side: Side, algbw: float) -> tuple[float, str, str]:
    if not algbw or half_unit(side.algbw) > _SLACK * algbw:
        return 0.0, "", "cputime is the time of launching, not of the operation, and algbw has too few digits"
    return nbytes / (algbw * GB), "cputime (-C) is the time of launching: the operation's time is taken from algbw", ""


def busbw_agrees(side: Side, nbytes: int, seconds: float, share: float) -> bool:
    """Tell whether the printed busbw is ``share`` times nbytes / seconds."""
    busbw, wanted = number(side.busbw), share * nbytes / seconds / GB
    if abs(busbw - wanted) <= _CLOSE * wanted:
        return True
    doubt = half_unit(side.time) / max(number(side.time), 1e-9) + _SLACK
    return math.isfinite(busbw) and abs(busbw - wanted) <= 1.02 * half_unit(side.busbw) + wanted * doubt
