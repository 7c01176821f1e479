"""The report as GitHub-flavoured Markdown; the figures lie beside it as SVG files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from iobench.report import models, words
from iobench.report.view import Section, View

KEY_COLUMNS = ("probe", "figure", "what", "value", "95 %", "of limit", "at", "verdict")
_SPECIAL = re.compile(r"([\\`*\[\]<>#|~$]|(?<!\w)_|_(?!\w))")
_LINE_BREAKS = re.compile(r"\s*[\r\n\u2028\u2029]+\s*")


def text(value: str) -> str:
    """Return ``value`` so that Markdown and HTML in it show as they are, on one line, safe in a table."""
    safe = _SPECIAL.sub(r"\\\1", _LINE_BREAKS.sub(" ", value)).replace("&", "&amp;")
    # a bare address must not become a link, nor a name a mention of somebody
    return safe.replace("://", ":&#8203;//").replace("@", "@&#8203;").replace("www.", "www&#8203;.")


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], numeric: Iterable[int] = ()) -> str:
    """Return a Markdown table; columns in ``numeric`` are set to the right."""
    right = set(numeric)
    lines = [_row(columns), _row(["---:" if i in right else "---" for i in range(len(columns))], escape=False)]
    return "\n".join([*lines, *map(_row, rows)])


def _row(cells: Sequence[str], escape: bool = True) -> str:
    return f"| {' | '.join(text(cell) if escape else cell for cell in cells)} |"


def render(view: View, figures: str) -> str:
    """Return the report; ``figures`` is the folder of the SVG files, relative to it."""
    parts = [
        f"# {text(view.machine)}",
        text(view.paragraph),
        f"{text(view.created)}, run {text(view.run_id)}",
        "## Verdict",
        ", ".join(f"{count} {status}" for status, count in view.counts.items()) or "No point was measured.",
        _notices(view),
        *_keys(view),
        *_models(view),
        *(part for section in view.sections for part in _section(section, figures)),
        "## Topology",
        _fenced(view.topology),
        "## How the numbers are made",
        *words.MADE,
        "### Definitions",
        "\n".join(f"- **{term}**: {meaning}" for term, meaning in words.DEFINITIONS),
        *_facts(view),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _notices(view: View) -> str:
    if not view.notices:
        return "No warnings: every path is proven, every number below its limit, every interval narrow."
    return "\n".join(f"- **{notice.kind}**: {text(notice.text)}" for notice in view.notices)


def _keys(view: View) -> list[str]:
    if not view.keys:
        return []
    rows = [(k.probe, k.chart, k.what, k.value, k.spread, k.fraction, k.where, k.status) for k in view.keys]
    return ["## Key figures", table(KEY_COLUMNS, rows, (3, 4, 5))]


def _models(view: View) -> list[str]:
    found = view.models
    rows = table(models.COLUMNS, found.rows, models.NUMERIC) if found.rows else "No series has a model."
    said = [f"- **{text(name)}**: {text(sentence)}" for name, sentence in found.findings]
    said += [f"- **{text(name)}**: no model. {text(why)}" for name, why in found.missing]
    return ["## Fitted models", rows, "\n".join(said)]


def _section(section: Section, figures: str) -> list[str]:
    parts = [f"## {text(section.probe)}", text(section.title)]
    for figure in section.figures:
        alt = text(figure.alt)
        parts += [f"### {text(figure.title)}", f"![{alt}]({figures}/{figure.name}.svg)", text(figure.caption)]
    for matrix in section.matrices:
        parts += [f"### {text(matrix.title)}", table(matrix.columns, matrix.rows, range(1, len(matrix.columns)))]
    points = section.table
    body = [text(" ".join(points.shared)), table(points.columns, (row.cells for row in points.rows), points.numeric)]
    for title, entries in points.legends:
        body.append(f"{title}: " + "; ".join(f"**{letter}** {text(entry)}" for letter, entry in entries) + ".")
    if section.fold:
        body = [f"<details><summary>All {len(points.rows)} points</summary>", *body, "</details>"]
    return parts + body


def _facts(view: View) -> list[str]:
    if not view.facts:
        return []
    opening = f"<details><summary>{len(view.facts)} facts</summary>"
    return ["## Facts of machine and run", opening, table(("fact", "value"), view.facts), "</details>"]


def _fenced(body: str) -> str:
    """Return a code block whose fence is longer than any run of backticks in it."""
    longest = max((len(run) for run in re.findall(r"`+", body)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{body.rstrip()}\n{fence}"
