"""Rulings as lines of text: the word, the claim, the bound and its source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from iobench.claims.judging import RULINGS, Ruling
from iobench.units import format_size


def text(rulings: Sequence[Ruling]) -> str:
    """Return two lines per claim, what it says and why it is ruled so, and the counts at the end."""
    lines = []
    for ruling in rulings:
        claim = ruling.claim
        size = f", {format_size(claim.nbytes)}" if claim.nbytes else ""
        by = f" by {ruling.factor:.1f}x" if ruling.word == "impossible" and ruling.factor else ""
        lines.append(f"{ruling.word + by:19} {claim.what}{size}: {claim.figure}")
        source = f" [{ruling.source}]" if ruling.source else ""
        lines.append(f"{'':19} {ruling.sentence}{source}")
        if claim.note:
            lines.append(f"{'':19} note: {claim.note}")
    counts = Counter(ruling.word for ruling in rulings)
    told = ", ".join(f"{counts[word]} {word}" for word in RULINGS if counts[word])
    return "\n".join([*lines, "", f"{len(rulings)} claims: {told}"])
