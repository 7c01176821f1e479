"""The import of logs as such: recognition, cleaning, hosts, folders, HTML, the command line."""

from __future__ import annotations

import gzip
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from iobench import importers, record
from iobench.cli import app
from iobench.errors import UserError
from iobench.importers import Imported, tell_apart, write
from iobench.importers.hosts import hide_hosts
from iobench.importers.log import LONGEST_LINE, clean, from_bytes
from iobench.importers.registry import all_formats, scores
from iobench.record import Line
from typer.testing import CliRunner

LOGS = Path(__file__).parent / "fixtures" / "logs"
ALLTOALL = LOGS / "mpirun_tag_output_alltoall.txt"
WRONG = LOGS / "wrong_values_in_one_row.txt"
HEAD = "#       size         count      type   redop    root     time   algbw   busbw #wrong\n"
ROW = "        1024           256     float     sum      -1    10.00    0.10    0.10      0\n"


def imported_of(data: bytes, **options: object) -> Imported:
    return importers.read_log(from_bytes(data), **options)  # type: ignore[arg-type]


# --- recognition -----------------------------------------------------------------------------------------


def test_every_format_says_what_it_is() -> None:
    for name, fmt in all_formats().items():
        assert fmt.TITLE, name
        assert isinstance(fmt.STATE, bool)
        assert fmt.__doc__, name
        assert fmt.recognise("") == 0
        assert fmt.recognise("a letter to a friend\n1 2 3\n") == 0


def test_the_content_decides_never_the_name(tmp_path: Path) -> None:
    odd = tmp_path / "fio.json"
    odd.write_bytes(ALLTOALL.read_bytes())
    assert importers.read(odd).header.request["format"] == "nccl-tests"


def test_what_no_tool_wrote_is_refused_with_the_next_step(tmp_path: Path) -> None:
    letter = tmp_path / "letter.txt"
    letter.write_text("Dear all,\n8 GPUs and 2 nodes are fine.\n")
    with pytest.raises(UserError, match="no log of a tool that iobench knows"):
        importers.read(letter)
    with pytest.raises(UserError, match="--as takes"):
        importers.read(letter, "word")
    for path, sentence in ((tmp_path / "none", "cannot read"), (tmp_path, "is a folder")):
        with pytest.raises(UserError, match=sentence):
            importers.read(path)


def test_facts_beside_the_measurement_are_added() -> None:
    log = importers.load(ALLTOALL)
    assert "nccl-info" in scores(log)
    assert importers.to_run(log, importers.read_log(log)).header.machine["nccl"]["transport"] == "roce"


# --- cleaning --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["utf-16", "utf-8-sig", "latin-1"])
def test_encodings(name: str) -> None:
    data = f"./all_reduce_perf -g 2\n{HEAD}{ROW}".encode(name)
    assert imported_of(data).rows == 1


def test_line_ends_nul_bytes_escapes_and_progress_bars() -> None:
    text = f"./all_reduce_perf -g 2\n{HEAD}{ROW}".replace("\n", "\r\n").encode()
    dirty = (
        b"\x1b[31mred\x1b[0m\x1b]0;title\x07\r\n"
        + b"\0\0"
        + text.replace(b"1024", b"\x1b[1m1024\x1b[0m")
        + b"50%\r75%\rdone"
    )
    found = imported_of(dirty)
    assert found.rows == 1
    assert "2 NUL bytes" in found.problems[0]
    assert clean("a\x1b[2Jb\x07\x9b\u202ec\n") == "abc "


def test_a_very_long_line_is_no_row_and_no_burden() -> None:
    log = from_bytes(b"./all_reduce_perf -g 2\n" + HEAD.encode() + ROW.encode() + b"8 " * 2_000_000 + b"\n")
    assert max(map(len, log.lines)) == LONGEST_LINE
    assert importers.read_log(log).rows == 1


@pytest.mark.parametrize(
    "unit", [" ", "\t", "\t ", "\n", " \n", "9", "[", "GPU0 X ", "<a>", "-", "1 ", "\xa0", " \u200b", "\n\xa0"]
)
def test_a_run_of_anything_is_read_in_time(unit: str) -> None:
    """A pattern that tries every way to split such a run takes minutes for it."""
    import time

    for place in (0, 200, 100_000):
        text = f"./all_reduce_perf -g 2\n{HEAD}{ROW}" + "Function " * 3 + "Numa node "
        log = from_bytes((text[:place] + (unit * 50_000)[:50_000] + text[place:]).encode())
        started = time.thread_time()
        with suppress(UserError):
            importers.read_log(log)
        assert time.thread_time() - started < 60  # CPU seconds, here a tenth of one; hundreds where it is quadratic


