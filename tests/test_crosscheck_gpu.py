"""The GPU crosscheck: what nvbandwidth prints is read right, ratios and bars."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from iobench import probe as probes
from iobench import topology
from iobench.crosscheck import gpu, nvbandwidth
from iobench.crosscheck.gpu import Row
from iobench.errors import IobenchError, UserError, WrongData
from iobench.paths import data_dir

TABLES = (Path(__file__).parent / "fixtures" / "nvbandwidth" / "0.8-2x-h200.txt").read_text(encoding="utf-8")


def as_json(*cases: dict[str, Any], **more: Any) -> str:
    return json.dumps({"nvbandwidth": {"CUDA Runtime Version": 13000, "testcases": list(cases), **more}}, indent=3)


def passed(name: str, matrix: list[list[Any]]) -> dict[str, Any]:
    return {"name": name, "status": "Passed", "bandwidth_matrix": matrix, "sum": 1.0, "min": 0.0}


def test_tables_of_a_real_run() -> None:
    cases = nvbandwidth.parse(TABLES)
    assert len(cases) == 35
    assert cases["host_to_device_memcpy_ce"].matrices == [[[55.38, 55.33]]]
    read = cases["device_to_device_bidirectional_memcpy_read_ce"]
    assert [len(matrix) for matrix in read.matrices] == [2, 2, 2]
    assert read.cell(0, 1) == 389.25
    assert read.cell(0, 0) is None
    assert read.cell(1, 0, matrix=2) == 778.87
    assert cases["host_device_latency_sm"].cell(0, 1) == 1201.43
    assert cases["device_local_copy"].cell(0, 2) is None


@pytest.mark.parametrize("lead", ["", "host\n", "NOTE: {not JSON}\n"])
def test_json_cells_are_strings_and_words_may_stand_around(lead: str) -> None:
    text = lead + as_json(passed("copy", [["N/A", "393.93"], ["393.9", "0.00"]])) + "\n\nNOTE: results may differ\n"
    case = nvbandwidth.parse(text)["copy"]
    assert case.matrices == [[[None, 393.93], [393.9, 0.0]]]
    assert case.cell(1, 1) is None  # 0.00 on the diagonal means not applicable
    assert case.cell(0, 1) == 393.93


def test_json_numbers_and_exponents() -> None:
    case = nvbandwidth.parse(as_json(passed("copy", [[55, "1.2e+03", True]])))["copy"]
    assert case.matrices == [[[55.0, 1200.0, None]]]


def test_three_matrices_in_one_json_matrix() -> None:
    rows = [["N/A", "1"], ["2", "N/A"], ["N/A", "3"], ["4", "N/A"], ["N/A", "4"], ["6", "N/A"]]
    case = nvbandwidth.parse(as_json(passed("both", rows)))["both"]
    assert len(case.matrices) == 3
    assert (case.cell(1, 0), case.cell(1, 0, 1), case.cell(1, 0, 2)) == (2, 4, 6)


def test_one_gpu_stays_one_matrix() -> None:
    assert nvbandwidth.parse(as_json(passed("one", [["55.38"]])))["one"].matrices == [[[55.38]]]


def test_waived_failed_and_empty_cases_have_reasons() -> None:
    text = as_json(
        {"name": "waived", "status": "Waived"},
        {"name": "broken", "status": "Error", "bandwidth_matrix": [["1"]]},
        {"name": "empty", "status": "Passed"},
        error="NVML_ERROR: [Not Found]",
    )
    cases = nvbandwidth.parse(text)
    assert all(case.matrices == [] for case in cases.values())
    assert "Waived" in cases["waived"].reason
    assert "NVML_ERROR" in cases["broken"].reason
    assert cases["empty"].reason


def test_tables_with_waived_cases_other_versions_and_sums_without_a_matrix() -> None:
    text = (
        "nvbandwidth Version: v0.10\nCUDA Runtime Version: 13.3 (13030)\n\n"
        "Running copy.\nmemcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)\n           0\n 0     55.38\n\n"
        "SUM copy 55.38\nCOEFFICIENT_OF_VARIATION copy 0.01\n\nRunning lone.\nSUM lone 7.00\n\n"
        "Running pairs.\nWaived: needs two GPUs\n"
    )
    cases = nvbandwidth.parse(text)
    assert cases["copy"].matrices == [[[55.38]]]
    assert cases["lone"].matrices == []
    assert cases["lone"].reason == "no matrix"
    assert "Waived" in cases["pairs"].reason


@pytest.mark.parametrize("text", ["", "{", "Segmentation fault", '{"a": 1}', "Running x.\n 0 1\n"])
def test_rubbish_is_no_result(text: str) -> None:
    assert not any(case.matrices and case.cell(0, 0) for case in nvbandwidth.parse(text).values())


def program(folder: Path, out: str, status: int = 0) -> str:
    file = folder / "peer"
    (folder / "out").write_text(out, encoding="utf-8")
    file.write_text(f"#!/bin/sh\ncat {folder / 'out'}\nexit {status}\n", encoding="utf-8")
    file.chmod(0o755)
    return str(file)


def test_a_case_that_is_missing_has_a_reason(tmp_path: Path) -> None:
    found = nvbandwidth.run(program(tmp_path, as_json(passed("copy", [["55.38"]]))), ["copy", "other"], 1 << 20)
    assert found["copy"].cell(0, 0) == 55.38
    assert found["other"].reason


def test_its_own_failures_are_told_apart(tmp_path: Path) -> None:
    wrong = " Invalid value when checking the pattern at 0x7f\n Current offset : 12\n" + as_json()
    with pytest.raises(WrongData, match="Invalid value"):
        nvbandwidth.run(program(tmp_path, wrong, 1), ["copy"], 1 << 20)
    with pytest.raises(IobenchError, match=r"status 1.*CUDA_ERROR"):
        nvbandwidth.run(program(tmp_path, "[CUDA_ERROR_NO_DEVICE] no device\n", 1), ["copy"], 1 << 20)


def test_where_the_program_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("PEER", raising=False)
    with pytest.raises(UserError, match="PEER="):
        nvbandwidth.find()
    monkeypatch.setenv("PEER", str(tmp_path / "nothing"))
    with pytest.raises(UserError, match="nothing is no program"):
        nvbandwidth.find()
    file = program(tmp_path, "")
    monkeypatch.setenv("PEER", file)
    assert nvbandwidth.find() == file
    monkeypatch.delenv("PEER")
    Path(file).rename(tmp_path / "nvbandwidth")
    assert nvbandwidth.find() == str(tmp_path / "nvbandwidth")


@pytest.mark.parametrize(("machine", "gpus"), [("1x-h200", 1), ("2x-h200", 2), ("hgx-8x-h100", 8)])
def test_every_row_is_one_point_and_one_cell(machine: str, gpus: int) -> None:
    graph = topology.load(data_dir("topologies") / f"{machine}.json")
    table = gpu.rows([f"gpu:{number}" for number in range(gpus)])
    assert len(table) == {1: 10, 2: 42, 8: 38}[gpus]
    cases = nvbandwidth.parse(TABLES)
    available = probes.files()
    for row in table:
        assert cases[row.case].cell(*row.cell), row
        if row.probe in available:
            probe = probes.load(row.probe)
            assert len(list(probe.points(graph, probes.narrow(probe, row.assignments)))) == 1, row


def test_bars_and_ratios() -> None:
    said: list[str] = []
    good = Row("copy", (0, 0), "pcie", (), peers=[55.4e9, 55.5e9], ours=[55.3e9, 55.6e9])
    late = Row("latency", (0, 0), "pcie", (), latency=True, peers=[1.2e-6, 1.2e-6], ours=[1.25e-6, 1.25e-6])
    assert good.ratio.median == pytest.approx(1.0, abs=2e-3)
    assert late.ratio.median == pytest.approx(0.96)  # slower loads are worse
    assert gpu.judge([good], said.append) is True
    assert gpu.judge([good, late], said.append) is False
    assert "1.200 us" in said[-2]
    assert "FAIL" in said[-2]
    late.reason = "left out"
    assert gpu.judge([good, late], said.append) is True
    assert gpu.judge([], said.append) is False


def test_both_directions_have_a_wider_bar() -> None:
    bars = {row.case: row.bar for row in gpu.rows(["gpu:0", "gpu:1"])}
    assert {bar for case, bar in bars.items() if "bidirectional" in case} == {0.98}
    assert {bar for case, bar in bars.items() if "bidirectional" not in case} == {0.99}
