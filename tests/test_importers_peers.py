"""Logs of copy, memory, network and storage tools: the right values out of real ones; the odd thing in the name."""

import pytest
from iobench import importers
from iobench.errors import UserError
from iobench.importers.formats import _nvbandwidth

from peer_logs import FIXTURES, GB, LOGS, MIB, US, asked, of_text, one, rate, read

# ---- nvbandwidth ------------------------------------------------------------


def test_h200x2_nvbandwidth_is_read_completely() -> None:
    run = importers.read(FIXTURES / "nvbandwidth" / "0.8-2x-h200.txt")
    assert (len(run), asked(run, "rows"), asked(run, "unread_rows"), asked(run, "incomplete")) == (86, 60, 0, "")
    assert {record.status for record in run} == {"ok"}
    one_way = {"direction": "h2d", "engine": "ce", "traffic": "one", "gpus": "1"}
    plain = [r for r in run.of("pcie") if one_way.items() <= r.point.items() and "others" not in r.point]
    assert [r.bytes_per_s for r in plain] == [pytest.approx(55.33 * GB)]


def test_nvbandwidth_counts_a_local_copy_once_and_the_record_twice() -> None:
    run = importers.read(FIXTURES / "nvbandwidth" / "0.8-2x-h200.txt")
    local = one(run, kernel="memcpy", gpu=0)
    assert local.bytes_per_s == pytest.approx(2 * 2093.06 * GB)
    assert local.first.evidence["printed"] == 2093.06
    assert "nbytes" not in local.point, "the log does not say the size"


def test_nvbandwidth_latencies_are_nanoseconds() -> None:
    run = importers.read(FIXTURES / "nvbandwidth" / "0.8-2x-h200.txt")
    chase = one(run, op="chase", gpu=1, peer=0)
    assert (chase.quantity, chase.time.median) == ("latency", pytest.approx(827.82e-9))
    assert one(run, op="chase", gpus="0").time.median == pytest.approx(1199.81e-9)


def test_nvbandwidth_tells_both_directions_and_their_sum_apart() -> None:
    run = importers.read(FIXTURES / "nvbandwidth" / "0.8-2x-h200.txt")
    both = [r for r in run.of("p2p") if r.point.get("traffic") == "both" and r.point["engine"] == "ce"]
    reads = {r.point.get("stream", ""): r.bytes_per_s / GB for r in both if r.point["direction"] == "read" and r.point["gpu"] == 0}  # fmt: skip  # noqa: E501
    assert reads == {"": pytest.approx(389.25), "the opposite one": pytest.approx(389.42), "mean of both": pytest.approx(778.67 / 2)}  # fmt: skip  # noqa: E501


def test_nvbandwidth_old_version_without_margin() -> None:
    run = read("nvbandwidth-0.2-8x-4090-no-margin-bidirectional.txt")
    assert (len(run), asked(run, "incomplete")) == (4, "")
    assert rate(run, gpus="1", direction="d2h") == pytest.approx(26.47 * GB)


def test_nvbandwidth_table_without_its_case_is_named_by_the_sum() -> None:
    run = read("nvbandwidth-0.8-6x-a6000-cut-out-of-a-log.txt")
    assert (len(run), asked(run, "incomplete")) == (30, "")
    assert rate(run, gpu=3, peer=0, direction="read") == pytest.approx(21.82 * GB)


def test_nvbandwidth_two_runs_keep_their_buffer_sizes() -> None:
    run = read("nvbandwidth-0.8-two-runs-with-two-buffer-sizes.txt")
    assert {record.nbytes: round(record.bytes_per_s / GB, 2) for record in run} == {512 * MIB: 25.13, 20480 * MIB: 16.5}


def test_nvbandwidth_wrong_data_fails_the_case() -> None:
    run = read("nvbandwidth-0.7-wrong-data-no-matrix.txt")
    assert [(record.status, record.wrong_data) for record in run] == [("failed", True)]
    assert any("Invalid value when checking" in warning for warning in run.warnings)


def test_nvbandwidth_matrix_with_a_missing_row_is_suspect_and_incomplete() -> None:
    run = read("nvbandwidth-0.8-last-row-of-a-matrix-missing.txt")
    assert [record.status for record in run] == ["suspect"]
    assert "1 rows for 2 GPUs" in str(asked(run, "incomplete"))


