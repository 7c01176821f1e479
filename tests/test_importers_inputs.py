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
