"""A run from outside: what it writes, what faults become, interrupts, resume, its budget."""

from __future__ import annotations

import json
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

MEASURED = ("ok", "suspect")  # suspect: others used the machine meanwhile, which no test can forbid


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
