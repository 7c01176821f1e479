"""A comparison of topologies as Markdown that reads well as plain text too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from iobench.compare.contrasts import Contrast, Match, Side, differing
from iobench.compare.crossing import Ratio, ratio_at
from iobench.compare.curves import Time
from iobench.errors import UserError
from iobench.record import Record
from iobench.report.markdown import table, text
from iobench.units import format_rate, format_seconds, format_size, parse_size

BASIS = (
    "Times are those of one operation on a message of that size; a speed is one time over the other. "
    "≈ marks a value between two measured sizes, taken from the curve."
)
NO_INTERVAL = "-"
ONE_SIZE = "Compared at one size"
TAILS = "Tails of the latencies"
TAIL_COLUMNS = ("what", "size", "", "median", "P95", "P99", "P99.9", "samples")


def render(
    found: Contrast, figures: Mapping[str, Sequence[tuple[str, str, str]]] | None = None, every_size: bool = True
) -> str:
    """Return the whole comparison; ``figures`` holds (alt, file, caption) of each match by its title.

    ``every_size`` False leaves out the tables by size.
    """
    parts = ["\n".join(f"- {side_text(side)}" for side in found.sides)]
    for match in over_sizes(found):
        parts += [f"## {text(match.title)}", *_match(match, found.at, every_size)]
        for alt, file, caption in (figures or {}).get(match.title, ()):
            parts += [f"![{text(alt)}]({file})", text(caption)]
    if at_one_size(found):
        parts += [f"## {ONE_SIZE}", *_one_size(found)]
        for alt, file, caption in (figures or {}).get(ONE_SIZE, ()):
            parts += [f"![{text(alt)}]({file})", text(caption)]
    if rows_of_tails := tail_rows(found):
        parts += [f"## {TAILS}", table(TAIL_COLUMNS, rows_of_tails, range(3, len(TAIL_COLUMNS)))]
    if not found.matches:
        parts.append("No series of these runs can be set against each other.")
    if found.matches:
        parts.append(BASIS)
    parts.append("\n".join(f"- **not compared**: {text(sentence)}" for sentence in found.refused))
    parts.append("\n".join(f"- **note**: {text(sentence)}" for sentence in found.notes))
    return "\n\n".join(part for part in parts if part)


def over_sizes(found: Contrast) -> list[Match]:
    """Return the groups of series that have more than one size, or none, in common."""
    return [match for match in found.matches if len(match.sizes) != 1]


def at_one_size(found: Contrast) -> list[Match]:
    """Return the groups that have a single size in common: one row of a table says all of them."""
    return [match for match in found.matches if len(match.sizes) == 1]


def one_size_columns(found: Contrast) -> tuple[str, ...]:
    """Return the columns of the table of groups with one size."""
    return ("what", "size", *(side.letter for side in found.sides), "who is faster")


def one_size_rows(found: Contrast) -> list[tuple[str, ...]]:
    """Return one row per group with one size: rates where they count the same bytes, else times."""
    return [_one_size_row(found, match) for match in at_one_size(found)]


def _one_size_row(found: Contrast, match: Match) -> tuple[str, ...]:
    (nbytes,) = match.sizes
    times, moved = match.times(nbytes), {curve.letter: curve.moved_at(nbytes) for curve in match.curves}
    rated = match.curves[0].quantity == "bandwidth" and all(moved.values())
    rated = rated and (nbytes == 0 or len(set(moved.values())) == 1)
    shown = {
        letter: format_rate(moved[letter] / time.seconds) if rated else time_text(time)
        for letter, time in times.items()
    }
    cells = [shown.get(side.letter, NO_INTERVAL) for side in found.sides]
    apart = "; ".join(f"{letter}: {words}" for letter, words in differing(match).items() if words)
    who = "; ".join(fight.sentence for fight in match.duels)
    return (
        f"{match.title}{f' ({apart})' if apart else ''}",
        format_size(nbytes) if nbytes else "not stated",
        *cells,
        who,
    )


def tail_rows(found: Contrast) -> list[tuple[str, ...]]:
    """Return a row per series and size of latencies whose settings were asked to be compared: their jitter."""
    return [
        (title, format_size(record.nbytes), f"{curve.letter}: {curve.name}", *_tail_cells(record))
        for match, title in zip(found.matches, _apart([match.title for match in found.matches]), strict=True)
        for nbytes in (match.sizes if match.by and match.curves[0].quantity == "latency" else ())
        for curve in match.curves
        for record in curve.records
        if record.nbytes == nbytes and record.time.known
    ]


def _apart(titles: Sequence[str]) -> list[str]:
    """Return of each title the words that not all have: a table says the rest once."""
    words = [title.partition(": ")[2].split(", ") for title in titles]
    common = set(words[0]).intersection(*words[1:]) if words else set()
    probes = [title.partition(": ")[0] for title in titles]
    left = [", ".join(word for word in each if word and word not in common) for each in words]
    return [f"{probe}: {rest}" if rest else probe for probe, rest in zip(probes, left, strict=True)]


def _tail_cells(record: Record) -> tuple[str, ...]:
    tails = record.tails
    values = (record.time.median, tails.p95, tails.p99, tails.p999)
    return (*(NO_INTERVAL if value is None else format_seconds(value) for value in values), str(tails.n))


def _one_size(found: Contrast) -> list[str]:
    cautions = list(dict.fromkeys(sentence for match in at_one_size(found) for sentence in match.cautions))
    said = "\n".join(f"- **mind**: {text(sentence)}" for sentence in cautions)
    numeric = range(1, len(found.sides) + 2)
    return [part for part in (said, table(one_size_columns(found), one_size_rows(found), numeric)) if part]


def side_text(side: Side) -> str:
    """Return one run of the comparison in a line, with whose numbers they are."""
    return text(f"{side.letter}: {side.name}: {side.what}. Numbers: {side.whose}")


def sentences(match: Match) -> list[str]:
    """Return what sets the series apart, then who is faster where, pair by pair."""
    apart = differing(match)
    said = ["; ".join(f"{letter}: {words}" for letter, words in apart.items() if words)]
    if not match.duels:
        ranges = "; ".join(
            f"{curve.letter} {format_size(curve.sizes[0])} to {format_size(curve.sizes[-1])}" for curve in match.curves
        )
        said.append(f"no size lies in the range of two of them: {ranges}")
    said += [f"{found.a.letter} against {found.b.letter}: {found.sentence}" for found in match.duels]
    return [sentence for sentence in said if sentence]


def columns(match: Match) -> tuple[str, ...]:
    """Return the columns of the table by size: two series have a ratio with its interval, more have a fastest."""
    letters = tuple(curve.letter for curve in match.curves)
    if len(letters) == 2:
        return ("size", *letters, f"{letters[1]} / {letters[0]}", "95 % interval", "faster")
    return ("size", *letters, "fastest", "times as fast as the next")


def rows(match: Match) -> list[tuple[str, ...]]:
    """Return one row of text per size."""
    if len(match.curves) == 2:
        return [_pair_row(match, ratio) for found in match.duels for ratio in found.ratios]
    return [_ranking(match, nbytes) for nbytes in match.sizes]


def cost_columns(match: Match) -> tuple[str, ...]:
    """Return the columns of the table of asked-for messages."""
    return ("message", *(curve.letter for curve in match.curves), "fastest", "the others need")


def cost_rows(match: Match, at: Sequence[int]) -> list[tuple[str, ...]]:
    """Return one row per asked-for message: each one's time, the fastest, and how much longer the others need."""
    return [_cost(match, nbytes) for nbytes in at]