def test_nvbandwidth_sum_that_does_not_fit_marks_the_case() -> None:
    text = (FIXTURES / "nvbandwidth" / "0.8-2x-h200.txt").read_text(encoding="utf-8")
    run = of_text(text.replace("SUM host_to_device_memcpy_ce 110.71", "SUM host_to_device_memcpy_ce 220.00"))
    assert "add up to 110.71, nvbandwidth says 220.00" in str(asked(run, "incomplete"))
    assert sum(record.status == "suspect" for record in run) == 2


def test_nvbandwidth_json_and_its_host_is_hidden() -> None:
    run = read("nvbandwidth-json-cells-are-text-sum-of-last-matrix.json")
    assert len(run) == 6
    assert rate(run, gpu=1, peer=0, stream="mean of both") == pytest.approx(778.87 / 2 * GB)
    assert "testhost" not in str(run.header)
    assert any("multinode_bisect_write_ce: Waived" in warning for warning in run.warnings)


def test_nvbandwidth_parser_is_the_crosschecks() -> None:
    from iobench.crosscheck import nvbandwidth

    assert nvbandwidth.parse is _nvbandwidth.parse


# ---- p2pBandwidthLatencyTest ------------------------------------------------------------


def test_p2p_sample_diagonal_is_the_gpus_memory() -> None:
    run = read("p2p-6x-a10g-no-sm-copy-ends-early.txt")
    assert len(run) == 9 + 9 + 6
    first = next(r for r in run.of("hbm") if r.point["gpu"] == 0)
    assert first.bytes_per_s == pytest.approx(911.08 * GB)
    assert rate(run, gpu=0, peer=1, peer_access=True, direction="write") == pytest.approx(9.90 * GB)
    assert rate(run, gpu=0, peer=2, traffic="both") == pytest.approx(30.53 / 2 * GB), "it prints the sum"


def test_p2p_sample_that_lacks_a_row_and_its_end_is_incomplete() -> None:
    run = read("p2p-6x-a10g-no-sm-copy-ends-early.txt")
    assert "no row for GPU 2" in str(asked(run, "incomplete"))
    assert "incomplete" in run.warnings[0]


def test_p2p_sample_latencies_by_both_clocks() -> None:
    run = read("p2p-latency-gpu-and-cpu-tables.txt")
    assert len(run) == 16
    assert one(run, gpu=0, peer=1, clock="the GPU's", peer_access=False).time.median == pytest.approx(14.95 * US)
    assert one(run, gpu=1, peer=0, clock="the host's", peer_access=True).time.median == pytest.approx(2.11 * US)


def test_nvbandwidth_of_both_directions_is_never_over_the_link() -> None:
    from iobench.check import judge

    run = importers.read(FIXTURES / "nvbandwidth" / "0.8-2x-h200.txt")
    assert not [key for key, verdict in judge(run).items() if verdict.status == "impossible"]


# ---- ucx_perftest ------------------------------------------------------------


def test_ucx_mb_is_mib_and_only_the_final_row_counts() -> None:
    run = read("ucx-tag-bw-two-tests-size-in-command.txt")
    assert rate(run, nbytes=81920000) == pytest.approx(46743.62 * MIB)
    assert len(run) == 1


def test_ucx_test_without_final_row_is_suspect_and_incomplete() -> None:
    run = read("ucx-am-lat-ended-before-its-final-row.txt")
    record = one(run, nbytes=30000)
    assert (record.status, record.time.median) == ("suspect", pytest.approx(16.081 * US))
    assert asked(run, "incomplete")


def test_ucx_facts_of_the_box() -> None:
    record = one(read("ucx-put-bw-header-box-threads.txt"), send_memory="host", recv_memory="cuda")
    assert (record.nbytes, record.bytes_per_s) == (65536, pytest.approx(483.33 * MIB))


# ---- gdsio ------------------------------------------------------------


def test_gdsio_rates_are_gib_and_the_path_is_not_proven() -> None:
    run = read("gdsio-gpud-label-says-nothing-of-the-path.txt")
    record = one(run, method="GPUD", threads=8, block=MIB)
    assert record.bytes_per_s == pytest.approx(6.524658 * 1024**3)
    assert not record.first.proven
    assert not record.first.path
    assert any("compatibility" in warning for warning in run.warnings)


def test_gdsio_line_in_two_and_a_rate_that_its_time_denies() -> None:
    run = read("gdsio-line-broken-in-two-rate-against-time.txt")
    assert one(run, method="GPUD").status == "ok"
    assert one(run, method="CPUONLY", target="host").status == "suspect"


def test_gdsio_write_and_read_are_two_points() -> None:
    run = read("gdsio-write-then-read-with-verification.txt")
    assert {(r.point["rw"], round(r.bytes_per_s / 1024**3, 3)) for r in run} == {("write", 4.179), ("read", 2.682)}