def test_a_heading_is_not_repeated_whole_beside_every_figure() -> None:
    title = "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)" + "#" * 3000
    rows = " 0       N/A     26.34\n 1     26.35       N/A\n\nSUM device_to_device_memcpy_read_ce 52.69\n"
    log = from_bytes(
        f"nvbandwidth Version: v0.8\n\nRunning device_to_device_memcpy_read_ce.\n{title}\n   0  1\n{rows}".encode()
    )
    found = importers.read_log(log)
    assert [len(line.evidence["title"]) for line in found.lines] == [200, 200]


@pytest.mark.parametrize("figure", ["nan", "inf", "-1.00", "1e400", "0.00", "9" * 40])
def test_figures_that_are_no_times_are_counted_not_used(figure: str) -> None:
    found = imported_of(f"./all_reduce_perf -g 2\n{HEAD}{ROW}{ROW.replace('10.00', figure)}".encode())
    assert len(found.unread) == 1
    assert "line 4" in str(found.unread[0])


def test_sizes_beyond_64_bits_are_counted_not_used() -> None:
    data = f"./all_reduce_perf -g 2\n{HEAD}{ROW}{ROW.replace('1024', '9' * 30)}".encode()
    log = from_bytes(data)
    found = importers.read_log(log)
    assert len(importers.to_run(log, found)) == 1
    assert len(found.unread) == 1


def test_gzip_is_unpacked_and_a_bomb_is_not(tmp_path: Path) -> None:
    packed = tmp_path / "a.gz"
    packed.write_bytes(gzip.compress(ALLTOALL.read_bytes()))
    assert len(importers.read(packed)) == 4
    with pytest.raises(UserError, match="unpacks to more than"):
        from_bytes(gzip.compress(bytes(80 << 20)))
    with pytest.raises(UserError, match="damaged gzip"):
        from_bytes(b"\x1f\x8b\x08nonsense")
    with pytest.raises(UserError, match="zstd -d"):
        from_bytes(b"\x28\xb5\x2f\xfdabc")
    with pytest.raises(UserError, match="is empty"):
        from_bytes(b" \n")


# --- hosts, names, HTML ----------------------------------------------------------------------------------


def test_hosts_become_nodes_unless_kept() -> None:
    log = importers.load(ALLTOALL)
    hidden = importers.to_run(log, importers.read_log(log))
    everything = hidden.header.to_json() + "".join(line.to_json() for r in hidden for line in r.lines)
    assert "host-a" not in everything
    kept = importers.read_log(log, keep_hosts=True)
    assert kept.hosts == ["host-a", "host-b"]
    sentence = Imported(hosts=["n1", "n10"], problems=["n10 and n1 and n100, n1.local, xn1"])
    hide_hosts(sentence)
    assert sentence.problems == ["node-2 and node-1 and n100, node-1.local, xn1"]


def test_a_host_named_x_leaves_the_sign_between_figures_alone() -> None:
    found = Imported(hosts=["x"], problems=["1 x GPU, 16 x 512 MiB; x: down, at x"])
    hide_hosts(found)
    assert found.problems == ["1 x GPU, 16 x 512 MiB; node-1: down, at node-1"]


def test_a_launchers_number_is_no_host() -> None:
    text = "2: box-a:77:88 [0] NCCL INFO NCCL version 2.26.2+cuda12.2\n2: box-a:77:88 [0] NCCL INFO Using network IB\n"
    found = imported_of(text.encode())
    assert found.machine["nccl"]["version"] == "2.26.2+cuda12.2"
    assert found.hosts == ["node-1"]
    figures = Imported(hosts=["2", "n2"], problems=["2.26.2 on n2, 2 of 2"])
    hide_hosts(figures)
    assert figures.problems == ["2.26.2 on node-1, 2 of 2"]


@pytest.mark.parametrize("name", ["../../etc/passwd", "..", ".hidden", "a b;rm -rf", "C:\\x\\y.log", "\x1b[2J", ""])
def test_a_logs_name_never_leads_out_of_the_folder(name: str, tmp_path: Path) -> None:
    folder = write.folder_of(name, tmp_path, several=True)
    assert folder.resolve().parent == tmp_path.resolve()
    assert folder.name
    assert not folder.name.startswith(".")


