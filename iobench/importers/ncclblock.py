"""Tables of nccl-tests read as a block: the words of all their rows at once, and their figures without a look at each.

A block's rows are those of a table that was read before, but for their figures. Where they are printed in the same
columns, too, as one program prints them, what stands before the figures is compared as text, and the digits are
summed up by their places.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

END = "\0"  # between rows: a log's text holds none
_SPACED_END = f" {END} "
_DECIMALS = 2
_MOST_CHARS = 16  # of a figure: its digits are a whole number that a double holds


@dataclass(frozen=True)
class Columns:
    """Where the figures stand in a row's text behind what comes before them; ``nchars`` with the mark behind it."""

    rows: int
    nchars: int
    sides: int
    ends: tuple[int, ...]  # of each figure


@dataclass(eq=False)
class Table:
    """The first words of each row of a table that was read before, and how many words its rows have.

    ``lead`` words stand before the figures. ``_prefixes`` is their text as a block had it.
    """

    heads: tuple[tuple[str, ...], ...]
    width: int
    lead: int
    _prefixes: tuple[str, ...] = ()
    _columns: Columns | None = None

    @property
    def key(self) -> tuple[str, ...]:
        return self.heads[0]

    @property
    def stride(self) -> int:
        """Words from one row's figure to the next row's: a mark is between."""
        return self.width - self.lead + 1

    def block(self, number: int, lines: list[str], before: int, longest: int) -> Block | None:
        """Return the rows that begin at line ``number``; None where they are not this table's, each on its line.

        ``lines`` are those of the log after the first ``before``.
        """
        at = number - 1 - before
        rows = lines[at : at + len(self.heads)]
        if len(rows) < len(self.heads) or max(map(len, rows)) >= longest:
            return None
        return self._aligned(number, rows) or self._by_words(number, rows)

    def _aligned(self, number: int, rows: list[str]) -> Block | None:
        columns = self._columns
        if not columns or not all(map(str.startswith, rows, self._prefixes)):
            return None
        start = len(self._prefixes[0])
        text = _SPACED_END.join([row[start:] for row in rows])
        words, count = text.split(), len(rows)
        if len(words) != count * self.stride - 1 or words[self.stride - 1 :: self.stride].count(END) != count - 1:
            return None
        numbers = range(number, number + count)
        even = len(text) == count * columns.nchars - len(_SPACED_END)
        return None if "NCCL" in text else Block(self, numbers, words, text, columns if even else None)

    def _by_words(self, number: int, rows: list[str]) -> Block | None:
        found = [row.split() for row in rows]
        if any(len(words) != self.width for words in found) or any("NCCL" in row for row in rows):
            return None
        if heads_of(found, self.lead) != self.heads:
            return None
        self._learn(rows)
        return Block(self, range(number, number + len(rows)), _marked(words[self.lead :] for words in found))

    def _learn(self, rows: list[str]) -> None:
        """Keep the columns of these rows for the next block."""
        lead = re.compile(rf"(?:\s*\S+(?!\S)){{{self.lead}}}\s")
        found = [match[0] for row in rows if (match := lead.match(row))]
        if len(found) != len(rows) or len(set(map(len, found))) > 1:
            return
        rest = rows[0][len(found[0]) :]
        ends = tuple(match.end() for match in re.finditer(r"\S+", rest))
        widths = [end - start for start, end in zip((0, *ends), ends, strict=False)]
        if len(ends) % 4 or any(not 4 <= width <= _MOST_CHARS for width in widths):
            return
        self._prefixes = tuple(found)
        self._columns = Columns(len(rows), len(rest) + len(_SPACED_END), len(ends) // 4, ends)


class Block:
    """The figures of a table's rows one after the other, a mark between the rows, and the numbers of their lines.

    ``text`` is what they were split from, "" where each row was split by itself; ``columns`` are known where all rows
    are of one length.
    """

    def __init__(
        self, table: Table, numbers: Sequence[int], words: list[str], text: str = "", columns: Columns | None = None
    ) -> None:
        self.table, self.numbers, self.text, self.columns = table, numbers, text, columns
        self._words: list[str] = words

    @property
    def words(self) -> list[str]:
        return self._words or self.text.split()

    def forget(self) -> None:
        """Let the words go where they can be split again: many blocks wait, and memory that is still near is fast."""
        if self.text:
            self._words = []

    @property
    def rows(self) -> list[tuple[int, list[str]]]:
        """Each row by itself."""
        stride = self.table.stride
        words = self.words
        figures = (words[at : at + stride - 1] for at in range(0, len(words), stride))
        return [
            (number, [*head, *row]) for number, head, row in zip(self.numbers, self.table.heads, figures, strict=True)
        ]


def heads_of(rows: list[list[str]], lead: int) -> tuple[tuple[str, ...], ...]:
    """Return what stands before the figures of each row."""
    return tuple(tuple(words[:lead]) for words in rows)


def joined(table: Table, rows: list[tuple[int, list[str]]]) -> Block:
    """Return rows that were split one by one as a block."""
    return Block(table, [number for number, _ in rows], _marked(words[table.lead :] for _, words in rows))


def _marked(rows: Any) -> list[str]:
    return [word for row in rows for word in (*row, END)][:-1]


def digits_of(blocks: list[Block]) -> tuple[Any, Any, Any] | None:
    """Return the times, algbws and busbws of blocks, each row's first placement before all rows' second.

    None unless all are printed in the same columns, with two decimals. What they are is as exact as ``float`` tells.
    """
    columns = blocks[0].columns
    if not columns or any(block.columns != columns for block in blocks):
        return None
    text = _SPACED_END.join(block.text for block in blocks) + _SPACED_END
    if not text.isascii():
        return None
    import numpy as np

    chars = np.frombuffer(text.encode("ascii"), np.uint8).reshape(-1, columns.nchars)
    starts = (0, *columns.ends)
    found = []
    for at, (start, end) in enumerate(zip(starts, columns.ends, strict=False)):
        values = _values(chars[:, start:end].T.copy()) if at % 4 < 3 else None
        if values is not None:
            found.append(values.reshape(len(blocks), columns.rows))
    if len(found) < 3 * columns.sides:
        return None
    return tuple(np.stack(found[at::3], axis=1).ravel() for at in range(3))  # type: ignore[return-value]


def _values(chars: Any) -> Any:
    """Return the numbers printed in columns, ``chars`` [place, row]; None where one has not two decimals.

    Blanks are only before a number: one in it would have made two words of it.
    """
    digits = chars - ord("0")
    whole = digits[: -_DECIMALS - 1]
    whole[chars[: -_DECIMALS - 1] == ord(" ")] = 0
    decimals = digits[-_DECIMALS:]
    numeric = whole.max() < 10 and decimals.max() < 10 and (chars[-_DECIMALS - 2] != ord(" ")).all()
    if not numeric or (chars[-_DECIMALS - 1] != ord(".")).any():
        return None
    value = 0.0
    for place in (*whole, *decimals):
        value = value * 10.0 + place
    return value / 10**_DECIMALS
