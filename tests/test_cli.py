"""The command line from outside: every verb, every kind of bad input, interrupts, resume."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import iobench
import pytest
from iobench import record
from tests.conftest import Cli, cli_environment, hearing_interrupts
from tests.make_run import demo_run, save

MEASURED = ("ok", "suspect")  # suspect: others used the machine meanwhile, which no test can forbid
QUICK = ("--launches", 1, "-a", "kind=empty")


def one_line(process: subprocess.CompletedProcess[str], *words: str) -> None:
    """Assert exit 2 and exactly one line on stderr that holds ``words``."""
    assert process.returncode == 2, process.stderr + process.stdout
    assert process.stderr.count("\n") == 1, process.stderr
    assert "Traceback" not in process.stderr
    for word in words:
        assert word in process.stderr


def start(tmp_path: Path, *args: object) -> subprocess.Popen[str]:
    """Start a run that hears Ctrl-C."""
    command = [sys.executable, "-m", "iobench", "run", *map(str, args)]
    pipe = subprocess.PIPE
    with hearing_interrupts():
        return subprocess.Popen(command, cwd=tmp_path, env=cli_environment(), text=True, stdout=pipe, stderr=pipe)


def wait_for_lines(folder: Path, count: int, seconds: float = 300) -> None:
    """Wait until the run's file holds ``count`` lines, its header included."""
    end = time.monotonic() + seconds
    file = folder / record.FILE_NAME
    while not (file.exists() and file.read_bytes().count(b"\n") >= count):
        assert time.monotonic() < end, "the run wrote nothing"
        time.sleep(0.02)


