"""docs/logs.md says which tools' logs are read and which fixture checks it: both hold."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from iobench.errors import UserError
from iobench.importers import foreign, load
from iobench.importers.registry import all_formats, read_log

ROOT = Path(__file__).parent.parent
TABLE = re.compile(r"^\| ([^|`]+?) \| ([^|]+) \| (`[^|]+`) \|$", re.MULTILINE)
ROWS = {tool: re.findall(r"`([^`]+)`", names) for tool, _, names in TABLE.findall((ROOT / "docs/logs.md").read_text())}
FILES = [(tool, name) for tool, names in ROWS.items() for name in names if not name.startswith("tests/")]


def test_every_format_has_its_row() -> None:
    assert set(ROWS) == {fmt.TITLE for fmt in all_formats().values()}
    assert all((ROOT / name).exists() for names in ROWS.values() for name in names if name.startswith("tests/"))


@pytest.mark.parametrize(("tool", "name"), FILES)
def test_a_fixture_is_of_the_tool_whose_row_names_it(tool: str, name: str) -> None:
    log = load(ROOT / "tests/fixtures/logs" / name)
    if "refused" in name:
        with pytest.raises(UserError, match="terse"):
            read_log(log)
        return
    imported = read_log(log)
    assert tool == all_formats()[imported.format].TITLE
    assert imported.lines or imported.machine or imported.topology or imported.unread


@pytest.mark.parametrize(
    "text", ["<nvidia_smi_log>\n", "Roundtrip benchmark\n", "[CUDA Bandwidth Test] - Starting...\n"]
)
def test_what_is_not_read_is_known_by_name(text: str) -> None:
    assert foreign.known(text)
