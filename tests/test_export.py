"""Exports: each is read back by a reader of its own, which knows the format's units, and gives the numbers again."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
from iobench import export
from iobench.errors import UserError
from iobench.export import Options
from iobench.fit import machine_models
from iobench.record import Run
from iobench.units import MIB

from collective_runs import BASE, HOP, RATE, SIZES, collective_lines, collective_run, seconds
from make_run import run_of, save

GIB_PER_S = float(1 << 30)
OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(collective_run(ops=OPS), tmp_path_factory.mktemp("run")).parent


@pytest.fixture(scope="module")
def models_file(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return machine_models.open(run).save(tmp_path_factory.mktemp("models") / "m.models.json")


def lists(text: str) -> dict[str, list[str]]:
    """Read ASTRA-sim's yaml: "name: [ a, b ]  # comment"."""
    found = re.findall(r"^(\w+): \[ ([^\]]*) \]", text, re.MULTILINE)
    return {name: [value.strip() for value in values.split(",")] for name, values in found}


def groups(text: str) -> dict[str, dict[str, float | None]]:
    """Read SimAI's busbw file as its parser does: the first line is skipped, keys end at a comma or colon."""
    out: dict[str, dict[str, float | None]] = {}
    section = ""
    for line in text.splitlines()[1:]:
        if not line or line.startswith("#"):
            continue
        if line.endswith(":"):
            section = line[:-1]
            continue
        key, _, value = line.partition(":")
        out.setdefault(section, {})[key.partition(",")[0]] = None if value.strip() == "null" else float(value)
    return out


def test_astra_sim_reads_the_known_machine(run: Path) -> None:
    """The backend takes bandwidth times 2^30 and crosses a switch's two links per step."""
    text = export.export(run, "astra-sim", Options(op="all_reduce"))
    found = lists(text)
    assert found["topology"] == ["Switch"]
    assert found["npus_count"] == ["4"]
    assert float(found["bandwidth"][0]) * GIB_PER_S == pytest.approx(RATE, rel=0.03)
    assert float(found["latency"][0]) * 2 * 1e-9 == pytest.approx(HOP, rel=0.05)
    ring = 2 * 3 * (float(found["latency"][0]) * 2e-9 + 16 * MIB / 4 / (float(found["bandwidth"][0]) * GIB_PER_S))
    assert ring + BASE == pytest.approx(seconds("all_reduce", 4, 16 * MIB), rel=0.03)


def test_simai_busbw_reads_gib_per_second(run: Path) -> None:
    text = export.export(run, "simai-busbw", Options(nbytes=16 * MIB))
    found = groups(text)
    assert set(found) == {"TP", "DP", "EP", "PP"}
    names = {
        "allreduce": "all_reduce",
        "allgather": "all_gather",
        "reducescatter": "reduce_scatter",
        "alltoall": "all_to_all",
    }
    for name, op in names.items():
        factor = 1.5 if op == "all_reduce" else 0.75
        rate = found["TP"][name]
        assert rate is not None
        simulated = 16 * MIB / (1024 * 1024 * 1024) / rate * factor  # Layer.cc: data_size * GBps / busbw * factor
        assert simulated == pytest.approx(seconds(op, 4, 16 * MIB), rel=0.02)
    assert set(found["DP"].values()) == {None}
    assert found["PP"] == {"busbw": None}


def test_simai_ratio_has_the_shape_of_the_curve(run: Path) -> None:
    rows = list(csv.reader(export.export(run, "simai-ratio").splitlines()))
    assert len(rows[0]) == 13
    assert all(len(row) == 13 for row in rows)
    table = {int(row[0]): float(row[1]) for row in rows[1:]}
    assert list(table) == sorted(table) == list(SIZES)
    for nbytes, ratio in table.items():
        truth = nbytes / seconds("all_gather", 4, nbytes) / (SIZES[-1] / seconds("all_gather", 4, SIZES[-1]))
        assert ratio / table[SIZES[-1]] == pytest.approx(truth, rel=0.03, abs=1e-4)
    assert {cell for row in rows[1:] for cell in row[2:]} == {""}


def test_a_table_of_an_op_that_nobody_measured_is_refused() -> None:
    with pytest.raises(UserError, match=r"holds no all_reduse \(it has all_reduce\)"):
        export.export("published:h100-nvlink", "table", Options(op="all_reduse"))


