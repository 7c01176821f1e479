"""Logs of nccl-tests and its relatives: every oddity that broke other tools has its file and its right value."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from iobench import importers
from iobench.errors import UserError
from iobench.fit import fit_run
from iobench.importers import Imported
from iobench.record import Record, Run

LOGS = Path(__file__).parent / "fixtures" / "logs"


def read(name: str, **options: bool) -> tuple[Imported, Run]:
    log = importers.load(LOGS / name)
    imported = importers.read_log(log, **options)
    return imported, importers.to_run(log, imported)


def text(content: str, name: str = "log.txt") -> tuple[Imported, Run]:
    from iobench.importers.log import from_bytes

    log = from_bytes(content.encode(), name)
    imported = importers.read_log(log)
    return imported, importers.to_run(log, imported)


def one(run: Run, **axes: object) -> Record:
    (found,) = [r for r in run if all(r.point.get(name) == value for name, value in axes.items())]
    return found


# --- the measured machine: complete, with row counts ---------------------------------------------------


@pytest.mark.parametrize(
    ("name", "rows", "points"),
    [
        ("h200x2_nccl_tests_all_reduce_nvlink.txt", 27, 54),
        ("h200x2_nccl_tests_all_reduce_shm_p2p_disabled.txt", 27, 54),
        ("h200x2_nccl_tests_all_reduce_socket_p2p_shm_disabled.txt", 27, 54),
        ("h200x2_nccl_tests_process_shapes.txt", 36, 72),
        ("h200x2_cupy_nccl_graph.txt", 8, 16),
        ("h200x2_torch_all_reduce_eager_vs_graph.txt", 46, 92),
        ("h200x2_nccl_info_tuning.txt", 40, 0),
    ],
)
def test_files_of_the_measured_machine_import_completely(name: str, rows: int, points: int) -> None:
    imported, run = read(name)
    assert (imported.rows, imported.unread, len(run)) == (rows, [], points)
    assert all(record.status == "ok" and record.point["ranks"] == 2 for record in run)


def test_a_whole_run_with_nccl_lines() -> None:
    imported, run = read("h200x2_nccl_tests_all_reduce_nvlink.txt")
    assert run.machine == "2 x NVIDIA H200"
    largest = one(run, nbytes=512 << 20, inplace=True)
    assert largest.point == {
        "op": "all_reduce", "engine": "nccl", "ranks": 2, "nodes": 1, "dtype": "float32", "inplace": True,
        "nbytes": 512 << 20,
    }  # fmt: skip
    assert largest.bytes_per_s == pytest.approx(316.24e9, rel=1e-4)
    assert largest.mode == "pipelined"
    assert largest.aggregate == "mean of 100 iterations, mean over ranks"
    assert not largest.time.known
    assert not largest.first.proven  # no channel line says which way: NVLink is not guessed
    assert imported.incomplete == ""
    assert "headers of NCCL 2.28.9 and ran with NCCL 2.28.3" in imported.problems[0]
    assert run.header.environment == {"NCCL_NVLS_ENABLE": "0"}


def test_a_log_of_the_socket_way_keeps_its_settings() -> None:
    _, run = read("h200x2_nccl_tests_all_reduce_socket_p2p_shm_disabled.txt")
    assert run.header.environment["NCCL_SHM_DISABLE"] == "1"
    assert one(run, nbytes=8, inplace=False).time.median == pytest.approx(26.94e-6)


def test_process_shapes_are_told_apart_and_graphs_are_another_mode() -> None:
    _, run = read("h200x2_nccl_tests_process_shapes.txt")
    medians = {(r.point["shape"], r.mode): r.time.median for r in run if r.nbytes == 8 and not r.point["inplace"]}
    assert medians == {
        ("1 process x 1 thread x 2 GPUs", "pipelined"): pytest.approx(14.93e-6),
        ("1 process x 2 threads x 1 GPU", "pipelined"): pytest.approx(11.06e-6),
        ("1 process x 2 threads x 1 GPU", "graph"): pytest.approx(5.45e-6),
        ("1 process x 1 thread x 2 GPUs", "graph"): pytest.approx(5.78e-6),
    }


def test_python_loops_keep_their_modes_settings_and_what_they_are() -> None:
    imported, run = read("h200x2_torch_all_reduce_eager_vs_graph.txt")
    assert "ends with a title without rows" in imported.incomplete
    graph = one(run, nbytes=8, mode="graph", settings="NCCL_P2P_DISABLE=1")
    assert graph.time.median == pytest.approx(12.01e-6)
    assert graph.aggregate == "median of the loop's iterations"
    _, run = read("h200x2_cupy_nccl_graph.txt")
    assert one(run, nbytes=512 << 20, mode="graph").bytes_per_s == pytest.approx(312.9e9, rel=1e-3)


def test_tuning_lines_are_facts_of_the_machine() -> None:
    _, run = read("h200x2_nccl_info_tuning.txt")
    facts = run.header.machine["nccl"]
    assert facts["transport"] == "nvlink"
    assert facts["channels"] == {"P2P/CUMEM": 22}
    assert {t["nbytes"]: (t["algo"], t["proto"], t["channels"]) for t in facts["tuning"]}[65536] == ("ring", "ll", 8)


# --- one rank, several jobs ----------------------------------------------------------------------------


def test_one_rank_is_skipped_and_in_no_fit() -> None:
    _, run = read("one_rank_busbw_0.txt")
    assert {record.status for record in run} == {"skipped"}
    assert "one rank" in run.records[0].reason
    assert all(fitted.model is None for fitted in fit_run(run))


def test_separate_jobs_are_not_one_result() -> None:
    imported, run = read("two_1_process_jobs_built_without_mpi.txt")
    assert imported.rows == 2
    assert any(p.startswith("2 separate 1-process jobs, not one job of 2 ranks") for p in imported.problems)
    assert {record.point["ranks"] for record in run} == {1}
    assert all("nodes" not in record.point and not record.used for record in run)


# --- columns, definitions, units -----------------------------------------------------------------------


def test_old_table_rows_of_size_0_and_a_plateau_above_its_average() -> None:
    imported, run = read("old_error_column_1_gpu_group_superbench_like.log")
    assert imported.rows == 7
    assert imported.incomplete == "all_reduce_perf: 27 of 34 planned sizes are missing"
    assert len(run) == 10  # the rows of size 0 moved nothing
    largest = one(run, nbytes=8 << 30, inplace=True)
    assert largest.bytes_per_s == pytest.approx(230.34e9, rel=1e-4)  # from the time; no average is ever formed
    assert largest.first.verified is None


def test_in_place_not_applicable_is_no_failure_and_no_zero() -> None:
    imported, run = read("sendrecv_in_place_not_checked_no_name.txt")
    assert {record.point["op"] for record in run} == {"sendrecv"}
    assert one(run, nbytes=1024, inplace=False).first.verified is True
    assert one(run, nbytes=1024, inplace=True).first.verified is None
    assert not imported.problems
    assert run.records[0].point["nodes"] == 2


def test_algbw_before_2020_gives_the_same_bus_bytes() -> None:
    imported, run = read("old_algbw_all_gather_before_2020.txt")
    row = one(run, nbytes=262144, inplace=False)
    assert row.bytes_per_s == pytest.approx(4.18e9, rel=2e-3)
    assert row.moved == 131072
    assert "before 2020" in imported.normalised[0]


def test_times_in_ms_of_the_first_nccl_tests() -> None:
    imported, run = read("nccl1_times_in_ms.txt")
    assert one(run, dtype="float32", inplace=False).time.median == pytest.approx(620e-6)
    assert any("in ms" in sentence for sentence in imported.normalised)


def test_per_iteration_columns_and_timestamps() -> None:
    imported, run = read("per_iteration_and_timestamps.txt")
    assert (imported.rows, imported.unread, imported.incomplete) == (2, [], "")
    row = one(run, nbytes=2 << 20, inplace=True)
    assert row.point["op"] == "broadcast"
    assert row.time.median == pytest.approx(31e-6)
    assert row.first.evidence["rows"] == ["line 8: 31.00 67.65 67.65 0 28.20 43.20 40.30 3.20"]


def test_figures_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(UserError, match=r"busbw 12\.61 is not that of .*algbw 35\.51 does not follow"):
        read("made_up_figures_busbw_does_not_follow.txt")


def test_ranks_by_the_figures_where_the_devices_are_cut() -> None:
    _, run = read("only_the_last_device_line_72_ranks.txt")
    assert {record.point["ranks"] for record in run} == {72}
    assert all("nodes" not in record.point for record in run)


def test_a_time_that_falls_with_size_stays_as_it_is() -> None:
    _, run = read("non_monotone_ring_1_to_4_MiB.txt")
    assert [r.time.median * 1e6 for r in run if not r.point["inplace"]] == pytest.approx([181.3, 389.4, 143.0])


# --- tags and lines between -----------------------------------------------------------------------------


def test_tags_of_mpirun_and_the_proof_of_the_network() -> None:
    imported, run = read("mpirun_tag_output_alltoall.txt")
    assert (imported.rows, imported.incomplete) == (2, "")
    point = run.records[0].point
    assert (point["op"], point["transport"], point["ranks"], point["nodes"]) == ("all_to_all", "roce", 4, 2)
    assert run.records[0].first.proven
    assert one(run, nbytes=1 << 20, inplace=False).bytes_per_s == pytest.approx(7.86e9, rel=2e-3)


def test_pod_names_times_and_sizes_rounded_to_zero() -> None:
    imported, run = read("kubectl_prefix_and_times_reduce_scatter.txt")
    assert (imported.rows, len(run)) == (3, 4)
    assert run.records[0].point["op"] == "reduce_scatter"
    assert {record.point["ranks"] for record in run} == {8}  # by the count: 4 of 32 elements


def test_a_row_cut_in_two_by_nccl_is_one_row() -> None:
    imported, run = read("row_cut_by_nccl_info.txt")
    assert (imported.rows, imported.unread) == (2, [])
    assert one(run, nbytes=8, inplace=False).time.median == pytest.approx(26.94e-6)
    assert run.records[0].point["transport"] == "shm"


def test_comment_signs_eaten_by_a_forum() -> None:
    imported, run = read("comment_signs_eaten_by_a_forum.txt")
    assert (imported.rows, imported.incomplete, len(run)) == (2, "", 4)
    assert one(run, nbytes=64 << 20, inplace=True).bytes_per_s == pytest.approx(195.74e9, rel=1e-3)


def test_rccl_tests_are_another_engine() -> None:
    imported, run = read("rccl_version_line_between.txt")
    assert imported.format == "rccl-tests"
    assert {record.point["engine"] for record in run} == {"rccl"}
    assert imported.incomplete == ""


# --- wrong data, early ends -----------------------------------------------------------------------------


def test_wrong_values_fail_their_row_only_and_enter_no_fit() -> None:
    imported, run = read("wrong_values_in_one_row.txt")
    bad = one(run, nbytes=1 << 20, inplace=False)
    assert bad.wrong_data
    assert "#wrong 65536" in bad.reason
    assert sum(record.wrong_data for record in run) == 1
    assert any("FAILED" in problem for problem in imported.problems)
    assert all(fitted.model is None or 1 << 20 not in [m.nbytes for m in fitted.model.measured] or
               fitted.axes["inplace"] for fitted in fit_run(run))  # fmt: skip


def test_old_errors_above_what_the_type_allows_are_wrong_data_at_64_bit_sizes() -> None:
    _, run = read("failed_error_column_1e_plus_00.txt")
    assert {(r.nbytes, r.wrong_data) for r in run} == {(2 << 30, False), (4 << 30, True)}
    assert {r.point["ranks"] for r in run} == {8}


def test_an_early_end_is_incomplete_not_shorter() -> None:
    imported, run = read("ends_early_killed_in_a_row.txt")
    assert "8 of 11 planned sizes are missing" in imported.incomplete
    assert "ends early" in imported.incomplete
    assert [row.number for row in imported.unread] == [14]
    assert any("Test NCCL failure" in problem for problem in imported.problems)
    assert run.header.request["incomplete"] == imported.incomplete


def test_a_run_without_rows_is_refused_with_its_reason() -> None:
    log = "# nThread 1 nGpus 2 minBytes 8 maxBytes 1024 step: 2(factor) warmup iters: 5 iters: 20 validation: 0\n"
    with pytest.raises(UserError, match=r"ended before its first row.*Test NCCL failure"):
        text(log + "box: Test NCCL failure common.cu:959 'internal error / '\n")


def test_failed_without_a_row_that_says_where_makes_all_rows_suspect() -> None:
    head = "#       size         count      type   redop    root     time   algbw   busbw #wrong\n"
    rows = "        1024           256     float     sum      -1    10.00    0.10    0.10      0\n"
    _, run = text(f"./all_reduce_perf -g 2\n{head}{rows}# Out of bounds values : 1 FAILED\n")
    assert run.records[0].status == "suspect"


# --- ranks, launches, json ------------------------------------------------------------------------------


def test_the_same_sweep_again_is_a_further_launch_with_an_interval() -> None:
    content = (LOGS / "rccl_version_line_between.txt").read_text()
    _, run = text(content + content.replace("91.10   92.08", "92.00   91.18").replace("161.14", "159.57"))
    record = one(run, nbytes=8 << 20, inplace=False)
    assert len(record.lines) == 2
    assert record.time.known
    assert record.time.median == pytest.approx(91.55e-6)


def test_repeated_cycles_of_one_process_are_values_of_one_launch() -> None:
    content = (LOGS / "wrong_values_in_one_row.txt").read_text().splitlines(keepends=True)
    _, run = text("".join([*content[:5], content[5], content[7], content[5], content[7], *content[8:]]))
    record = one(run, nbytes=524288, inplace=False)
    assert [len(line.seconds[0]) for line in record.lines] == [2]


def report(**changes: object) -> dict[str, object]:
    side = {"time": 20.0, "alg_bw": 52.4288, "bus_bw": 52.4288, "nwrong": 0.0}
    iterations = {"skipped_iterations": 1, "times_us": [50.0, 19.0, 20.0, 21.0], "min_us": 19.0}
    row = {"size": 1 << 20, "count": 1 << 18, "type": "float", "redop": "sum", "root": "    -1", "out_of_place": side}
    row |= {"in_place": {**side, "nwrong": None}, "out_of_place_per_iter": iterations, "actual_iterations": 4}
    config = {"nthreads": 1, "ngpus": 2, "minimum_bytes": 1 << 20, "maximum_bytes": 1 << 20, "step_factor": 2,
              "warmup_iters": 1, "iterations": 20, "aggregated_iterations": 1, "validation": 1, "graph": 0,
              "devices": [{"rank": r, "group": 0, "hostname": "secret-host", "device_info": "NVIDIA H200"}
                          for r in (0, 1)]}  # fmt: skip
    return {
        "version": 1, "start_time": "2026-01-02 03:04:05", "args": ["./build/all_reduce_perf", "-J", "x"],
        "env": ["AWS_SECRET=hunter2", "NCCL_DEBUG=INFO", "NCCL_API_TOKEN=hunter2"], "nccl_version": 22809,
        "config": config, "results": [row], "out_of_bounds": {"count": 0, "okay": "true"},
        "average_bus_bandwidth": {"bandwidth": "nan", "okay": "unchecked"}, "errors": [], **changes,
    }  # fmt: skip


def test_json_reports_give_raw_iterations_and_no_secrets() -> None:
    imported, run = text(json.dumps(report()))
    raw = one(run, inplace=False)
    assert raw.aggregate == ""
    assert raw.first.seconds == [[pytest.approx(19e-6), pytest.approx(20e-6), pytest.approx(21e-6)]]
    assert raw.first.warmup == [[pytest.approx(50e-6)]]
    assert one(run, inplace=True).first.verified is None
    assert run.header.environment == {"NCCL_DEBUG": "INFO"}
    everything = "".join(line.to_json() for record in run for line in record.lines) + run.header.to_json()
    assert "hunter2" not in everything
    assert "secret-host" not in everything
    assert imported.incomplete == ""


def test_json_that_was_cut_off_gives_its_whole_rows() -> None:
    whole = json.dumps(report())
    imported, run = text(whole[: whole.index('"out_of_bounds"') - 2])
    assert len(run) == 2
    assert "ends early" in imported.incomplete
    failed, _ = text(json.dumps(report(out_of_bounds={"count": 3, "okay": "false"})))
    assert any("3 FAILED" in problem for problem in failed.problems)


def test_cpu_time_is_not_taken_for_the_operations_time() -> None:
    head = "#       size         count      type   redop    root   cputime   algbw   busbw #wrong\n"
    rows = ("        1024           256     float     sum      -1     1.00    0.10    0.10      0\n"
            "  1073741824     268435456     float     sum      -1     1.00  250.00  250.00      0\n")  # fmt: skip
    imported, run = text(f"./all_reduce_perf -g 2 -C 1\n{head}{rows}# Out of bounds values : 0 OK\n")
    assert len(imported.unread) == 1
    assert run.records[0].time.median == pytest.approx((1 << 30) / 250e9)


def test_many_runs_alike_read_like_few() -> None:
    """From the hundredth run on only figures are looked at: all of them count, and an odd one is still seen."""
    content = (LOGS / "rccl_version_line_between.txt").read_text()
    odd = content.replace("91.10   92.08  161.14      0", "91.10   92.08  161.14      7")
    bad = content.replace("91.10   92.08", "91.10   29.08")
    imported, run = text(content * 130 + odd + content * 2 + bad)
    record = one(run, nbytes=16 << 20, inplace=False)
    assert imported.rows == 2 * 134
    assert sum(len(line.seconds[0]) for line in record.lines) == 134
    assert len(record.lines) == 100
    assert one(run, nbytes=8 << 20, inplace=False).wrong_data
    assert len(imported.unread) == 1
    assert "algbw 29.08 does not follow" in imported.unread[0].why
    numbers = [int(row.split()[1][:-1]) for line in record.lines for row in line.evidence["rows"]]
    assert sorted(numbers) == [18 + 23 * k for k in range(134)]
