"""Small helpers for text that tools printed: colours and line ends off, findings noted once."""

from __future__ import annotations

import re

from iobench.topology.graph import Topology

_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\[4m(?=GPU|\S)|\[0m")
# whatever moves a terminal's cursor or changes what a reader sees: control characters, direction overrides
_UNSEEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
_ADDRESS = re.compile(r"(?:([0-9A-Fa-f]{4,8}):)?([0-9A-Fa-f]{2}):([0-9A-Fa-f]{2})\.([0-7])")
_QUOTE = re.compile(r"^ ?(?:>{1,20}(?: |$))+", re.MULTILINE)  # quoted in mail
_REMARK = re.compile(r"(?<=[^\s])[ \t]{2,40}(?:# |#?[ \t]?<--|\u2190)[^\n]{0,400}$", re.MULTILINE)  # a writer's own
_MOST_LINE = 4096  # no tool prints a longer one; a longer one would make patterns slow


def clean(text: str) -> str:
    """Return the text without terminal colours, carriage returns and lines longer than any tool prints."""
    plain = _UNSEEN.sub("", _ESCAPE.sub("", text)).replace("\r\n", "\n").replace("\r", "\n")
    plain = _REMARK.sub("", _QUOTE.sub("", plain))
    if plain.lstrip()[:1] in "[{<":
        return plain  # JSON or XML, which may be one long line
    return "\n".join(line for line in plain.split("\n") if len(line) <= _MOST_LINE)


def address(text: str | None) -> str | None:
    """Return a PCI address as sysfs writes it ("0000:17:00.0"), None where it is none or an unset one (ffffffff)."""
    match = _ADDRESS.fullmatch((text or "").strip())
    if not match or (match[1] or "").lower() == "ffffffff":
        return None
    return f"{int(match[1] or '0', 16):04x}:{match[2]}:{match[3]}.{match[4]}".lower()


def finding(graph: Topology, sentence: str) -> None:
    """Note something that the reader of the graph should know, once."""
    found = graph.facts.setdefault("findings", [])
    if sentence not in found:
        found.append(sentence)


def whole(text: str | None) -> int | None:
    """Return a whole number that is not negative, else None: -1 and N/A are unknown."""
    word = (text or "").strip()
    return int(word) if word.isascii() and word.isdigit() and len(word) <= 19 else None


def one_node(text: str | None) -> int | None:
    """Return the one NUMA node of an affinity; several ("0-1"), none ("N/A") or -1 are unknown."""
    return whole(text)
