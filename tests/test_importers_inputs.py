"""Inputs out of public issues that broke other tools, where no captured log stands for them. Each names its issue."""

from __future__ import annotations

from pathlib import Path

import pytest
from iobench import importers
from iobench.errors import UserError
from iobench.importers import Imported
from iobench.importers.log import from_bytes
from iobench.record import Run
from iobench.topology import logs
from iobench.units import GB, MIB

LOGS = Path(__file__).parent / "fixtures" / "logs"


def both(text: str) -> tuple[Imported, Run]:
    log = from_bytes(text.encode())
    imported = importers.read_log(log)
    return imported, importers.to_run(log, imported)


def test_one_rank_in_the_old_format_never_enters_a_fit() -> None:
    """nccl#120: the in-place algbw of one rank is the time of an empty launch."""
    head = "#  bytes  N  type  op  time  algbw  busbw  res  time  algbw  busbw  res\n"
    _, run = both(
        f"./all_reduce_perf -g 1\n{head} 33554432 8388608 float sum 0.127 264.00 0.00 0e+00 0.016 2083.77 0.00 0e+00\n"
    )
    assert [record.status for record in run] == ["skipped", "skipped"]
    assert all("busbw is 0 by definition" in record.reason for record in run)


def test_the_mean_over_a_sweep_is_no_figure() -> None:
    """nccl-tests#115, DCGM#111, SuperBench: "Avg bus bandwidth" is averaged over sizes; the plateau counts."""
    text = (LOGS / "old_error_column_1_gpu_group_superbench_like.log").read_text()
    assert "68.4048" in text
    _, run = both(text)
    rates = [record.bytes_per_s for record in run if record.status == "ok"]
    assert max(rates) > 2 * 68.4048 * GB
    assert not any("68.4" in str(line.evidence) + str(run.header.machine) for record in run for line in record.lines)


def test_topo_of_a_single_gpu_with_n_a_behind_it() -> None:
    """HAMi#99: a range of CPUs, N/A as NUMA affinity; unknown, never 0 (NVSentinel#1220)."""
    graph = logs.merge(["\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t0-7\tN/A\t\tN/A\n"])
    assert graph.nodes["gpu:0"].get("cpu_affinity") == list(range(8))
    assert graph.nodes["gpu:0"].get("numa") is None


@pytest.mark.parametrize(
    "said",
    [
        "Error while creating shared memory segment nccl-shm-recv-0-0-1-3 (size 9637888)",
        "failed to extend /dev/shm/nccl-WU88OE to 9637892 bytes, error: No space left on device (28)",
    ],
)
def test_shared_memory_that_is_too_small_is_named(said: str) -> None:
    """nccl#342, #290, #525, llm-d#352: /dev/shm of 64 MB."""
    text = "# nThread 1 nGpus 2 minBytes 8 maxBytes 8 step: 2(factor) warmup iters: 5 iters: 20 validation: 1\n"
    text += f"box:77:88 [0] shm.cc:87 NCCL WARN {said}\nbox: Test NCCL failure common.cu:777 'unhandled system error'\n"
    imported = importers.read_log(from_bytes(text.encode()))
    assert any(said[:60] in sentence for sentence in imported.problems)
    assert "ended before its first row" in imported.incomplete


def test_nvbandwidth_that_ends_with_an_error_of_cuda() -> None:
    """nvbandwidth#47, #55: nothing but the error."""
    head = "nvbandwidth Version: v0.8\n\nRunning host_to_device_memcpy_ce.\n"
    for said in ("[CUDA_ERROR_INVALID_CONTEXT] invalid device context in expression", "NVML_ERROR: [Not Found]"):
        with pytest.raises(UserError, match="no row of nvbandwidth"):
            both(f"{head}{said}\n")


