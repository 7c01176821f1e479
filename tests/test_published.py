"""Published curves: every file is whole, names its source, and becomes a run of aggregates."""

from __future__ import annotations

import re

import pytest
from iobench import published
from iobench.errors import UserError
from iobench.units import GB

HEAD = """# title: a test
# whose: nobody's
# source: made up
# date: unknown
# probe: allreduce
# quantity: bandwidth
# aggregate: mean of 20 iterations
# axes: op=all_reduce ranks=4
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(published, "_folder", lambda: tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", published.names())
def test_every_file_is_a_run_of_aggregates_with_a_source(name):
    run = published.load(name)
    head = published.about(name)
    assert len(run) >= len(head.rows)
    for record in run:
        (line,) = record.lines
        assert line.aggregate
        assert not record.time.known
        assert record.status == "ok"
        assert 1e-7 < record.time.median < 100
        assert 1 <= record.nbytes <= 2**36
    assert len(head.get("source")) > 20
    assert head.get("whose")


@pytest.mark.parametrize("name", published.names())
def test_no_rate_is_above_what_any_link_of_today_carries(name):
    for record in published.load(name):
        if record.quantity == "bandwidth":
            assert record.bytes_per_s < 900 * GB


def test_files_name_no_hosts_and_no_addresses():
    odd = re.compile(r"(?:[0-9a-f]{2}:){5}[0-9a-f]{2}|\b(?:\d{1,3}\.){3}\d{1,3}\b(?!\d|/| )|Pid")
    for name in published.names():
        text = published.about(name).path.read_text(encoding="utf-8")
        assert not [hit for hit in odd.findall(text) if not hit.startswith("570.")], name


def test_bus_bytes_and_both_places(folder):
    (folder / "x.csv").write_text(HEAD + "nbytes,us,us_in_place\n1024,10,\n2048,20,30\n")
    run = published.load("x")
    assert [(r.nbytes, r.point["inplace"], r.moved) for r in run] == [
        (1024, False, 1536), (2048, False, 3072), (2048, True, 3072),
    ]  # fmt: skip
    assert run.records[0].time.median == pytest.approx(10e-6)
    assert run.records[0].bytes_per_s == pytest.approx(1536 / 10e-6)


def test_a_rate_becomes_a_time(folder):
    (folder / "x.csv").write_text(HEAD.replace("op=all_reduce ranks=4", "verb=write") + "nbytes,GBps\n1000,2\n")
    (record,) = published.load("x")
    assert record.time.median == pytest.approx(500e-9)
    assert record.point == {"verb": "write", "nbytes": 1000}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (HEAD, "no rows"),
        (HEAD.replace("# whose: nobody's\n", "") + "nbytes,us\n8,1\n", "no whose"),
        (HEAD + "# colour: red\nnbytes,us\n8,1\n", ":9: not '# key: value'"),
        (HEAD + "# probe: twice\nnbytes,us\n8,1\n", ":9: not '# key: value'"),
        (HEAD + "nbytes,us\n8,fast\n", "row 1 is damaged"),
        (HEAD + "nbytes,us\n8,1\n16\n", "row 2 is damaged"),
        (HEAD + "nbytes,us\n8,0\n", "row 1 is damaged"),
        (HEAD + "us\n8\n", "row 1 is damaged"),
    ],
)
def test_a_damaged_file_is_one_sentence(folder, text, said):
    (folder / "x.csv").write_text(text)
    with pytest.raises(UserError, match=re.escape(said)):
        published.load("x")


def test_an_unknown_name_says_where_the_names_are():
    with pytest.raises(UserError, match="iobench published"):
        published.load("../published/h100-nvlink")
