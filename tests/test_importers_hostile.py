"""What is no log, or a hostile one: one clear line, nothing executed, fetched or written but the records."""

from __future__ import annotations

import gc
import gzip
import os
import socket
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from iobench import importers
from iobench.cli import app
from iobench.errors import UserError
from iobench.export import table
from iobench.importers import log
from iobench.importers.log import from_bytes
from iobench.topology import logs
from tests.conftest import Cli
from typer.testing import CliRunner

LOGS = Path(__file__).parent / "fixtures" / "logs"
GOOD = LOGS / "rccl_version_line_between.txt"


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


def _loop(path: Path) -> None:
    path.symlink_to(path)


def _zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a.txt", "x")


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (_fifo, "is a pipe, no file"),
        (_device, "is a device, no file"),
        (_socket, "cannot read"),
        (_loop, "cannot read"),
        (Path.mkdir, "is a folder"),
        (_zip, r"packed with zip: unpack it first \(unzip\)"),
        (lambda path: path.write_bytes(b""), "is empty"),
        (lambda path: path.write_bytes(b"\xfd7zXZ\0"), "packed with xz"),
        (lambda path: path.write_bytes(b"BZh91AY"), "packed with bzip2"),
        (lambda path: path.write_bytes(bytes(range(256)) * 64), "no log of a tool"),
    ],
)
def test_what_is_no_log_is_one_line_and_nothing_waits(
    make: Callable[[Path], object], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket is short
    path = Path("x")
    make(path)
    with pytest.raises(UserError, match=sentence) as caught:
        importers.read(path)
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError) as caught:
        logs.read([path])
    assert "\n" not in str(caught.value)


def test_the_command_ends_with_2_on_a_pipe_without_a_writer(tmp_path: Path, cli: Cli) -> None:
    _fifo(tmp_path / "x")
    done = cli("import", tmp_path / "x", "--out", tmp_path / "out", stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert not (tmp_path / "out").exists()


def test_a_file_that_says_it_has_no_size_is_read_to_its_end(tmp_path: Path) -> None:
    """Those of /proc do: 0 bytes by stat."""
    path = Path("/proc/self/status")
    assert path.stat().st_size == 0
    with pytest.raises(UserError, match="no log of a tool"):
        importers.read(path)


def test_an_enormous_file_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what takes 2 GiB elsewhere: not every file system has holes, nor room."""
    assert log.MOST_NBYTES == 2 << 30
    monkeypatch.setattr(log, "MOST_NBYTES", 1 << 20)
    monkeypatch.setattr(logs, "_MOST_BYTES", 1 << 20)
    path = tmp_path / "big"
    path.write_bytes(bytes(3 << 20))
    with pytest.raises(UserError, match="3 MiB: cut it into parts below 1 MiB"):
        importers.read(path)
    with pytest.raises(UserError, match="larger than any output"):
        logs.read([path])


def test_a_bomb_within_a_bomb_is_no_text() -> None:
    inner = gzip.compress(bytes(1 << 20))
    with pytest.raises(UserError):
        importers.read_log(from_bytes(gzip.compress(inner * 4)))


def test_records_never_go_through_a_link(tmp_path: Path) -> None:
    victim, out = tmp_path / "victim", tmp_path / "out"
    victim.write_text("mine")
    out.mkdir()
    (out / "records.jsonl").symlink_to(victim)
    done = CliRunner().invoke(app, ["import", str(GOOD), "--out", str(out)])
    assert isinstance(done.exception, UserError)
    assert victim.read_text() == "mine"
    (out / "records.jsonl").unlink()
    (out / "records.jsonl").symlink_to(tmp_path / "new")
    assert isinstance(CliRunner().invoke(app, ["import", str(GOOD), "--out", str(out)]).exception, UserError)
    assert not (tmp_path / "new").exists()


def imported(data: bytes) -> None:
    with suppress(UserError):
        read = from_bytes(data)
        importers.to_run(read, importers.read_log(read))


def test_importing_starts_no_process_opens_no_socket_and_writes_nothing() -> None:
    events: list[str] = []
    watched = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "socket.connect", "socket.bind",
               "os.remove", "os.rename", "os.mkdir", "os.symlink", "urllib.Request")  # fmt: skip
    active, this = [False], threading.get_ident()

    def watch(event: str, args: tuple[object, ...]) -> None:
        writes = event == "open" and len(args) > 1 and str(args[1])[:1] in "wax+"
        if active[0] and threading.get_ident() == this and (event in watched or writes):
            events.append(f"{event} {args[:2]}")

    bad = b"\n$(touch x) `touch x` ; touch x | touch x\n<!ENTITY a SYSTEM 'file:///etc/passwd'>\n"
    texts = [path.read_bytes() + bad for path in sorted(LOGS.iterdir())]
    for text in texts:  # modules are loaded, and perhaps compiled, at their first use
        imported(text)
    sys.addaudithook(watch)  # can't be taken away again: it sleeps from the end of this test on
    gc.collect()
    gc.disable()  # what other tests left open is cleared away by the collector
    try:
        active[0] = True
        for text in texts[::4]:
            imported(text)
    finally:
        active[0] = False
        gc.enable()
    assert events == []


HOSTILE = "\x1b]0;title\x07\x1b[2J\x9b31m\u202e\x07"


def test_no_control_character_of_a_log_reaches_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "log"
    text = GOOD.read_text(encoding="utf-8").replace("AMD Instinct", f"AMD {HOSTILE}Instinct")
    path.write_text(f"{text}x: Test NCCL failure {HOSTILE}\n", encoding="utf-8")
    done = CliRunner().invoke(app, ["import", str(path), "--out", str(tmp_path / "out")])
    state = tmp_path / "state"
    ports = f"CA 'mlx5_0{HOSTILE}'\n\tPort 1:\n\t\tState: Active{HOSTILE}\n\t\tRate: 200\n"
    state.write_text(ports, encoding="utf-8")
    shown = CliRunner().invoke(app, ["topology", "--from-log", str(state)])
    written = (tmp_path / "out" / "records.jsonl").read_text(encoding="utf-8")
    for text in (done.output, shown.output, written, repr(shown.exception)):
        assert not [c for c in text if (ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160 or c == "\u202e"]
    assert "mlx5_0" in shown.output


@pytest.mark.parametrize("text", ["=cmd|' /C calc'!A0", "+1", "-1", "@SUM(A1)", "\t=1"])
def test_no_text_of_a_log_is_a_formula_in_a_spreadsheet(text: str) -> None:
    assert table._text(text) == f"'{text}"
    assert table._text("all_reduce nccl") == "all_reduce nccl"
