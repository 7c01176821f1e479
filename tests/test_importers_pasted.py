"""Logs as people paste them: quoted, indented, cut, two tools at once, marked up. Figures are made up."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from iobench import importers
from iobench.errors import UserError
from iobench.importers import Imported
from iobench.importers.log import from_bytes
from iobench.record import Line, Run
from iobench.topology import logs
from iobench.units import GB, MIB, US


def run_of(text: str) -> Run:
    log = from_bytes(text.encode())
    return importers.to_run(log, importers.read_log(log))


def imported(text: str) -> Imported:
    return importers.read_log(from_bytes(text.encode()))


def lines_of(text: str) -> list[Line]:
    return [line for record in run_of(text) for line in record.lines]


def rates(text: str) -> list[float]:
    return [round(line.moved / line.seconds[0][0] / GB, 3) for line in lines_of(text)]


NVBANDWIDTH = """nvbandwidth Version: v0.7

Running host_to_device_memcpy_ce.
memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)
           0         1
 0     21.50     22.25

SUM host_to_device_memcpy_ce 43.75
"""


@pytest.mark.parametrize("before", ["", "> ", "      ", "\t"])
def test_nvbandwidth_quoted_or_indented(before: str) -> None:
    text = "".join(f"{before}{line}\n" for line in NVBANDWIDTH.splitlines())
    assert rates(text) == [21.5, 22.25]
    assert imported(text).machine["nvbandwidth_version"] == "v0.7"


PERFTEST = """#bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 65536      5000             900.00             800.00                  0.012800
---------------------------------------------------------------------------------------
"""


def test_perftest_behind_comment_signs() -> None:
    text = "".join(f"# {line}\n" for line in PERFTEST.splitlines())
    assert rates(text) == [round(800 * MIB / GB, 3)]


def test_perftest_names_its_verb_by_the_command_where_the_banner_is_missing() -> None:
    lat = "#bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]\n"
    row = "2       1000          3.00           9.00         4.50                5.00           0.50\n"
    (line,) = lines_of(f"$ ib_send_lat -d mlx5_0 peer\n```\n{lat}{row}```\n")
    assert (line.point["verb"], line.seconds[0][0]) == ("send", pytest.approx(4.5 * US))
    assert "half" in line.aggregate
    assert "whole" not in line.aggregate
    (line,) = lines_of(f"Starting RDMA client 'ib_write_bw' for mlx5_0\n{lat}{row}")
    assert line.point["verb"] == "unknown"  # that command is of another kind


def test_perftest_rows_end_at_the_rule_and_rows_without_heading_are_shown() -> None:
    matrix = "                Numa node\nNuma node            0       1\n       0          90.0   140.0\n"
    found = imported(f"{PERFTEST}\nMeasuring idle latencies (in ns)...\n{matrix}")
    assert found.rows == 1
    assert not found.unread
    assert any("--as mlc" in sentence for sentence in found.problems)
    found = imported(f" 8388608    50000            0.00               3500.00              0.000440\n{PERFTEST}")
    assert [row.why for row in found.unread] == ["a row without its heading"]


def test_the_next_surest_format_reads_what_the_surest_cannot() -> None:
    broken = " #bytes #iterations    t_min[usec]    t_max[usec] \\\n   t_typical[usec]\n 2  1000   1.40   1.90  1.45\n"
    table = "#  size  count  type  redop  root  time  algbw  busbw\n"
    table += "  1073741824  268435456  float  none  -1  42950  25.00  25.00\n"
    found = imported(broken + table)
    assert found.format == "nccl-tests"
    assert found.rows == 1


OSU = """# OSU MPI-CUDA Latency Test v7.5
# Datatype: MPI_CHAR.
# Size       Avg Latency(us)
1                       {}
"""


def test_osu_buffers_out_of_the_command_line_are_two_measurements() -> None:
    text = f"$ mpirun -n 2 osu_latency -m 1:1 -d cuda D D\n{OSU.format(2.5)}"
    text += f"$ mpirun -n 2 numactl -l osu_latency -d cuda H D\n{OSU.format(1.25)}"
    assert {line.point["memory"]: line.seconds[0][0] for line in lines_of(text)} == {
        "gpu": pytest.approx(2.5 * US),
        "host to gpu": pytest.approx(1.25 * US),
    }


def test_osu_under_other_options_is_another_measurement_and_a_repetition_is_none() -> None:
    near, far = (f"$ mpirun -n 2 --map-by pe-list={cpus} osu_latency D D\n" for cpus in ("0,1", "0,32"))
    found = lines_of(near + OSU.format(1.25) + far + OSU.format(2.5) + near + OSU.format(1.5))
    assert [(line.point["command"], line.launch) for line in found] == [(1, 0), (1, 1), (2, 0)]
    assert "command" not in lines_of(near + OSU.format(1.25) * 2)[0].point


UCX = """=================== {} ==================
|              |              |       overhead (usec)        |   bandwidth (MB/s)  |  message rate (msg/s) |
|    Stage     | # iterations | 50.0%ile | average | overall |  average |  overall |  average  |  overall  |
Final:                  1000      0.240  1600.000  1600.000    {}   {}         600         600
"""


def test_ucx_titles_of_a_batch_tell_its_tests_apart() -> None:
    found = lines_of(UCX.format("tag_bw", 45000.0, 46000.0) + UCX.format("tag_sync_bw", 43000.0, 44000.0))
    assert [line.point["operation"] for line in found] == ["tag_bw", "tag_sync_bw"]
    assert [line.launch for line in found] == [0, 0]


def test_ucx_old_versions_say_latency_above_a_test_of_bandwidth() -> None:
    text = "$ ucx_perftest peer -t tag_bw -m cuda -s 100000000 -n 10\n"
    text += "|              |       latency (usec)        |   bandwidth (MB/s)  |  message rate (msg/s) |\n"
    text += "| # iterations | typical | average | overall |  average |  overall |   average |   overall |\n"
    text += "            10     0.000  9104.800  9104.800   10474.45   10474.45         110         110\n"
    (line,) = lines_of(text)
    assert line.point["test"] == "bandwidth"
    assert line.moved / line.seconds[0][0] == pytest.approx(10474.45 * MIB)


def test_ucx_sizes_beyond_32_bits() -> None:
    """ucx#10295: a size above 4 GiB is what was asked for, not its lower 32 bits."""
    text = f"$ ucx_perftest -t tag_bw -s {5 << 30} peer\n" + UCX.format("tag_bw", 20480.0, 20480.0)
    text = text.replace("600         600", "4         4").replace("=================== tag_bw ==================\n", "")
    (line,) = lines_of(text)
    assert (line.nbytes, line.seconds[0][0]) == (5 << 30, pytest.approx((5 << 30) / (20480 * MIB)))


