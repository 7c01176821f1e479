"""The gallery says what the commands print."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from iobench.cli import app
from tests.conftest import ROOT
from typer.testing import CliRunner

LOGS = ROOT / "tests" / "fixtures" / "logs"
GALLERY = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")


def part(name: str) -> str:
    return GALLERY.partition(f"<!-- {name}: begin -->\n")[2].partition(f"<!-- {name}: end -->")[0]


@pytest.mark.parametrize("name", ["wrong", "early", "alone", "matrix"])
def test_imports_print_what_the_gallery_shows(name: str, tmp_path: Path) -> None:
    shown = part(name).strip("`\n").split("\n")
    log = shown[0].removeprefix("$ iobench import ")
    done = CliRunner().invoke(app, ["import", str(LOGS / log), "--out", str(tmp_path)])
    assert shown[1:] == done.output.strip().split("\n")[:-1]  # the last line names the folder
    assert done.exit_code == (3 if name == "wrong" else 0)


def test_the_comparison_of_three_ways_is_the_gallerys() -> None:
    command = re.search(r"\$ iobench compare (.*?) --out", GALLERY.replace("\\\n", " "), re.DOTALL)
    assert command
    words = [str(LOGS / word) if word.endswith(".txt") else word for word in command[1].split()]
    done = CliRunner().invoke(app, ["compare", *words])
    assert part("three ways") in done.output


def test_the_verdict_on_rates_above_the_limit_is_the_gallerys() -> None:
    shown = part("above").strip("`\n").split("\n")
    log = shown[0].removeprefix("$ iobench check ")
    done = CliRunner().invoke(app, ["check", str(LOGS / log)])
    assert [line for line in done.output.split("\n") if line.startswith("impossible")] == shown[1:]
    others = sum(line.startswith("unproven") for line in done.output.split("\n"))
    assert f"The other {others} points are *unproven*" in GALLERY


def test_figures_are_small_and_there() -> None:
    for name in re.findall(r"\]\((gallery/[^)]+)\)", GALLERY):
        assert (ROOT / "docs" / name).stat().st_size < 100_000
