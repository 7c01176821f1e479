"""Small readers of sysfs and procfs: what is not there, not readable or odd is None, never 0."""

from __future__ import annotations

from pathlib import Path


def text(path: Path) -> str | None:
    """Return the file's text without surrounding blanks, None where it can't be read or is empty."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None


def number(path: Path) -> int | None:
    """Return the whole number that the file holds, None where it holds anything else."""
    return integer(text(path))


def integer(value: str | None) -> int | None:
    """Return ``value`` as a whole number, None where it is none."""
    try:
        return int(value or "")
    except ValueError:
        return None


def lines(path: Path) -> list[str]:
    """Return the file's lines, none where it can't be read."""
    return (text(path) or "").splitlines()


def counters(path: Path) -> dict[str, int]:
    """Return ``name value`` lines (cpu.stat, vmstat, meminfo with its colon and kB) as a dict."""
    found: dict[str, int] = {}
    for line in lines(path):
        words = line.replace(":", " ").split()
        value = integer(words[1]) if len(words) > 1 else None
        if value is not None:
            found[words[0]] = value
    return found


def chosen(path: Path) -> str | None:
    """Return the bracketed word of a kernel setting such as ``always [madvise] never``."""
    words = (text(path) or "").split()
    marked = [word[1:-1] for word in words if word.startswith("[") and word.endswith("]")]
    return marked[0] if marked else None


def number_list(value: str | None) -> list[int] | None:
    """Return ``0-3,8`` as [0, 1, 2, 3, 8]; None where it is empty or no such list."""
    found: list[int] = []
    try:
        for part in (value or "").split(","):
            low, _, high = part.strip().partition("-")
            found += range(int(low), int(high or low) + 1)
    except ValueError:
        return None
    return found


def known(**facts: object) -> dict[str, object]:
    """Return the facts that are known: None and empty containers are left out."""
    return {name: value for name, value in facts.items() if value is not None and value != {} and value != []}