def test_text_of_a_log_never_reaches_html_as_markup(tmp_path: Path) -> None:
    from iobench import report

    bad = "<script>alert(1)</script>"
    log = (
        f"# nccl-tests version 2.1{bad}\n# Collective test starting: all_reduce_perf{bad}\n"
        f"# nThread 1 nGpus 2 minBytes 1024 maxBytes 4096 step: 2(factor) warmup iters: 5 iters: 20 validation: 1\n"
        f"#   Rank  0 Pid   1 on {bad} device  0 [0x01] {bad}\n#   Rank  1 Pid   1 on {bad} device  1 [0x02] {bad}\n"
        f"{bad}:1:1 [0] NCCL INFO NCCL_ALGO set by environment to {bad}\n"
        f"x:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via {bad}\n"
        f"x:1:1 [0] NCCL INFO Using network {bad}\n{bad}: Test NCCL failure {bad}\n{HEAD}{ROW}"
        f"        2048           512     float     sum      -1    10.00    0.20    0.20  {bad}\n"
        f"# Out of bounds values : {bad} FAILED\n"
    )
    for keep in (True,):  # host names too are the log's text
        parsed = from_bytes(log.encode(), f"{bad}.txt")
        run = importers.to_run(parsed, importers.read_log(parsed, keep_hosts=keep))
        path = write.write(run, tmp_path / str(keep))
        read = record.read(path)
        _, page = report.write(read, tmp_path / str(keep))
        html = page.read_text(encoding="utf-8")
        assert "<script>alert" not in html
        assert "alert(1)" in html.replace("&#39;", "'")  # it is shown, as text


# --- from lines to runs ----------------------------------------------------------------------------------


def test_points_are_told_apart_only_by_what_differs() -> None:
    lines = [Line("p", "s", {"nbytes": 8}), Line("p", "s", {"nbytes": 8}), Line("p", "s", {"nbytes": 16})]
    facts = {id(lines[0]): {"a": 1, "b": 2}, id(lines[1]): {"a": 1, "b": 3}, id(lines[2]): {"a": 1, "b": 2}}
    tell_apart(lines, lambda line: facts[id(line)])
    assert [line.point for line in lines] == [{"nbytes": 8, "b": 2}, {"nbytes": 8, "b": 3}, {"nbytes": 16, "b": 2}]
    alike = [Line("p", "s", {"nbytes": 8}), Line("p", "s", {"nbytes": 16})]
    tell_apart(alike, lambda line: {"run": line.point["nbytes"]})
    assert [line.point for line in alike] == [{"nbytes": 8}, {"nbytes": 16}]


def test_a_hundred_launches_are_kept_apart_and_more_become_values() -> None:
    lines = [Line("p", "s", {"nbytes": 8}, nbytes=8, seconds=[[1e-6 * (k + 1)]]) for k in range(250)]
    log = from_bytes(b"x")
    run = importers.to_run(log, Imported("nccl-tests", lines, rows=250))
    (only,) = run
    assert len(only.lines) == 100
    assert sum(len(line.seconds[0]) for line in only.lines) == 250


def test_several_logs_become_launches_of_one_run() -> None:
    first = importers.read(LOGS / "rccl_version_line_between.txt")
    second = importers.read(LOGS / "rccl_version_line_between.txt")
    run = write.merged([first, second])
    assert {len(record.lines) for record in run} == {2}
    assert all(record.time.known for record in run)


# --- the command -----------------------------------------------------------------------------------------


def test_the_command_writes_a_run_that_every_verb_reads(tmp_path: Path) -> None:
    runner, out = CliRunner(), tmp_path / "out"
    done = runner.invoke(app, ["import", str(ALLTOALL), "--out", str(out)])
    assert done.exit_code == 0
    assert "nccl-tests: 2 rows read, 0 unread, 4 points; complete as far as the log tells" in done.output
    assert "one alone has no interval" in done.output
    run = record.read(out)
    assert (len(run), run.machine) == (4, "4 x NVIDIA A100-SXM4-40GB on 2 nodes")
    for verb in (["fit"], ["report"]):
        assert runner.invoke(app, [*verb, str(out)]).exit_code == 0, verb
    again = runner.invoke(app, ["import", str(ALLTOALL), "--out", str(out)])
    assert isinstance(again.exception, UserError)
    assert "exists: choose another folder" in str(again.exception)


def test_wrong_data_has_its_exit_status_and_both_logs_their_folder(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["import", str(ALLTOALL), str(WRONG), "--out", str(tmp_path)])
    assert done.exit_code == 3
    assert {path.name for path in tmp_path.iterdir()} == {ALLTOALL.name, WRONG.name}
    assert "warning: all_reduce_perf says FAILED" in done.output


def test_a_line_that_no_file_would_take_is_an_unread_row() -> None:
    bad = replace(Line("p", "s", {"nbytes": 8}, nbytes=8), seconds=[[-1.0]], evidence={"rows": ["line 7: -1"]})
    good = Line("p", "s", {"nbytes": 16}, nbytes=16, seconds=[[1.0]])
    imported = Imported("nccl-tests", [bad, good])
    run = importers.to_run(from_bytes(b"x"), imported)
    assert len(run) == 1
    assert imported.unread[0].number == 7
