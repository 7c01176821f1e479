"""The command line from outside: every verb, every kind of bad input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import iobench
import pytest
from iobench import record
from tests.conftest import Cli, cli_environment
from tests.make_run import demo_run, save

QUICK = ("--launches", 1, "-a", "kind=empty")


def one_line(process: subprocess.CompletedProcess[str], *words: str) -> None:
    """Assert exit 2 and exactly one line on stderr that holds ``words``."""
    assert process.returncode == 2, process.stderr + process.stdout
    assert process.stderr.count("\n") == 1, process.stderr
    assert "Traceback" not in process.stderr
    for word in words:
        assert word in process.stderr


def test_version_and_help(cli: Cli) -> None:
    assert cli("--version").stdout.strip() == f"iobench {iobench.__version__}"
    shown = cli("--help").stdout
    for verb in ("list", "topology", "run", "report", "fit", "check", "compare", "crosscheck"):
        assert verb in shown


@pytest.mark.parametrize("arguments", [("--help",), ("list",), ("list", "null")])
def test_light_verbs_import_nothing_heavy(arguments: tuple[str, ...], tmp_path: Path) -> None:
    code = (
        "import sys, runpy; sys.argv = ['iobench', *sys.argv[1:]]\n"
        "try: runpy.run_module('iobench', run_name='__main__')\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'cupy', 'numba', 'scipy', 'matplotlib', 'numpy'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        env=cli_environment(),
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_list_names_every_probe_and_the_ways_through_one(cli: Cli) -> None:
    shown = cli("list").stdout
    for name in ("null", "dram", "weights", "allreduce"):
        assert f"\n{name}" in f"\n{shown}"
    assert "iobench run allreduce -a transport=nvlink" in shown
    assert "kind" in cli("list", "null").stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "dramm"), ("no probe 'dramm'", "did you mean dram")),
        (("run", "nvlink"), ("one way through a probe", "iobench run allreduce -a transport=nvlink")),
        (("run", "null", "-a", "knd=empty"), ("no axis 'knd'", "did you mean kind")),
        (("run", "null", "-a", "kind=emtpy"), ("no value 'emtpy'", "did you mean empty")),
        (("run", "null", "-a", "kind"), ("malformed", "axis=value")),
        (("run", "null", "-a", "nbytes=8:4"), ("malformed",)),
        (("run", "null", "-a", "nbytes=many"), ("not a size",)),
        (("run", "null", "dram", "-a", "bogus=1"), ("no probe of this run has an axis 'bogus'",)),
        (("run", "null", "--budget", "soon"), ("not a time",)),
        (("run", "--resume", "absent"), ("cannot read",)),
        (("run", "null", "--probes", "absent"), ("no folder",)),
        (("report", "absent"), ("cannot read",)),
        (("compare", "absent", "absent"), ("cannot read",)),
        (("crosscheck", "drams"), ("no crosscheck 'drams'",)),
        (("list", "nul"), ("did you mean null",)),
        (("topology", "--root", "absent"), ("no folder",)),
        (("topology", "--from", "nowhere", "--to", "machine"), ("no node 'nowhere'",)),
    ],
)
def test_bad_input_is_one_line(cli: Cli, arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    one_line(cli(*arguments), *words)


def test_an_existing_run_is_not_overwritten(cli: Cli, tmp_path: Path) -> None:
    assert cli("run", "null", "--out", "r", *QUICK, "--no-report").returncode == 0
    before = (tmp_path / "r" / record.FILE_NAME).read_bytes()
    one_line(cli("run", "null", "--out", "r", *QUICK), "--resume")
    assert (tmp_path / "r" / record.FILE_NAME).read_bytes() == before


def test_no_write_permission(cli: Cli, tmp_path: Path) -> None:
    if os.getuid() == 0:
        one_line(cli("run", "null", "--out", "/proc/iobench", *QUICK), "cannot write", "--out")
    else:
        (tmp_path / "locked").mkdir(mode=0o500)
        one_line(cli("run", "null", "--out", "locked/r", *QUICK), "cannot write", "--out")


def test_damaged_and_foreign_files(cli: Cli, tmp_path: Path) -> None:
    for name, content in (
        ("foreign", b"# nThread 1\n"),
        ("binary", bytes(range(256)) * 9),
        ("empty", b""),
        ("list", b"[1]\n"),
    ):
        (tmp_path / name).write_bytes(content)
        one_line(cli("report", name), name)


def test_resume_refuses_another_machine_and_a_changed_probe(cli: Cli, tmp_path: Path) -> None:
    assert cli("run", "null", "--out", "r", *QUICK, "--no-report").returncode == 0
    file = tmp_path / "r" / record.FILE_NAME
    header, *rest = file.read_text().splitlines()
    data = json.loads(header)
    data["probes"]["null"]["source"] = "sha256:0"
    file.write_text("\n".join([json.dumps(data), *rest, ""]))
    one_line(cli("run", "--resume", "r"), "has changed")
    data["machine"]["name"] = "elsewhere"
    file.write_text("\n".join([json.dumps(data), *rest, ""]))
    one_line(cli("run", "--resume", "r"), "elsewhere")


def test_dry_run_lists_points_and_measures_nothing(cli: Cli, tmp_path: Path) -> None:
    done = cli("run", "null", "--dry-run", "-a", "kind=wait", "-a", "nbytes=1K:4K")
    assert done.returncode == 0, done.stderr
    assert "nbytes=2 KiB" in done.stdout
    assert "3 points, 9 measurements" in done.stdout
    assert not (tmp_path / "reports").exists()


def test_default_folder_is_named_after_the_machine(cli: Cli, tmp_path: Path) -> None:
    assert cli("run", "null", *QUICK, "--no-report").returncode == 0
    (file,) = (tmp_path / "reports").glob("*/*/records.jsonl")
    assert file.parent.parent.name == iobench.load(file).machine


def test_compare_with_itself_is_all_the_same(cli: Cli, tmp_path: Path) -> None:
    assert cli("run", "null", "--out", "r", *QUICK, "--no-report").returncode == 0
    done = cli("compare", "r", "r")
    assert done.returncode == 0, done.stderr
    assert "same" in done.stdout


def test_a_users_own_probe(cli: Cli, tmp_path: Path) -> None:
    import iobench.paths

    (tmp_path / "mine").mkdir()
    source = (iobench.paths.data_dir("probes") / "null.py").read_text()
    (tmp_path / "mine" / "own.py").write_text(source)
    assert "own" in cli("list", "--probes", "mine").stdout
    assert cli("run", "own", "--probes", "mine", "--out", "r", *QUICK, "--no-report").returncode == 0
    assert iobench.load(tmp_path / "r").records[0].probe == "own"
    (tmp_path / "mine" / "bad.py").write_text("x = 1\n")
    one_line(cli("run", "bad", "--probes", "mine"), "is no probe")
    (tmp_path / "mine" / "bad.py").write_text("def broken(:\n")
    one_line(cli("run", "bad", "--probes", "mine"), "bad.py:1")


def test_a_closed_output_harms_nothing(tmp_path: Path) -> None:
    """The records file must not get the number of the closed file: what is printed would go into it."""
    command = f"{sys.executable} -m iobench run null --out r {' '.join(map(str, QUICK))} >&-"
    done = subprocess.run(
        ["sh", "-c", command], cwd=tmp_path, env=cli_environment(), stderr=subprocess.PIPE, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert iobench.load(tmp_path / "r").warnings == []
    assert (tmp_path / "r" / "report.md").exists()


def test_a_home_that_cannot_be_written_is_no_news(cli: Cli, tmp_path: Path) -> None:
    """The list of fonts is made then, in a folder that is thrown away; nobody asked how."""
    save(demo_run(), tmp_path / "r")
    (tmp_path / "home").write_text("no folder")
    places = dict.fromkeys(("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "MPLCONFIGDIR"), str(tmp_path / "home"))
    done = cli("report", "r", env={**cli_environment(), **places})
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="needs /dev/full")
def test_an_output_that_is_full_is_one_line(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "iobench", "list"], cwd=tmp_path, env=cli_environment(), stdout=full,
            stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == "iobench: No space left on device: the output; make room and run it again\n"


def test_missing_package_is_named(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['scipy'] = None\n"
        "import importlib.abc\n"
        "class Block(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name.partition('.')[0] == 'scipy':\n"
        "            raise ModuleNotFoundError('No module named scipy', name='scipy')\n"
        "del sys.modules['scipy']; sys.meta_path.insert(0, Block())\n"
        "sys.argv = ['iobench', 'report', 'r']\n"
        "from iobench.cli import main; main()"
    )
    save(demo_run(), tmp_path / "r")
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=cli_environment(), cwd=tmp_path, check=False
    )
    one_line(done, "lacks scipy", "pip install scipy")