def sweep(command: str, time: str = "10998", algbw: str = "12.20", busbw: str = "21.36", end: str = "") -> str:
    return f"""{command}
# nThread 1 nGpus 8 minBytes 134217728 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20 validation: 1
#       size         count      type   redop    root     time   algbw   busbw #wrong
   134217728      33554432     float     sum      -1    {time}   {algbw}   {busbw}      0{end}
# Out of bounds values : 0 OK
"""


def test_nccl_settings_of_the_command_line_tell_runs_apart() -> None:
    text = sweep("NCCL_ALGO=RING ./all_reduce_perf -g 8") + sweep(
        "mpirun -np 8 -x NCCL_ALGO=TREE ./all_reduce_perf -g 1", "18998", "7.06", "12.36"
    )
    assert {line.point["algo"]: len(line.seconds[0]) for line in lines_of(text)} == {"ring": 1, "tree": 1}
    for command in ("./all_reduce_perf -g 8", "NCCL_ALGO=Ring is slower than NCCL_ALGO=Tree in all_reduce_perf -g 8"):
        assert "algo" not in lines_of(sweep(command))[0].point


@pytest.mark.parametrize("end", ["`", " `", '"', ",", "|"])
def test_markup_behind_a_row_is_no_wrong_data(end: str) -> None:
    (line,) = lines_of(sweep("./all_reduce_perf -g 8", end=end.strip()))
    assert line.verified is True
    assert line.status == "ok"


def graph(text: str) -> Any:
    return logs.merge([text])


TOPO = "\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"


def test_topo_empty_cells_keep_their_columns() -> None:
    found = graph(f"{TOPO}GPU0\t X \tNV4\tNODE\t0\t0\t\tN/A\nGPU1\tNV4\t X \tNODE\t\t1\t\tN/A\nNIC0\tNODE\tNODE\t X \n")
    assert found.nodes["gpu:0"].get("cpu_affinity") == [0]
    assert found.nodes["gpu:0"].get("numa") == 0
    assert found.nodes["gpu:1"].get("cpu_affinity") is None
    assert found.nodes["gpu:1"].get("numa") == 1


def test_topo_empty_cells_are_unknown_where_tabs_became_spaces() -> None:
    spaces = TOPO.replace("\t", "  ")
    found = graph(f"{spaces}GPU0  X   NV4  NODE  0-7  0  N/A\nGPU1  NV4  X   NODE  1  N/A\nNIC0  NODE  NODE  X\n")
    assert found.nodes["gpu:0"].get("numa") == 0
    assert found.nodes["gpu:0"].get("cpu_affinity") == list(range(8))
    assert found.nodes["gpu:1"].get("numa") is None
    assert found.nodes["gpu:1"].get("cpu_affinity") is None


H100 = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-0)\n"