def test_the_table_gives_every_point_again(run: Path, models_file: Path) -> None:
    text = export.export(run, "table")
    assert text == export.export(models_file, "table")
    rows = list(csv.DictReader(text.splitlines()))
    assert len(rows) == len(OPS) * 2 * len(SIZES)
    for row in rows:
        op, ranks = re.findall(r"op=(\w+)", row["series"])[0], int(re.findall(r"ranks=(\d+)", row["series"])[0])
        truth = seconds(op, ranks, int(row["nbytes"]))
        assert float(row["time_us"]) == pytest.approx(truth * 1e6, rel=0.02)
        assert float(row["low_us"]) <= float(row["time_us"]) <= float(row["high_us"])
        assert float(row["algbw_GBps"]) == pytest.approx(int(row["nbytes"]) / truth / 1e9, rel=0.02)
        assert float(row["busbw_GBps"]) / float(row["algbw_GBps"]) == pytest.approx(
            (2 if op == "all_reduce" else 1) * (ranks - 1) / ranks, rel=1e-4
        )


# NCCL's tuner file -------------------------------------------------------------------------------


def tuner(text: str) -> list[list[str]]:
    """Read the file as the example plugin does: comments and empty lines skipped, eight fields at least."""
    found = [line.split(",") for line in text.splitlines() if line and not line.startswith("#")]
    assert all(len(fields) >= 8 and not any(" " in field for field in fields) for fields in found)
    assert all(len(line) < 256 for line in text.splitlines())
    return found


def forced() -> Run:
    """Return LL fastest to 64 KiB, Simple above: both forced at all sizes, as two more axes of the points."""
    kept = []
    for proto, factor in (("LL", lambda n: 1 if n <= 64 << 10 else 3), ("SIMPLE", lambda n: 3 if n <= 64 << 10 else 1)):
        for line in collective_lines("all_reduce", (4,), algo="RING", proto=proto, noise=0.0):
            line.seconds = [[t * factor(line.nbytes) for t in row] for row in line.seconds]
            kept.append(line)
    return run_of(kept, name="4x-a100", topology={})


def test_the_tuner_file_pins_the_fastest(tmp_path: Path) -> None:
    rows = tuner(export.export(save(forced(), tmp_path / "r").parent, "nccl-tuner"))
    assert [row[:1] + row[3:] for row in rows] == [
        ["allreduce", "ring", "ll", "-1", "1", "4"],
        ["allreduce", "ring", "simple", "-1", "1", "4"],
    ]
    (first, middle), (after, last) = ([int(value) for value in row[1:3]] for row in rows)
    assert (first, last) == (SIZES[0], SIZES[-1])
    assert after == middle + 1
    assert 64 << 10 <= middle < 256 << 10


def test_what_nccl_chose_by_itself_is_pinned_too(tmp_path: Path) -> None:
    kept = collective_lines("all_gather", (4,))
    for line in kept:
        line.point |= {
            "algo": "NVLS" if line.nbytes >= MIB else "RING",
            "proto": "SIMPLE" if line.nbytes >= MIB else "LL128",
        }
    rows = tuner(export.export(save(run_of(kept, topology={}), tmp_path / "r").parent, "nccl-tuner"))
    assert [row[3:5] for row in rows] == [["ring", "ll128"], ["nvls", "simple"]]


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("nccl-tuner", Options(), "no time whose algorithm and protocol are known"),
        ("astra-sim", Options(op="broadcast"), "holds no broadcast"),
        ("simai-ratio", Options(op="reduce"), "holds no reduce"),
        ("simai-busbw", Options(nbytes=1 << 40), "choose --nbytes in that range"),
        ("astrasim", Options(), "did you mean astra-sim"),
    ],
)
def test_what_the_data_cannot_support_is_refused(run: Path, name: str, options: Options, words: str) -> None:
    with pytest.raises(UserError, match=words):
        export.export(run, name, options)


def test_a_models_file_has_no_tuner_file(models_file: Path) -> None:
    with pytest.raises(UserError, match="export the run"):
        export.export(models_file, "nccl-tuner")


def test_one_number_of_ranks_tells_no_hop(tmp_path: Path) -> None:
    folder = save(collective_run(ops=("all_reduce",), counts=(4,)), tmp_path / "r").parent
    with pytest.raises(UserError, match="two numbers of ranks"):
        export.export(folder, "astra-sim")


def test_every_format_cites_its_source() -> None:
    for name, found in export.formats().items():
        document = __import__(found.write.__module__, fromlist=["x"]).__doc__
        assert name == "table" or "Format: " in document