def _match(match: Match, at: Sequence[int], every_size: bool) -> list[str]:
    parts = ["\n".join(f"- {text(sentence)}" for sentence in sentences(match))]
    parts.append("\n".join(f"- **mind**: {text(sentence)}" for sentence in match.cautions))
    if at:
        count = len(match.curves)
        parts.append(table(cost_columns(match), cost_rows(match, at), range(1, count + 1)))
    if match.sizes and every_size:
        pair = len(match.curves) == 2
        parts.append(table(columns(match), rows(match), range(1, len(match.curves) + (3 if pair else 1))))
    return parts


def _pair_row(match: Match, ratio: Ratio) -> tuple[str, ...]:
    times = match.times(ratio.nbytes)
    ends = NO_INTERVAL if ratio.low is None or ratio.high is None else f"{ratio.low:.3f}–{ratio.high:.3f}"
    shown = [time_text(times[curve.letter]) for curve in match.curves]
    return (format_size(ratio.nbytes), *shown, f"{ratio.value:.3f}", ends, ratio.verdict)


def _ranking(match: Match, nbytes: int) -> tuple[str, ...]:
    times = match.times(nbytes)
    order = sorted(times, key=lambda letter: times[letter].seconds)
    verdict = _verdict(match, order[0], order[1], nbytes)
    lead = f"{times[order[1]].seconds / times[order[0]].seconds:.2f} ({order[1]})"
    shown = [time_text(times[c.letter]) if c.letter in times else NO_INTERVAL for c in match.curves]
    return (format_size(nbytes), *shown, order[0] if verdict == order[0] else f"{order[0]} ({verdict})", lead)


def _verdict(match: Match, first: str, second: str, nbytes: int) -> str:
    a, b = (next(curve for curve in match.curves if curve.letter == letter) for letter in (first, second))
    return ratio_at(a, b, nbytes).verdict


def _cost(match: Match, nbytes: int) -> tuple[str, ...]:
    times = match.times(nbytes)
    shown = [time_text(times[c.letter]) if c.letter in times else "not measured" for c in match.curves]
    if not times:
        return (format_size(nbytes), *shown, NO_INTERVAL, NO_INTERVAL)
    best = min(times, key=lambda letter: times[letter].seconds)
    more = [_more(letter, time, times[best]) for letter, time in times.items() if letter != best]
    return (format_size(nbytes), *shown, best, ", ".join(more) or NO_INTERVAL)


def _more(letter: str, time: Time, best: Time) -> str:
    return f"{letter} {format_seconds(time.seconds - best.seconds)} more ({time.seconds / best.seconds:.2f}x)"


def time_text(time: Time) -> str:
    """Return a time, with ≈ where it lies between two measured sizes."""
    return f"{'' if time.measured else '≈ '}{format_seconds(time.seconds)}"


def parse_sizes(listed: str) -> list[int]:
    """Return the sizes of "8K,1M,1G"; UserError for what is none."""
    sizes = [parse_size(part) for part in listed.split(",") if part.strip()]
    if not sizes or min(sizes) <= 0:
        raise UserError(f"--at {listed}: give sizes of at least one byte, as in --at 8K,1M,1G")
    return sizes
