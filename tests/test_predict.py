"""Predictions of single operations: measured, between sizes, at other counts of ranks, and refusals."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from iobench import export, predict
from iobench.errors import UserError
from iobench.fit import machine_models
from iobench.predict import Query
from iobench.record import Line
from iobench.units import GB, KIB, MIB

from collective_runs import SIZES, collective_run, seconds
from make_run import demo_run, lines, run_of, save


@pytest.fixture(scope="module")
def models() -> machine_models.MachineModels:
    return machine_models.of_run(collective_run())


def test_a_measured_point_gives_its_median(models: machine_models.MachineModels) -> None:
    got = predict.predict(models, Query(SIZES[2], "all_reduce", ranks=4))
    assert got.seconds == pytest.approx(seconds("all_reduce", 4, SIZES[2]), rel=0.01)
    assert got.low is not None
    assert got.high is not None
    assert got.low <= got.seconds <= got.high
    assert got.basis[0] == "measured at this size"


def test_between_sizes_and_ranks(models: machine_models.MachineModels) -> None:
    between = predict.predict(models, Query(3 * MIB, "all_reduce", ranks=4))
    assert between.seconds == pytest.approx(seconds("all_reduce", 4, 3 * MIB), rel=0.03)
    more = predict.predict(models, Query(3 * MIB, "all_gather", ranks=8))
    assert more.seconds == pytest.approx(seconds("all_gather", 8, 3 * MIB), rel=0.06)
    assert any("8 ranks were not measured" in sentence for sentence in more.warnings)


def test_bandwidths_follow_from_the_time(models: machine_models.MachineModels) -> None:
    got = predict.predict(models, Query(64 * MIB, "all_reduce", ranks=8))
    assert got.algbw == pytest.approx(64 * MIB / got.seconds)
    assert got.busbw == pytest.approx(got.algbw * 1.75)
    assert got.busbw == pytest.approx(300 * GB, rel=0.1)


def test_the_text_says_time_rates_and_what_it_rests_on(models: machine_models.MachineModels) -> None:
    text = predict.predict(models, Query(64 * MIB, "all_reduce", ranks=8)).text()
    for word in ("time", "algbw", "busbw", "rests on: 36 records of", "note: 8 ranks were not measured"):
        assert word in text


@pytest.mark.parametrize(
    ("query", "words"),
    [
        (Query(MIB, "broadcast", ranks=4), "broadcast was never measured on 4x-a100; it has all_gather, all_reduce"),
        (Query(MIB, "all_reduce"), "at least two ranks"),
        (Query(MIB, "all_reduce", ranks=9, nodes=2), "do not spread evenly"),
        (Query(MIB, "all_reduce", ranks=64), "cannot predict 64 ranks"),
        (Query(1 << 40, "all_reduce", ranks=4), "cannot predict 1 TiB"),
        (Query(MIB, "all_reduce", ranks=4, axes={"dtype": "int8"}), "no all_reduce with dtype=int8"),
        (Query(MIB, probe="pcie"), "pcie was not measured"),
    ],
)
def test_refusals(models: machine_models.MachineModels, query: Query, words: str) -> None:
    with pytest.raises(UserError, match=words):
        predict.predict(models, query)


def test_an_ambiguous_question_names_the_axis() -> None:
    run = collective_run(ops=("all_reduce",))
    other = collective_run(ops=("all_reduce",), dtype="bfloat16")
    both = machine_models.of_run(type(run)(run.path, run.header, [*run.records, *other.records]))
    with pytest.raises(UserError, match="dtype is bfloat16 or float32; choose one, as in -a dtype=float32"):
        predict.predict(both, Query(MIB, "all_reduce", ranks=4))
    got = predict.predict(both, Query(MIB, "all_reduce", ranks=4, axes={"dtype": "bfloat16"}))
    assert "dtype=bfloat16" in got.series


def test_out_of_place_is_preferred() -> None:
    run = collective_run(ops=("all_reduce",), inplace=False)
    other = collective_run(ops=("all_reduce",), inplace=True)
    both = machine_models.of_run(type(run)(run.path, run.header, [*run.records, *other.records]))
    assert "inplace=False" in predict.predict(both, Query(MIB, "all_reduce", ranks=4)).series


def test_any_probes_series_can_be_asked(tmp_path: Path) -> None:
    folder = save(demo_run(), tmp_path / "run").parent
    got = predict.predict(folder, Query(32 * KIB, probe="dram"))
    assert got.busbw is None
    assert got.seconds > 0


def files_lines() -> list[Line]:
    """Return loads of several files: 2 ms per file beside 2 GB/s."""
    out: list[Line] = []
    for files in (1, 4, 16):
        for nbytes in (16 * MIB, 64 * MIB, 256 * MIB):
            point = {"method": "odirect", "files": files, "nbytes": nbytes}
            out += lines("weights", point, 0.002 * files + nbytes / (2 * GB), noise=0.001)
    return out


def test_a_models_further_regressors_are_given_as_axes() -> None:
    declared = {"weights": [{"kind": "weights", "where": {"method": "odirect"}, "extras": {"files": "files"}}]}
    found = machine_models.of_run(run_of(files_lines(), models=declared))
    got = predict.predict(found, Query(128 * MIB, probe="weights", axes={"files": "8"}))
    assert got.seconds == pytest.approx(0.016 + 128 * MIB / (2 * GB), rel=0.02)
    with pytest.raises(UserError, match="files"):
        predict.predict(found, Query(128 * MIB, probe="weights"))


def test_a_published_curve_has_no_interval_where_it_was_measured() -> None:
    got = predict.predict("published:h200-nvlink", Query(MIB, "all_reduce", ranks=8))
    assert (got.low, got.high) == (None, None)
    assert "no interval can be known" in got.text()
    assert predict.predict("published:h200-nvlink", Query(MIB, "all_reduce", ranks=16)).low is not None


def test_several_runs_join_to_foretell_more_nodes() -> None:
    specs = ["published:h100-16gpu-2nodes-ndr-b", "published:h100-32gpu-4nodes-ndr-b"]
    query = Query(64 * MIB, "all_reduce", ranks=64, nodes=8, axes={"inplace": "true"})
    got = predict.predict(specs, query)
    assert got.low is not None
    assert got.high is not None
    assert got.low < 709.2e-6 < got.high  # what the same author measured with 8 nodes
    with pytest.raises(UserError, match="two counts of nodes"):
        predict.predict(specs[:1], query)


def test_a_working_set_over_the_time_of_one_load_is_no_rate(tmp_path: Path) -> None:
    """A pointer chase touches one line at a time, however large its working set."""
    folder = save(demo_run(), tmp_path / "r").parent
    got = predict.predict(folder, Query(64 * KIB, probe="dram", axes={"kind": "levels", "kernel": "chase"}))
    assert got.algbw is None
    assert "algbw" not in got.text()
    rows = [row for row in csv.DictReader(export.export(str(folder), "table").splitlines()) if "chase" in row["series"]]
    assert {row["algbw_GBps"] for row in rows} == {""}


def test_a_run_of_many_probes_is_first_asked_for_the_probe(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="probe is allreduce or dram"):
        predict.predict(save(demo_run(), tmp_path / "r").parent, Query(64 * KIB))
