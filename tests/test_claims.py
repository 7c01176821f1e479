"""Published figures judged by physics: every verdict on the table that ships, and what a damaged table says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from iobench import claims
from iobench.claims import bounds
from iobench.errors import UserError
from iobench.units import MIB

# (the claim's figure, the ruling, by how much, words of the bound)
EXPECTED = [
    ("0.82 us", "unlikely", 5.7, "than measured: 4.70 us"),
    ("3.15 us", "impossible", 1.94, "bus bandwidth 583 GB/s against 300 GB/s"),
    ("42.6 us", "impossible", 9.19, "bus bandwidth 2757 GB/s against 300 GB/s"),
    ("1.97 us", "unlikely", 17.5, "than measured: 34.4 us (16 ranks, 2 nodes)"),
    ("8.41 us", "unlikely", 11.5, "than measured: 96.4 us (16 ranks, 2 nodes)"),
    ("113.2 us", "impossible", 2.96, "against 394 GB/s (the node's ports"),
    ("12.8 GB/s", "unlikely", 1.64, "slower than measured: 21.0 GB/s to 28.0 GB/s"),
    ("39.6 GB/s", "unlikely", 3.0, "slower than measured: 119 GB/s to 145 GB/s"),
    ("112.5 +- 4.3 us", "possible", None, "at most 3.38 MiB at 31.5 GB/s"),
    ("184.2 +- 29.7 us", "possible", None, "at most 5.53 MiB at 31.5 GB/s"),
    ("23 ms", "impossible", 6.62, "52.2 GB/s against 7.88 GB/s (PCIe 4.0 x4, raw"),
    ("326 ns", "possible", None, "measured: 140 ns to 410 ns"),
    ("82 ns", "impossible", 1.60, "at least 131 ns"),
    ("147 ns", "possible", None, "measured: 140 ns to 410 ns"),
]
HEAD = "what,op,machine,ranks,nodes,transport,link,nbytes,us,GBps,stages,ns"


def rulings():
    return claims.judge(claims.read(claims.shipped()))


def one(tmp_path, row, head=HEAD):
    file = tmp_path / "claims.csv"
    file.write_text(f"{head}\n{row}\n", encoding="utf-8")
    return claims.judge(claims.read(file))[0]


@pytest.mark.parametrize(("number", "expected"), list(enumerate(EXPECTED)), ids=[row[0] for row in EXPECTED])
def test_the_table_that_the_project_started_from(number, expected):
    figure, word, factor, words = expected
    found = rulings()[number]
    assert (found.claim.figure, found.word) == (figure, word)
    assert found.factor == (pytest.approx(factor, rel=0.02) if factor else None)
    assert words in found.sentence
    assert found.source


def test_the_stages_add_up():
    (found,) = [ruling.claim for ruling in rulings() if ruling.claim.stages]
    assert sum(found.stages) == pytest.approx(found.seconds)


def test_the_less_generous_reading_that_the_notes_name():
    for figure, factor in (("8.41 us", "5.0x"), ("113.2 us", "23.7x")):
        (claim,) = [ruling.claim for ruling in rulings() if ruling.claim.figure == figure]
        (found,) = claims.judge([replace(claim, ranks=8)])
        assert found.word == "impossible"
        assert f"impossible by {factor}" in claim.note
        assert f"{found.factor:.1f}x" == factor


def test_a_true_figure_is_possible(tmp_path):
    for row in (
        "true,all_reduce,H100,8,1,nvlink,,8GiB,31300,,,",  # 480 GB/s of bus bandwidth
        "true,all_reduce,A100,8,1,nvlink,,64MiB,600,,,",
        "true,copy,,,,pcie,pcie5x16,,,55.4,,",
        "true,read,,,,nvme,pcie4x4,,,6.9,,",
    ):
        found = one(tmp_path, row)
        assert found.word == "possible", found.sentence


def test_bytes_add_to_the_least_time(tmp_path):
    # 448 KiB over 300 GB/s: 2.7 us of bus bytes; the crossing comes on top
    nbytes = 448 * 1024
    wire = nbytes * 1.75 / 300e9
    assert one(tmp_path, f"x,all_reduce,A100,8,1,nvlink,,{nbytes},{(wire + 0.3e-6) * 1e6},,,").word == "impossible"
    assert one(tmp_path, f"x,all_reduce,A100,8,1,nvlink,,{nbytes},{(wire + 0.5e-6) * 1e6},,,").word == "unlikely"


def test_what_is_unknown_is_said(tmp_path):
    found = one(tmp_path, "x,all_reduce,somebox,8,1,nvlink,,64MiB,1,,,")
    assert (found.word, found.source) == ("possible", "")
    assert "nothing is known" in found.sentence


def test_toml_says_the_same(tmp_path):
    file = tmp_path / "claims.toml"
    file.write_text('[[claim]]\nwhat = "x"\nop = "all_reduce"\nmachine = "A100"\nranks = 8\ntransport = "nvlink"\n'
                    'nbytes = "64MiB"\nus = 42.6\n', encoding="utf-8")  # fmt: skip
    (found,) = claims.judge(claims.read(file))
    assert (found.word, found.claim.nbytes) == ("impossible", 64 * MIB)


@pytest.mark.parametrize(("row", "words"), [
    ("x,all_reduce,A100,8,1,nvlink,,8,,,,", "one figure"),
    ("x,all_reduce,A100,8,1,nvlink,,8,1,1,,", "one figure"),
    ("x,all_reduce,A100,8,1,nvlink,,8,-1,,,", "no positive number"),
    ("x,all_reduce,A100,8,1,nvlink,,many,1,,,", "not a size"),
    ("x,all_reduce,A100,eight,1,nvlink,,8,1,,,", "claim 1: 'eight' is no number"),
    ("x,all_reduce,A100,0,1,nvlink,,8,1,,,", "0 is no positive number"),
    ("x,all_reduce,A100,1.5,1,nvlink,,8,1,,,", "1.5 is no number of ranks"),
    ("x,all_reduce,A100,8,1,nvlink,,many,1,,,", "csv: claim 1: 'many'"),
    ("x,frobnicate,A100,8,1,nvlink,,8,1,,,", "unknown op 'frobnicate'; it is one of all_reduce, all_gather"),
    ("x,copy,,,,pcie,pcie4x16,8,1,,,,,", "a cell without a name"),
    ("x,copy,,,,pcie,pci4x16,8,1,,,", "no link"),
    ("x,copy,,,,pcie,pcie4x16,8,nan,,,", "no positive number"),
])  # fmt: skip
def test_a_damaged_row_is_one_line(tmp_path, row, words):
    with pytest.raises(UserError, match=words) as caught:
        one(tmp_path, row)
    assert "\n" not in str(caught.value)


def test_spreadsheets_and_comments_change_nothing(tmp_path):
    file = tmp_path / "claims.csv"
    row = "x,all_reduce,A100,8,1,nvlink,,64MiB,42.6,,,"
    file.write_bytes(f"\ufeff# from a slide\r\n{HEAD}\r\n\r\n{row.replace(',', ', ')}\r\n".encode())
    assert claims.judge(claims.read(file)) == [one(tmp_path, row)]


def test_stages_that_do_not_add_up_are_impossible(tmp_path):
    found = one(tmp_path, "x,load,,,,cxl,,64,,,82+146+98,400")
    assert (found.word, found.factor) == ("impossible", pytest.approx(400 / 326))
    assert "add up to 326 ns, not to 400 ns" in found.sentence


@pytest.mark.parametrize("content", ["", "what,op,us\n", "[[claim]]\n", "\x00"])
def test_an_empty_or_foreign_file_is_one_line(tmp_path, content):
    for name in ("a.csv", "a.toml"):
        (tmp_path / name).write_text(content, encoding="utf-8")
        with pytest.raises(UserError):
            claims.read(tmp_path / name)
    with pytest.raises(UserError, match="sits2026"):
        claims.read(tmp_path / "absent.csv")


def test_an_unknown_column_is_named(tmp_path):
    with pytest.raises(UserError, match="unknown column 'bytes'"):
        one(tmp_path, "x,copy,8,1", head="what,op,bytes,us")


def test_every_bound_names_its_source():
    rows = [*bounds.table()["floor"], *bounds.table()["measured"]]
    assert all(row["source"] and row["words"] for row in rows)


def test_the_text_counts_the_rulings():
    shown = claims.text(rulings())
    assert shown.endswith("14 claims: 5 impossible, 5 unlikely, 4 possible")
    assert "impossible by 9.2x  all-reduce, 8 A100, NVLink 3, 64 MiB: 42.6 us\n" in shown


def test_the_readme_shows_the_real_output():
    from tests.conftest import ROOT

    assert claims.text(rulings()) in (ROOT / "README.md").read_text(encoding="utf-8")