# ---- memory ------------------------------------------------------------


def test_mlc_all_tables() -> None:
    run = read("mlc-3.5-two-sockets-all-tables.txt")
    assert (len(run), asked(run, "rows"), asked(run, "unread_rows")) == (22, 18, 0)
    assert one(run, kernel="chase", cpu_node=0, memory_node=1).time.median == pytest.approx(131.1e-9)
    assert rate(run, kernel="read", cpu_node=1, memory_node=0) == pytest.approx(34387.1e6)
    assert rate(run, kernel="read", measured="peak of the system") == pytest.approx(216876.52e6)
    assert one(run, kernel="chase", delay=100).time.median == pytest.approx(227.31e-9)
    assert rate(run, kernel="read", delay=100) == pytest.approx(215020.3e6)
    assert one(run, kernel="chase", measured="idle").time.median == pytest.approx(80.5e-9)


def test_mlc_node_without_cpus_has_a_column_and_no_row() -> None:
    run = read("mlc-3.9-cxl-node-without-cpus.txt")
    assert len(run) == 4
    assert one(run, kernel="chase", cpu_node=0, memory_node=1).time.median == pytest.approx(564.5e-9)


def test_mlc_titles_of_newer_versions_are_points_of_their_own() -> None:
    run = read("mlc-3.7-tabs-random-access-loaded-table-empty.txt")
    assert one(run, cpu_node=0, memory_node=0, access="random").time.median == pytest.approx(98.5e-9)
    assert "loaded latencies has no row" in str(asked(run, "incomplete"))


def test_stream_is_the_best_pass_and_says_so() -> None:
    run = read("stream-5.10-eight-threads.txt")
    triad = one(run, kernel="triad", threads=8)
    assert (triad.bytes_per_s, triad.moved) == (pytest.approx(31334.8e6), 3 * 8 * 80_000_000)
    assert triad.first.aggregate == "fastest of 10 passes"
    assert all(record.first.verified for record in run)


def test_stream_failed_validation_is_wrong_data() -> None:
    run = read("stream-5.8-old-heading-validation-failed.txt")
    assert [record.wrong_data for record in run] == [True] * 4
    assert run.records[0].lines[0].seconds == [[pytest.approx(2 * 8 * 2_000_000 / 2912.9230e6)]]


def test_stream_that_ends_early() -> None:
    assert "copy, scale of" in str(asked(read("stream-5.10-ends-after-two-kernels.txt"), "incomplete"))


def test_likwid_bench_run() -> None:
    record = one(read("likwid-one-run.txt"), kernel="copy", stores="plain")
    printed = record.first.evidence["printed"]
    assert record.bytes_per_s == pytest.approx(float(printed["MByte/s"]) * 1e6, rel=1e-3)
    with pytest.raises(UserError, match="ended early"):
        read("likwid-ended-before-its-rate.txt")


def test_h200x1_listing_is_read_completely() -> None:
    run = read("h200-1x-memory-and-disk-listing.txt")
    assert (asked(run, "rows"), asked(run, "unread_rows"), len(run)) == (25, 0, 46)
    assert rate(run, kernel="copy", blocks=8448, threads=256) == pytest.approx(3921 * GB)
    assert one(run, kernel="chase", nbytes=1073741824).time.median == pytest.approx(698.0185394287109 / 1.98e9)
    from iobench.check import judge

    impossible = [r for r in run.of("hbm") if judge(run)[r.key].status == "impossible"]
    assert sorted(r.first.evidence["printed"] for r in impossible) == ["4926", "5126", "5137"], "over 4,814 GB/s"
    direct = one(run, method="direct", block=4194304)
    assert [round(1 / s, 2) for s in direct.first.seconds[0]] == [1.74, 1.76, 1.5, 1.75]


# ---- nixlbench and fio ------------------------------------------------------------


def test_nixlbench_row_and_its_configuration() -> None:
    run = read("nixlbench-one-row-then-other-statistics.txt")
    assert rate(run, backend="posix", op="write", initiator="vram", target="dram", nbytes=65536) == pytest.approx(
        1.236753e9
    )
    assert (len(run), asked(run, "incomplete")) == (1, "")


def test_nixlbench_missing_rows_of_the_sweep() -> None:
    run = read("nixlbench-stamped-sweep-ends-early.txt")
    assert len(run) == 3
    assert asked(run, "incomplete") == "3 of 6 rows of the sweep are missing, the first at block 8192, batch 2"


def test_nixlbench_old_columns_are_told_by_name() -> None:
    assert rate(read("nixlbench-old-heading-latency-first.txt"), nbytes=4096) == pytest.approx(1.048576e9)


def test_fio_job_and_the_median_of_its_requests() -> None:
    run = read("fio-3.33-one-job.json")
    assert run.of("weights")[0].bytes_per_s == pytest.approx(1398101333)
    assert one(run, measured="one request").time.median == pytest.approx(5024e-9)


def test_fio_processes_that_are_not_grouped_are_one_point() -> None:
    run = read("fio-3.33-two-processes-not-grouped.json")
    record = one(run, threads=2)
    assert (record.nbytes, record.time.median) == (2 * 8388608, pytest.approx(0.012))


def test_fio_2_counts_kib() -> None:
    record = read("fio-2.1-bytes-are-kib.json").records[0]
    assert (record.nbytes, record.bytes_per_s) == (361984 * 1024, pytest.approx(68118 * 1024))
    assert record.time.median == pytest.approx(5.314, rel=1e-3)


def test_fio_failed_verification_is_wrong_data() -> None:
    assert read("fio-3.33-verification-failed-error-84.json").of("weights")[0].wrong_data


def test_fio_text_and_cut_json_and_terse() -> None:
    assert read("fio-3.33-normal-text.txt").records[0].bytes_per_s == pytest.approx(1198e6)
    with pytest.raises(UserError, match="ends early"):
        read("fio-3.33-cut-in-the-middle.json")
    with pytest.raises(UserError, match="--output-format=json"):
        read("fio-terse-is-refused.txt")


@pytest.mark.parametrize("tag", ["[1,0]<stdout>:", "2026-02-24T08:52:13.373Z ", "3: ", "> "])
def test_launchers_prefixes_do_not_matter(tag: str) -> None:
    for name in ("stream-5.10-eight-threads.txt", "mlc-3.5-two-sockets-all-tables.txt"):
        text = (LOGS / name).read_text(encoding="utf-8")
        tagged = "\n".join(tag + line for line in text.split("\n"))
        assert [r.key for r in of_text(tagged)] == [r.key for r in of_text(text)]


@pytest.mark.parametrize("cut", [0.3, 0.6, 0.9])
def test_no_cut_log_gives_a_number_that_the_whole_one_does_not_have(cut: float) -> None:
    names = (
        "mlc-3.5-two-sockets-all-tables.txt",
        "stream-5.10-eight-threads.txt",
        "p2p-latency-gpu-and-cpu-tables.txt",
    )
    for path in [*(LOGS / name for name in names), FIXTURES / "nvbandwidth" / "0.8-2x-h200.txt"]:
        text = path.read_text(encoding="utf-8")
        text = text[: text.rindex("\n", 0, int(len(text) * cut))]
        whole = {(r.key, r.first.moved, round(r.time.median, 15)) for r in importers.read(path)}
        try:
            cut_short = of_text(text)
        except UserError:
            continue  # nothing was in it yet, and that is what it says
        for record in cut_short:
            assert (record.key.split(',"nbytes"')[0], round(record.bytes_per_s)) in {
                (key.split(',"nbytes"')[0], round(moved / seconds)) for key, moved, seconds in whole
            }


def test_gdscheck_two_grammars_one_reader() -> None:
    new = read("gdscheck-new-grammar-platform-error.txt")
    gds = new.header.machine["gds"]
    assert gds["ways"] == {"NVMe": ["c2c", "nvfs", "compat"], "NFS": ["compat"], "WekaFS": []}
    assert gds["platform_verified"] is False
    assert any("Invalid argument" in warning for warning in new.warnings)
    old = read("gdscheck-old-grammar.txt")
    assert old.header.machine["gds"]["ways"] == {"NVMe P2PDMA": ["supported"], "NVMe": [], "NFS": ["supported"]}
    assert any("IOMMU is enabled" in warning for warning in old.warnings)


def test_nvbandwidth_that_ended_before_its_first_case() -> None:
    text = "nvbandwidth Version: v0.8\n\nNVML_ERROR: [Not Found] in expression nvmlDeviceGetHandleByUUID\n"
    with pytest.raises(UserError, match="no row of nvbandwidth"):
        of_text(text)


def test_nvbandwidth_that_waives_its_only_case_says_so() -> None:
    text = "nvbandwidth Version: v0.2\n\nWaiving device_to_device_memcpy_write_ce.\n"
    with pytest.raises(UserError, match=r"device_to_device_memcpy_write_ce.*[Ww]aived"):
        of_text(text)