def test_a_sweep_that_fails_at_a_size_keeps_what_came_before() -> None:
    """perftest#394: RC WRITE fails above 65536 bytes; the smaller sizes are good."""
    text = "$ ib_write_bw -a peer\n                    RDMA_Write BW Test\n Connection type : RC\n"
    text += " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n"
    sizes = [2 << n for n in range(16)]
    text += "".join(
        f" {size:<10} 5000           1000.00            1000.00           {1000 * MIB / size / 1e6:.6f}\n"
        for size in sizes
    )
    text += " Completion with error at client\n Failed status 10: wr_id 0 syndrom 0x3b\nscnt=128, ccnt=0\n"
    imported, run = both(text)
    assert [record.nbytes for record in run] == sizes
    assert run.records[-1].bytes_per_s == pytest.approx(1000 * MIB)
    assert "ends at 65536 bytes" in imported.incomplete
    assert any("Completion with error" in sentence for sentence in imported.problems)


def test_a_json_report_that_got_a_suffix_because_its_name_was_taken(tmp_path: Path) -> None:
    """nccl-tests -J out.json writes out.json.0 where out.json is there already: the content tells, not the name."""
    import json

    from iobench.importers import write

    side = {"time": 20.0, "alg_bw": 52.4288, "bus_bw": 52.4288, "nwrong": 0.0}
    row = {"size": 1 << 20, "count": 1 << 18, "type": "float", "redop": "sum", "root": "-1"}
    row |= {"out_of_place": side, "in_place": side}
    config = {"nthreads": 1, "ngpus": 2, "minimum_bytes": 1 << 20, "maximum_bytes": 1 << 20, "step_factor": 2}
    config |= {"warmup_iters": 1, "iterations": 20, "validation": 1, "graph": 0, "aggregated_iterations": 1}
    config["devices"] = [{"rank": rank, "group": 0, "hostname": "a", "device_info": "NVIDIA H200"} for rank in (0, 1)]
    report = {"version": 1, "args": ["all_reduce_perf"], "env": ["LANG=gr\u00fc"], "nccl_version": 22809}
    report |= {"config": config, "results": [row], "out_of_bounds": {"count": 0, "okay": "true"}, "errors": []}
    report["average_bus_bandwidth"] = {"bandwidth": "nan", "okay": "unchecked"}
    first, second = tmp_path / "out.json", tmp_path / "out.json.0"
    first.write_text(json.dumps(report))
    side["time"] = 40.0
    second.write_text(json.dumps({**report, "results": [{**row, "size": 1 << 21, "count": 1 << 19}]}))
    assert {record.nbytes for record in importers.read(second)} == {1 << 21}
    assert {write.folder_of(path.name, tmp_path, several=True).name for path in (first, second)} == {
        "out.json",
        "out.json.0",
    }


def test_a_bus_error_of_many_ranks_is_said() -> None:
    """nccl-tests#143: /dev/shm is full, the kernel ends the process that touches it."""
    text = "# nThread 1 nGpus 16 minBytes 8 maxBytes 8 step: 2(factor) warmup iters: 5 iters: 20 validation: 1\n"
    text += "box:77 :0:88] Caught signal 7 (Bus error: nonexistent physical address)\nBus error (core dumped)\n"
    imported = importers.read_log(from_bytes(text.encode()))
    assert any("us error" in sentence.lower() and "/dev/shm" in sentence for sentence in imported.problems)
    assert "ended before its first row" in imported.incomplete


def test_another_tools_table_is_refused_rather_than_guessed() -> None:
    """nccom-test of Neuron: its GB/s are GiB/s, and no column names the operation."""
    text = "    size(B)    count(elems)    type    time:avg(us)    algbw(GB/s)    busbw(GB/s)\n"
    text += "        256              64    fp32           64.78           0.00           0.01\n"
    text += "     524288          131072    fp32          343.84           1.42           2.80\n"
    with pytest.raises(UserError, match=r"is nccom-test's table .*whose GB are GiB: iobench does not import it"):
        both(text)


def test_no_operation_is_named_that_the_rates_contradict() -> None:
    """busbw of 1.75 times algbw is no sendrecv's, whatever the missing columns look like."""
    text = "#  size  count  type  time  algbw  busbw\n  8  2  float  5.0  0.00  0.00\n"
    text += "  1048576  262144  float  100.0  10.49  18.35\n"
    imported, run = both(text)
    assert all("op" not in record.point for record in run)
    assert any("no line names the operation" in sentence for sentence in imported.problems)
