"""Slips of the pen at the command line: each is one line that says what to do next, in any encoding."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from iobench.cli import main
from iobench.errors import Unavailable, UserError
from tests.conftest import Cli, cli_environment
from tests.make_run import demo_run, save


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("topology", "--from", "mem:0"), ("a path has two ends", "--to")),
        (("published", "h100-nvlin"), ("did you mean", "h100-nvlink")),
        (("crosscheck", "drams"), ("did you mean dram?",)),
        (("run", "null", "--out", "r", "--scratch", "/no/such/scratch"), ("no folder /no/such", "mount its disk")),
        (
            ("run", "null", "--out", "r", "--scratch", "/dev/null"),
            ("cannot make --scratch /dev/null", "another folder"),
        ),
        (
            ("compare", "published:h100-nvlink", "published:a100-nvlink", "-a", "rank=8"),
            ("no point has an axis 'rank' (did you mean ranks?)",),
        ),
        (
            ("compare", "published:h100-nvlink", "published:a100-nvlink", "-a", "ranks=17"),
            ("no point has ranks=17; there are 2, 4, 8",),
        ),
    ],
)
def test_a_slip_is_one_line(cli: Cli, arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    done = cli(*arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert all(word in done.stderr for word in words), done.stderr


def test_more_launches_than_any_machine_has_time_for_are_refused_at_once(cli: Cli) -> None:
    done = cli("run", "null", "--launches", 99999999, "--dry-run")
    assert done.returncode == 2
    assert "--launches" in done.stderr


def test_a_folder_that_takes_no_models_is_told_with_the_option(tmp_path: Path) -> None:
    from iobench import fit

    with pytest.raises(UserError, match="--out"):
        fit.save([], tmp_path / "absent" / "models.json")


@pytest.mark.parametrize("encoding", ["ascii", "iso-8859-1", "utf-8"])
def test_no_figure_is_lost_to_an_encoding(encoding: str, tmp_path: Path) -> None:
    """Half widths have a ±, ranges a dash: what a terminal lacks becomes a question mark, never a traceback."""
    save(demo_run(), tmp_path)
    command = [sys.executable, "-m", "iobench", "report", str(tmp_path)]
    environment = cli_environment() | {"PYTHONIOENCODING": encoding}
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr
    assert {"ascii": b"?", "iso-8859-1": "±".encode("latin-1"), "utf-8": "±".encode()}[encoding] in done.stdout
    assert "±" in (tmp_path / "report.md").read_text(encoding="utf-8")


def test_a_reader_that_goes_away_costs_no_report(tmp_path: Path) -> None:
    save(demo_run(), tmp_path)
    read, write = os.pipe()
    os.close(read)  # as head does once it has its lines
    command = [sys.executable, "-m", "iobench", "report", str(tmp_path)]
    done = subprocess.run(command, env=cli_environment(), stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert "Traceback" not in done.stderr
    assert {"report.md", "report.html", "models.json"} <= {path.name for path in tmp_path.iterdir()}


def test_resuming_a_complete_run_leaves_it_as_it_is(cli: Cli, tmp_path: Path) -> None:
    run = ("null", "-a", "kind=skip", "--launches", 1, "--no-report")
    assert cli("run", *run, "--out", "r").returncode == 0
    file = tmp_path / "r" / "records.jsonl"
    before = file.read_bytes()
    done = cli("run", "--resume", "r", "--no-report")
    assert done.returncode == 0, done.stderr
    assert "points of 1 probe, up to" in done.stdout
    assert "resumed" not in done.stdout
    assert file.read_bytes() == before


def test_what_this_machine_lacks_is_one_line_outside_of_a_run_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lacking(*_: object) -> None:
        raise Unavailable("needs an active RDMA port: this machine has none")

    monkeypatch.setattr("iobench.rdma.server.run", lacking)
    monkeypatch.setattr(sys, "argv", ["iobench", "run", "rdma", "--server"])
    with pytest.raises(SystemExit) as status:
        main()
    assert status.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith("iobench: not on this machine: needs an active RDMA port")
