"""The table that comparisons share, peers found or given, and MLC's command: pure, no peer is needed."""

import os
from pathlib import Path

import pytest
from iobench import crosscheck
from iobench.crosscheck import dram_peers, peer
from iobench.errors import UserError


@pytest.fixture(autouse=True)
def nothing_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(peer.VARIABLE, "")  # so that what a test sets is taken back


def program(folder: Path, name: str, prints: str = "") -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{prints}\nEND\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def test_turns_alternate_and_the_ratio_is_of_one_round() -> None:
    order: list[str] = []
    rates = iter([10.0, 20.0, 40.0])

    def ours() -> float:
        order.append("A")
        return 11.0 * 2 ** (len(order) // 2)

    def theirs() -> float:
        order.append("B")
        return next(rates)

    row = peer.Row("copy")
    peer.in_turns(row, ours, theirs, 3)
    assert "".join(order) == "ABBAAB"
    assert row.ratio.median == pytest.approx(1.1, rel=1e-9)
    assert row.ratio.low <= 1.1 <= row.ratio.high


def test_a_latency_that_is_shorter_is_better() -> None:
    row = peer.Row("chase", latency=True, ours=[80e-9] * 3, peers=[100e-9] * 3, known="a mean beside a median")
    assert row.ratio.median == pytest.approx(1.25)
    assert "1.250 (3 rounds: 1.250 .. 1.250)   a mean beside a median" in row.text()


def test_few_rounds_show_their_range_and_more_an_interval() -> None:
    rates = [0.9e9, 1.0e9, 1.1e9, 1.0e9, 1.02e9, 0.98e9, 4e9, 1.0e9, 1.01e9, 0.99e9]
    assert peer.Row("copy", ours=rates[:3], peers=[1e9] * 3).spread == "(3 rounds: 0.900 .. 1.100)"
    row = peer.Row("copy", ours=rates, peers=[1e9] * 10)
    assert row.spread == f"({row.ratio.low:.3f} .. {row.ratio.high:.3f})"
    assert 0.5 < row.ratio.low < 1 < row.ratio.high < 2.0  # one round that others disturbed


def test_one_round_has_no_interval_and_no_figure_has_no_ratio() -> None:
    assert "no interval" in peer.Row("copy", ours=[1e9], peers=[1e9]).text()
    row = peer.Row("copy")
    peer.in_turns(row, lambda: 1.0, lambda: None, 3)
    assert "no figure" in row.text()
    assert not row.ours


def test_table_has_its_heading_first() -> None:
    lines = list(peer.table("fio", [peer.Row("read", ours=[2e9] * 2, peers=[1e9] * 2)]))
    assert "iobench / fio" in lines[0]
    assert "2.000" in lines[1]


def test_peer_is_found_where_it_is_given(tmp_path: Path) -> None:
    path = program(tmp_path, "mlc")
    crosscheck.use("dram", path)
    assert peer.find("mlc") == path
    assert peer.find("no-such-tool-anywhere") is None


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("dram", "/no/such/mlc", "is no program"),
        ("dram", "/bin/sh", "beside likwid-bench, mbw, mlc"),
        ("repeat", "/bin/sh", "leave out --peer"),
    ],
)
def test_a_peer_that_is_none_is_refused(name: str, given: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        crosscheck.use(name, given)
    assert not os.environ[peer.VARIABLE]


def test_a_probes_name_finds_its_crosscheck() -> None:
    assert crosscheck.find("p2p") is crosscheck.find("gpu")
    with pytest.raises(UserError, match="no crosscheck"):
        crosscheck.find("nothing")


def test_mlc_is_asked_for_random_accesses_in_a_buffer_of_that_size() -> None:
    found = dram_peers.mlc({"kernel": "chase", "pages": "base", "nbytes": 128 << 20})
    assert found is not None
    assert found.command == ["mlc", "--idle_latency", "-r", "-b131072", "-t2"]
    assert dram_peers.mlc({"kernel": "chase", "pages": "base", "nbytes": 4096}) is None
    assert dram_peers.mlc_seconds("Each iteration took 201.2 base frequency clocks ( 80.5    ns)\n") == pytest.approx(
        80.5e-9
    )
    assert dram_peers.mlc_seconds("MLC needs root\n") is None
