"""The same records give the same bytes: models, report, tables and verdicts, whatever Python's hash seed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from iobench.units import KIB
from tests.conftest import ROOT

from make_run import chase, hockney, run_of, save

VERBS = (("report", "r"), ("fit", "r"), ("check", "r"), ("claims", str(ROOT / "topologies/claims/sits2026.csv")))


def outcome(folder: Path, seed: str) -> dict[str, bytes]:
    """Return everything that the verbs print and write on the same records."""
    made = chase([4 * KIB << step for step in range(8)])
    made += hockney("allreduce", [8 << step for step in range(0, 24, 3)], 2e-4, 1.2e9, point={"ranks": 2})
    save(run_of(made), folder / "r")
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed, "MPLCONFIGDIR": str(folder / "mpl")}
    found = {}
    for verb in VERBS:
        done = subprocess.run(
            [sys.executable, "-m", "iobench", *verb], cwd=folder, env=env, capture_output=True, check=False
        )
        assert done.returncode in (0, 3), done.stderr
        found[verb[0]] = done.stdout
    files = [path for path in (folder / "r").rglob("*") if path.is_file()]
    return found | {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_two_runs_of_the_command_line_give_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, second = outcome(tmp_path / "a", "1"), outcome(tmp_path / "b", "4242")
    assert {"r/models.json", "r/report.md", "r/report.html"} <= set(first)
    assert any(name.endswith(".svg") for name in first)
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []
