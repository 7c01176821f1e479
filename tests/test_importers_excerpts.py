"""What excerpts out of forums, issues and other projects' logs showed: cut rows, marks in rows, remarks beside rows."""

from __future__ import annotations

import pytest
from iobench import importers
from iobench.errors import UserError
from iobench.importers.imported import Imported
from iobench.importers.log import from_bytes
from iobench.importers.registry import read_log
from iobench.record import Run
from iobench.topology import logs


def both(text: str) -> tuple[Imported, Run]:
    log = from_bytes(text.encode())
    imported = read_log(log)
    return imported, importers.to_run(log, imported)


def rates(run: Run) -> list[float]:
    return [line.moved / line.seconds[0][0] for record in run for line in record.lines if line.moved]


def test_a_launchers_mark_before_every_write_is_no_part_of_a_row() -> None:
    """nccl#1453: [0] stands before each piece that rank 0 wrote; bus / alg 1.9167 is that of 24 ranks."""
    text = "[0]     33554432       8388608     float     sum      -1[0]    2180.1   15.39   29.50      0[0]    "
    text += "2285.2   14.68   28.14      0\n[0]     67108864      16777216     float     sum      -1[0]     24410    "
    text += "2.75    5.27      0[0]     24425    2.75    5.27      0\n"
    imported, run = both(text)
    assert (imported.rows, imported.unread) == (2, [])
    assert {record.point["ranks"] for record in run} == {24}
    times = sorted(line.seconds[0][0] for record in run for line in record.lines)
    assert times == pytest.approx([2180.1e-6, 2285.2e-6, 24410e-6, 24425e-6])


def test_the_old_error_column_without_its_heading_is_no_count_of_wrong_values() -> None:
    """nccl#527: before nccl-tests 2.12 the column was the largest deviation, 1e-07 is right for floats."""
    text = "mpirun -n 8 all_reduce_perf -b 8 -e 64 -f 2\n"
    for size, time in ((8, 15.04), (16, 15.03), (32, 15.18), (64, 15.10)):
        text += f"{size:12d} {size // 4:12d}   float     sum    {time}    0.00    0.00  1e-07"
        text += f"    {time}    0.00    0.00  6e-08\n"
    imported, run = both(text)
    assert imported.rows == 4
    assert {line.status for record in run for line in record.lines} == {"ok"}
    counted = text.replace("1e-07", "3").replace("6e-08", "0")
    assert "failed" in {line.status for record in both(counted)[1] for line in record.lines}


def test_settings_exported_before_a_command_are_a_part_of_it() -> None:
    """The same osu_bw between other GPUs is another measurement, not one more launch."""
    text = "export HSA_ENABLE_SDMA=0\n"
    for pair, rate in (("0,1", 142235.39), ("0,2", 38963.65)):
        text += f"export HIP_VISIBLE_DEVICES={pair}\nmpirun -n 2 pt2pt/osu_bw -m 16777216:16777216 D D\n"
        text += "# OSU MPI-ROCM Bandwidth Test v7.0\n# Size      Bandwidth (MB/s)\n"
        text += f"16777216           {rate}\n\n"
    run = both(text)[1]
    assert len(run) == 2
    assert sorted(rates(run)) == pytest.approx([38963.65e6, 142235.39e6])


def test_an_osu_row_that_ends_after_its_size_is_shown() -> None:
    text = "# OSU MPI_Put Bandwidth Test v5.3\n# Size      Bandwidth (MB/s)\n"
    text += "1                       1.78\n2                       3.56\n4\n"
    imported, _ = both(text)
    assert (imported.rows, [row.number for row in imported.unread]) == (2, [5])
    assert both(text.replace("\n4\n", "\n0\n"))[0].unread == []  # an exit code, say


def test_remarks_beside_a_row_of_mlc() -> None:
    text = "Measuring Loaded Latencies for the system\nUsing Read-only traffic type\nInject  Latency Bandwidth\n"
    text += "Delay   (ns)    MB/sec\n00050  123.71   131282.0\n"
    text += '"00100   98.94    68357.8" <--- pass criteria : "over 81XXX"\n00200   94.56    42695.4\n'
    imported, run = both(text)
    assert imported.rows == 3
    assert {record.point["delay"] for record in run} == {50, 100, 200}


def test_figures_that_a_forum_made_bold_and_a_buffer_on_the_gpu() -> None:
    text = "initializing CUDA\ncreating CUDA Ctx\n" + "-" * 87 + "\n                    RDMA_Write BW Test\n"
    text += (
        " Number of qps   : 1\t\tTransport type : IB\n Connection type : RC\t\tUsing SRQ      : OFF\n" + "-" * 87 + "\n"
    )
    text += " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n"
    text += " 1024       1000             0.00               **5544.28**\t\t   5.677340\n" + "-" * 87 + "\n"
    run = both(text)[1]
    assert [record.point["memory"] for record in run] == ["gpu"]
    assert rates(run) == pytest.approx([5544.28 * 2**20], rel=1e-4)
    host = both(text.replace("creating CUDA Ctx\n", ""))[1]
    assert all("memory" not in record.point for record in host)


def test_gdsio_lines_without_their_start_are_shown() -> None:
    text = "Write test:\nThroughput: 2.308903 GiB/sec, Avg_Latency: 81215.056568 usecs\n"
    with pytest.raises(UserError, match="the start of the run's line is missing"):
        both(text)


def test_likwid_bench_without_its_title() -> None:
    text = "Using 4 threads\nTime:\t\t1.006571e+00 sec\nIterations:\t256\nIterations per thread:\t64\n"
    text += "Size (Byte):\t1000000000\nData volume (Byte):\t64000000000\nMByte/s:\t\t63582.20\n"
    imported, run = both(text)
    assert rates(run) == pytest.approx([63582.20e6], rel=1e-4)
    assert [record.point["kernel"] for record in run] == ["unknown"]
    assert any("no line names the kernel" in sentence for sentence in imported.problems)


def test_a_table_of_nccl_tests_with_one_placement_only() -> None:
    text = "#       size         count      type   redop    root     time   algbw   busbw #wrong\n"
    text += "  1073741824     268435456     float     sum      -1   9306.7  115.37  115.37      0\n"
    run = both(text)[1]
    assert [(record.point["ranks"], "inplace" in record.point) for record in run] == [(2, False)]
    assert rates(run) == pytest.approx([1073741824 / 9306.7e-6])


def test_a_fio_job_that_failed_is_said() -> None:
    text = (
        '{"fio version": "fio-3.33", "jobs": [{"jobname": "one", "error": 5, "job options": {"rw": "read", "bs": "4k"},'
    )
    text += ' "read": {"io_bytes": 40960000, "bw_bytes": 4096000, "runtime": 10000, "total_ios": 10000}}]}'
    imported, run = both(text)
    assert [line.status for record in run for line in record.lines] == ["failed"]
    assert any("job one: fio ended with error 5" in sentence for sentence in imported.problems)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("<?xml version='1.0'?>\n<nvidia_smi_log>\n<attached_gpus>1</attached_gpus>\n", "nvidia-smi's XML"),
        ("GPU3\tNV18\tNV18\tNV18\t X \tNV18\tSYS\t14-27\t1\t\tN/A\n", "without its heading"),
    ],
)
def test_what_is_known_but_not_read_is_named(tmp_path, text: str, what: str) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "log.txt"
    path.write_text(text)
    with pytest.raises(UserError, match=what):
        logs.read([path])
    with pytest.raises(UserError, match=what):
        both(text)


def test_mig_rows_are_parts_of_their_gpu() -> None:
    text = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tNV12\t0-31\t0\nMIG 0/0\t\t\t\t\n"
    text += "GPU1\tNV12\t X \t0-31\t0\n"
    machine = logs.merge([text])
    assert len(machine.of("gpu")) == 2
    assert [link.attrs["links"] for link in machine.links if link.kind == "nvlink"] == [12]
    assert any("MIG instances" in sentence for sentence in machine.facts["findings"])


def test_a_link_that_iblinkinfo_shows_at_both_ends_is_one() -> None:
    link, up = "==( 4X      {} Gbps Active/  LinkUp)==>", "25.78125"
    text = f'CA: node-1 HCA-1:\n      0x0000      2    1[  ] {link.format(up)}       3    2[  ] "sw" ( )\n'
    text += f'Switch: 0x0000 sw:\n           3    2[  ] {link.format(up)}       2    1[  ] "node-1" ( )\n'
    text += f'           3   41[  ] {link.format("53.125")}       4    1[  ] "aggregation" ( )\n'
    assert logs.merge([text]).facts["fabric"]["links"] == {"4X EDR": 1, "4X HDR": 1}


def test_an_intel_accelerator_is_not_called_a_gpu() -> None:
    """Class 1200 of Intel's are FPGAs (CXL ones, too) and what hashes and compresses."""
    text = "4e:00.0 Processing accelerators: Intel Corporation Device 0ddb (rev 02)\n"
    text += "\tCapabilities: [40] Express (v2) Endpoint, MSI 00\n\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16\n"
    text += "\t\tLnkSta:\tSpeed 32GT/s (ok), Width x16 (ok)\n"
    assert not logs.merge([text]).of("gpu")
    amd = text.replace("Intel Corporation Device 0ddb", "Advanced Micro Devices, Inc. [AMD/ATI] Aqua Vanjaram")
    assert len(logs.merge([amd]).of("gpu")) == 1