def test_nvlink_status_with_its_middle_left_out_counts_nothing() -> None:
    found = graph(f"{H100}\t Link 0: 26.562 GB/s\n\t [...]\n\t Link 17: 26.562 GB/s\n")
    assert found.nodes["gpu:0"].get("nvlinks_active") is None
    assert any("cut" in sentence for sentence in found.facts["findings"])


def test_nvlink_status_of_0_is_inactive_and_damaged_figures_are_none() -> None:
    found = graph(f"   {H100}    Link 0: 26.562 GB/s\n    Link 1: 26.562 GB/s\n    Link 2: 0 GB/s   \u2190 down\n")
    assert (found.nodes["gpu:0"].get("nvlinks_active"), found.nodes["gpu:0"].get("nvlinks_inactive")) == (2, 1)
    assert not logs.tools(f"{H100}\t Link 0: 2..562 GB/s\n")


NUMACTL = """available: 2 nodes (0-1)
node 0 cpus: 0 1
node 0 size: {} MB
node 1 cpus:
node 1 size: 256 MB
node distances:
node   0   1
  0:  10  {}
  1:  {}  10
"""


def test_numactl_of_two_machines_is_not_mixed() -> None:
    found = graph(f"node distances:\nnode   0   1\n  0:  10  33\n  1:  33  10\n\n{NUMACTL.format(2000, 20, 20)}")
    assert found.nodes["numa:0"].get("distance") == [10, 20]
    found = graph(NUMACTL.format(2000, 20, 20) + "\n" + NUMACTL.format(4000, 44, 44))
    assert found.nodes["numa:0"].get("memory_bytes") == 2000 * MIB
    assert found.nodes["numa:0"].get("distance") == [10, 20]
    assert any("2 machines" in sentence for sentence in found.facts["findings"])
    assert "findings" not in graph(NUMACTL.format(2000, 20, 20) * 2).facts


def test_machine_state_quoted_in_mail_is_read() -> None:
    text = "".join(f"> {line}\n" for line in NUMACTL.format(2000, 20, 20).splitlines())
    assert graph(text).nodes["numa:1"].get("has_cpu") is False
    assert imported(text).format == "machine-state"


def test_ibstat_with_remarks_and_of_two_machines() -> None:
    port = "CA 'mlx5_0'\n    Port 1:\n        State: {}\n"
    port += "        Physical state: LinkUp\n        Rate: 200    # 200 Gb/s HDR\n"
    assert graph(port.format("Active  # <-- fine")).nodes["port:mlx5_0/1"].get("line_bytes_per_s") == 25 * GB
    found = graph(port.format("Down") + port.format("Active"))
    assert any("several machines" in sentence for sentence in found.facts["findings"])


def test_lspci_with_domains_is_recognised() -> None:
    text = "0001:00:00.0 3D controller [0302]: NVIDIA Corporation GA100 [A100 SXM4 80GB] [10de:20b2] (rev a1)\n"
    assert imported(text).format == "machine-state"
    assert run_of(text).header.topology["nodes"]


def test_perftest_heading_without_its_comment_signs() -> None:
    assert rates(PERFTEST.replace("#bytes     #iterations", "bytes     iterations")) == [round(800 * MIB / GB, 3)]
    assert rates(PERFTEST.replace("#iterations", "iterations")) == [round(800 * MIB / GB, 3)]


def test_gdsio_broken_into_three_lines() -> None:
    text = '    "IoType: READ XferType: GPUD Threads: 4 DataSetSize: 4194304/4194304(KiB) \n'
    text += "    IOSize: 1024(KiB) Throughput: 4.000000 GiB/sec, Avg_Latency: 900.0 usecs \n"
    text += '    ops: 4096 total_time 1.0 secs"\n'
    assert rates(text) == [round(4 * 1024 * MIB / GB, 3)]


def test_rows_of_a_relative_without_an_element_type_are_shown() -> None:
    text = "#  size  count  time  algbw  busbw  #wrong  time  algbw  busbw  #wrong\n# Out of bounds values : 0 OK\n"
    text += "[1,0]<stdout>:  1048576  262144  40  26.21  49.15  0\n"
    with pytest.raises(UserError, match="line 3: a row without an element type"):
        run_of(text)


@pytest.mark.parametrize("figure", ["1e400", "-1", "1" * 400, "NaN"])
def test_fio_figures_out_of_any_range_are_no_figures(figure: str) -> None:
    part = f'{{"io_bytes": {figure}, "bw_bytes": 1000, "runtime": 1000, "bw": 1}}'
    text = f'{{"fio version": "fio-3.33", "jobs": [{{"jobname": "a", "error": 0, "read": {part}}}]}}'
    found: list[Line] = []
    with suppress(UserError):  # nothing left to import
        found = lines_of(text)
    assert all(line.moved < 1 << 60 for line in found)