def workers(folder: Path) -> list[str]:
    """Return the living worker processes whose working folder is ``folder``."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                text = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                here = (entry / "cwd").readlink() == folder
            except OSError:
                continue
            if here and "iobench.worker" in text and state != "Z":
                found.append(text)
    return found


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


def test_run_writes_records_models_and_report(cli: Cli, tmp_path: Path) -> None:
    done = cli("run", "null", "--out", "r", "--launches", 2, "-a", "kind=empty,wait")
    assert done.returncode == 0, done.stderr
    run = iobench.load(tmp_path / "r")
    assert all(r.status in MEASURED for r in run)
    assert all(len(r.lines) >= 2 for r in run)  # a disturbed point is measured once more
    assert not (tmp_path / "r" / "logs").exists()
    assert {f.name for f in (tmp_path / "r").iterdir()} >= {"records.jsonl", "report.md", "report.html", "models.json"}
    assert not (tmp_path / "r" / ".scratch").exists()
    assert "report:" in done.stdout
    assert done.stdout.count("for the first point, kind=") == 1  # a number at once, not only at the end


def test_a_run_of_the_known_workload_is_fitted(cli: Cli, tmp_path: Path) -> None:
    """What the model must be is in test_probe_null.py, on a clock that nobody stops."""
    done = cli("run", "null", "--out", "r", "--launches", 1, "-a", "kind=wait", "-a", "nbytes=1K:1M")
    assert done.returncode == 0, done.stderr
    (model,) = [f.model for f in iobench.fit(iobench.load(tmp_path / "r")) if f.model]
    # Points that others disturbed are left out of a fit while enough are left without them.
    assert model.kind == "hockney"
    assert 1024 <= model.valid[0] < model.valid[1] <= 1 << 20


def test_faults_become_lines_and_exit_status(cli: Cli, tmp_path: Path) -> None:
    options = ("--launches", 1, "--deadline", 12)  # so that a busy machine does not keep the others silent for as long
    done = cli("run", "null", "--out", "r", *options, "-a", "kind=fail,die,hang,skip,empty")
    assert done.returncode == 1
    by_kind = {r.point["kind"]: r for r in iobench.load(tmp_path / "r")}
    assert "planted failure" in by_kind["fail"].reason
    assert "SIGKILL" in by_kind["die"].reason
    assert "deadline" in by_kind["hang"].reason
    assert by_kind["skip"].status == "skipped"
    assert by_kind["empty"].status in MEASURED
    assert [by_kind[k].status for k in ("fail", "die", "hang")] == ["failed"] * 3
    assert not workers(tmp_path)


def test_wrong_data_has_its_own_exit_status(cli: Cli, tmp_path: Path) -> None:
    done = cli("run", "null", "--out", "r", "--launches", 1, "-a", "kind=wrong,empty")
    assert done.returncode == 3
    (wrong,) = [r for r in iobench.load(tmp_path / "r") if r.point["kind"] == "wrong"]
    assert wrong.wrong_data
    assert wrong.status == "failed"
    assert cli("check", "r").returncode == 3


def test_skipped_alone_exits_0(cli: Cli, tmp_path: Path) -> None:
    done = cli("run", "null", "--out", "r", "--launches", 1, "-a", "kind=skip")
    assert done.returncode == 0, done.stderr
    assert "no machine has" in done.stdout
    (line,) = iobench.load(tmp_path / "r").records
    assert line.status == "skipped"


def test_impossible_rate_is_found(cli: Cli, tmp_path: Path) -> None:
    cli("run", "null", "--out", "r", "--launches", 1, "-a", "kind=fast", "--no-report")
    text = (tmp_path / "r" / record.FILE_NAME).read_text()
    header, point = map(json.loads, text.splitlines())
    # Give the path a limit: not every machine's memory limit is known.
    header["topology"]["links"] = [
        {
            "a": "mem:0",
            "b": "cpu:0",
            "kind": "dram",
            "bytes_per_s": 2e11,
            "duplex": False,
            "source": "test",
            "attrs": {},
        }
    ]
    (tmp_path / "r" / record.FILE_NAME).write_text(f"{json.dumps(header)}\n{json.dumps(point)}\n")
    done = cli("check", "r")
    assert done.returncode == 3
    assert "impossible" in done.stdout


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


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_keeps_finished_points_and_resume_goes_on(
    cli: Cli, tmp_path: Path, number: signal.Signals, status: int
) -> None:
    process = start(tmp_path, "null", "--out", "r", "--launches", 2, "-a", "kind=empty,sleep,hang")
    wait_for_lines(tmp_path / "r", 3)
    process.send_signal(number)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == status, errors
    assert "--resume r" in errors
    assert "Traceback" not in errors
    assert not workers(tmp_path)
    kept = (tmp_path / "r" / record.FILE_NAME).read_bytes()
    assert kept.endswith(b"\n")
    assert kept.count(b"\n") >= 3


def test_resume_measures_only_what_is_missing(cli: Cli, tmp_path: Path) -> None:
    assert cli("run", "null", "--out", "r", "--launches", 2, "-a", "kind=empty,sleep", "--no-report").returncode == 0
    file = tmp_path / "r" / record.FILE_NAME
    whole = file.read_bytes()
    lines = whole.splitlines(keepends=True)[:5]  # without the points that were disturbed and measured once more
    torn = b"".join(lines[:3]) + lines[3][: len(lines[3]) // 2]
    file.write_bytes(torn)
    done = cli("run", "--resume", "r", "--no-report")
    assert done.returncode == 0, done.stderr
    assert file.read_bytes().startswith(b"".join(lines[:3]))
    run = iobench.load(file)
    assert all(len(r.lines) >= 2 for r in run)
    assert len(run.resumed) == 1
    assert "2 of 4 measurements done before" in done.stdout


def test_a_killed_parent_leaves_whole_lines_and_no_processes(cli: Cli, tmp_path: Path) -> None:
    process = start(tmp_path, "null", "--out", "r", "--launches", 1, "-a", "kind=empty,hang")
    wait_for_lines(tmp_path / "r", 2)
    process.kill()
    process.communicate(timeout=300)
    end = time.monotonic() + 300
    while workers(tmp_path) and time.monotonic() < end:
        time.sleep(0.05)
    assert not workers(tmp_path)
    run = iobench.load(tmp_path / "r")
    assert [r.point["kind"] for r in run if r.status in MEASURED] == ["empty"]


def test_a_killed_probe_loses_only_its_own_point(cli: Cli, tmp_path: Path) -> None:
    done = cli("run", "null", "--out", "r", "--launches", 1, "-a", "kind=empty,die,sleep", "--no-report")
    assert done.returncode == 1
    assert [r.status in MEASURED for r in iobench.load(tmp_path / "r")] == [True, False, True]


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


def told_budgets(cli: Cli, folder: Path, first: str, *options: object) -> list[float]:
    """Run a copy of the probe whose points only say the seconds that they may take; ``first`` runs as it is loaded."""
    import iobench.paths

    (folder / "mine").mkdir()
    source = (iobench.paths.data_dir("probes") / "null.py").read_text()
    told = "\ndef measure(point, sampler):\n    print('seconds:', sampler.budget)\n    raise Unavailable('told')\n"
    (folder / "mine" / "own.py").write_text(f"{source}\n{first}\n{told}")
    cli("run", "own", "--probes", "mine", "--launches", 1, "--no-report", "--out", "r", *options)
    (log,) = (folder / "r" / "logs").iterdir()
    return [float(text) for text in re.findall(r"seconds: ([\d.e-]+)", log.read_text())]


def test_budget_bounds_the_measuring(cli: Cli, tmp_path: Path) -> None:
    axes = ("-a", "kind=wait", "-a", "nbytes=1K:1M:1.1")
    found = told_budgets(cli, tmp_path, "", "--budget", 2, *axes)
    # A tenth is kept for points that others disturb; a part of the rest has gone by when a point's share is told.
    shares = [1.8 / left for left in range(len(found), 0, -1)]
    assert len(found) > 60
    assert all(0.02 <= seconds <= max(share, 0.02) for seconds, share in zip(found, shares, strict=True))


def test_the_start_of_the_worker_is_on_the_budget(cli: Cli, tmp_path: Path) -> None:
    (seconds,) = told_budgets(cli, tmp_path, "import time\ntime.sleep(1.7)", "--budget", 2, "-a", "kind=empty")
    assert seconds <= 0.1  # of the 0.3 s that a point may take


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