def test_a_row_that_ends_within_a_figure_is_cut_not_wrong() -> None:
    """nccl-tests#44: the excerpt ends with 0e+, which is no count of wrong values."""
    text = "       65536         16384   float     sum       0    16.42    3.99    3.99  0e+00"
    text += "    15.88    4.13    4.13  0e+00\n"
    text += "      262144         65536   float     sum       0    29.13    9.00    9.00  0e+\n"
    imported, run = both(text)
    assert (imported.rows, [row.number for row in imported.unread]) == (1, [2])
    assert {line.status for record in run for line in record.lines} == {"ok"}


FIGURES = "     time   algbw   busbw #wrong" * 2
HEADER = f"#       size         count      type   redop    root{FIGURES}"
LEAD = "     float     sum      -1   "
ROW = f"  1073741824     268435456{LEAD}9306.7  115.37  115.37      0   9291.5  115.56  115.56      0"
LAST = f"  2147483648     536870912{LEAD} 18535  115.86  115.86      0    18524  115.93  115.93      0"


def test_rows_that_an_author_left_out_are_missing() -> None:
    imported, _ = both(f"{HEADER}\n{ROW}\n        ...\n{LAST}\n# Out of bounds values : 0 OK\n")
    assert imported.rows == 2
    assert "rows were left out of the log" in imported.incomplete
    assert both(f"{HEADER}\n...\n{ROW}\n{LAST}\n# Out of bounds values : 0 OK\n")[0].incomplete == ""


def test_a_column_of_iterations_behind_the_figures() -> None:
    imported, run = both(f"{HEADER}  #iters\n{ROW}      20\n{LAST}      20\n# Out of bounds values : 0 OK\n")
    assert (imported.rows, imported.unread, len(run)) == (2, [], 4)


def test_a_version_with_its_commit() -> None:
    text = f"# nccl-tests version 2.20.0 (b4d5bee) nccl-headers=23102 nccl-library=23102\n{HEADER}\n{ROW}\n"
    packages = both(text)[1].header.machine["packages"]
    assert packages["nccl-tests"] == "2.20.0"
    assert packages["nccl library"] == "2.31.2"


def test_streams_of_one_log_with_other_threads_are_other_points() -> None:
    """The FORTRAN version says its threads in a shorter way."""
    text = ""
    for threads, rate in ((1, 61.3242), (2, 85.1240)):
        text += f"Number of Threads =            {threads}\nFunction     Rate (MB/s)  Avg time   Min time  Max time\n"
        for kernel in ("Copy", "Scale", "Add", "Triad"):
            text += f"{kernel}:               {rate}            0.5232            0.5218            0.5242\n"
    run = both(text)[1]
    assert len(run) == 8
    assert {record.point["threads"] for record in run} == {1, 2}


def test_what_a_cut_output_lacks_is_said(tmp_path) -> None:  # type: ignore[no-untyped-def]
    device = "hca_id: mlx5_0\n        transport:                      InfiniBand (0)\n"
    port = "                port:   1\n                        state:                  PORT_ACTIVE (4)\n\n"
    machine = logs.merge([device + port + device.replace("mlx5_0", "mlx5_1")])
    assert "ibv_devinfo: mlx5_1 shows no port: the output is cut" in machine.facts["findings"]
    for text, what in ((device, "mlx5_0 shows no port"), ("    LnkSta: Speed 16GT/s (ok), Width x16 (ok)\n", "LnkSta")):
        path = tmp_path / "log.txt"
        path.write_text(text)
        with pytest.raises(UserError, match=what):
            logs.read([path])


def test_a_known_other_tool_is_named_before_its_lines_are_found_odd(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """rocm-smi's matrix has rows of GPUs too, which are none of nvidia-smi's."""
    path = tmp_path / "log.txt"
    names = "         ".join(f"GPU{number}" for number in range(4))
    path.write_text(f"{' Link Type between two GPUs ':=^80}\n       {names}\nGPU0   0            PCIE         PCIE\n")
    with pytest.raises(UserError, match="the output of rocm-smi"):
        logs.read([path])


@pytest.mark.parametrize("cases", ["true", "3", "null", '"text"', "{}"])
def test_cases_of_nvbandwidth_that_are_no_list_are_none(cases: str) -> None:
    """Found by mutating logs."""
    imported = read_log(from_bytes(f'{{"nvbandwidth": {{"version": "v0.8", "testcases": {cases}}}}}'.encode()))
    assert not imported.lines
