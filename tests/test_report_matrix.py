"""Matrices of the report: one table for each way that was measured between all ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from iobench import record, report
from iobench.check import judge
from iobench.record import Header, Leg, Line, Run
from iobench.report.matrix import matrices_of
from iobench.topology.graph import Topology

MATRIX = {"title": "Pairs", "rows": "gpu", "columns": "peer", "y": "bandwidth", "where": {"nbytes": 1024}}


def made(folder: Path, lines: list[Line], matrix: Any = MATRIX) -> Run:
    graph = Topology("box")
    for number in range(3):
        graph.add(f"gpu:{number}", "gpu")
        graph.add("switch", "switch")
        graph.link(f"gpu:{number}", "switch", "nvlink", 450e9, source="test")
    header = Header(
        run_id="1", created="2026-01-01T00:00:00+00:00", version="1", machine={"name": "box"}, topology=graph.to_dict(),
        request={}, probes={"p": {"title": "Pairs.", "axes": {}, "plots": [], "models": [], "matrices": [matrix]}},
    )  # fmt: skip
    folder.mkdir(exist_ok=True)
    text = "\n".join([header.to_json(), *(line.to_json() for line in lines)]) + "\n"
    (folder / record.FILE_NAME).write_text(text, encoding="utf-8")
    return record.read(folder)


def line(gpu: int, peer: int, rate: float, nbytes: int = 1024, **more: Any) -> Line:
    point = {"gpu": gpu, "peer": peer, "nbytes": nbytes, **more}
    seconds = [[nbytes / rate] * 6]
    return Line(
        "p", "s", point, mode="events", nbytes=nbytes, moved=nbytes, seconds=seconds, verified=True, path="way",
        proven=True, legs=[Leg(f"gpu:{gpu}", f"gpu:{peer}")],
    )  # fmt: skip


def pairs(count: int, rate: float = 100e9, **more: Any) -> list[Line]:
    return [line(a, b, rate + a * 1e9, **more) for a in range(count) for b in range(count) if a != b]


def test_rows_and_columns_in_their_order(tmp_path: Path) -> None:
    run = made(tmp_path / "run", [*reversed(pairs(3)), line(0, 1, 50e9, nbytes=4096)])
    (view,) = matrices_of(run, "p", judge(run))
    assert view.columns == ("gpu \\ peer", "0", "1", "2")
    assert [row[0] for row in view.rows] == ["0", "1", "2"]
    assert view.rows[1] == ("1", "101 GB/s", "-", "101 GB/s")
    assert view.title == "Pairs"


def test_one_table_for_each_way_between_all_ends(tmp_path: Path) -> None:
    lines = [*pairs(3, way="read"), *pairs(3, way="write"), *pairs(2, way="odd")]
    run = made(tmp_path / "run", lines)
    assert [view.title for view in matrices_of(run, "p", judge(run))] == ["Pairs: read", "Pairs: write"]


def test_an_impossible_cell_says_so(tmp_path: Path) -> None:
    run = made(tmp_path / "run", [line(0, 1, 500e9), line(1, 0, 400e9)])
    (view,) = matrices_of(run, "p", judge(run))
    assert view.rows[0][2] == "500 GB/s (impossible)"
    assert view.rows[1][1] == "400 GB/s"


def test_latency_and_missing_pairs(tmp_path: Path) -> None:
    lines = [line(0, 1, 1e9), line(1, 0, 1e9), line(2, 0, 1e9)]
    run = made(tmp_path / "run", lines, {**MATRIX, "y": "latency"})
    (view,) = matrices_of(run, "p", judge(run))
    assert view.rows[0][2] == "1.02 us"
    assert view.rows[0][1] == "-"


def test_a_damaged_header_has_no_matrix(tmp_path: Path) -> None:
    for number, matrix in enumerate((None, 3, {}, {"title": "x"}, {**MATRIX, "rows": 4})):
        run = made(tmp_path / str(number), pairs(2), matrix)
        assert matrices_of(run, "p", judge(run)) == []


def test_it_is_in_page_and_markdown(tmp_path: Path) -> None:
    run = made(tmp_path / "run", pairs(2))
    plain, page = report.write(run, tmp_path / "out")
    assert "| 1 | 101 GB/s | - |" in plain.read_text(encoding="utf-8")
    assert '<table id="matrix-p-1">' in page.read_text(encoding="utf-8")
