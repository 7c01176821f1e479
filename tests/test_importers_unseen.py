"""What further public logs showed: NCCL's own model, choices without a name, clouds' topology files, other tools."""

from __future__ import annotations

import pytest
from iobench import importers
from iobench.errors import UserError
from iobench.importers.log import from_bytes
from iobench.nccl.log import Told
from iobench.record import Run
from iobench.topology import logs

OLD_TABLE = """\
Latency/AlgBw |    Tree/    LL |    Tree/ LL128 |    Tree/Simple |    Ring/    LL |    Ring/ LL128 |    Ring/Simple |
 Max NThreads |            512 |            640 |            512 |            512 |            640 |            256 |
    Broadcast |     0.0/   0.0 |     0.0/   0.0 |     0.0/   0.0 |     6.3/   0.0 |    14.0/   0.0 |    18.0/   9.0 |
    AllReduce |    20.5/   1.5 |    37.0/   4.0 |    99.5/   8.0 |    56.4/   2.0 |   130.0/   5.0 |   268.4/   9.5 |
"""
NEW_TABLE = """\
  Algorithm   |                   Tree                  |                   Ring                  |
  Protocol    |          LL |       LL128 |      Simple |          LL |       LL128 |      Simple |
 Max NThreads |         512 |         640 |         512 |         512 |         640 |         512 |
    AllReduce |   22.4/ 9.5 |  37.1/  0.0 | 157.0/ 68.8 |   31.0/ 8.1 |   63.2/31.0 |  270.1/81.2 |
"""


def run_of(text: str) -> Run:
    log = from_bytes(text.encode())
    return importers.to_run(log, importers.read_log(log))


def refused(text: str) -> str:
    with pytest.raises(UserError) as caught:
        run_of(text)
    return str(caught.value)


def told(text: str) -> Told:
    found = Told()
    for line in text.splitlines():
        found.add(f"box:1:2 [0] NCCL INFO {line}")
    return found


def test_a_choice_whose_operation_is_not_named() -> None:
    found = told("8 Bytes -> Algo 1 proto 0 time 7.200057\n16777216 Bytes -> Algo 0 proto 2 time 98.5")
    assert found.facts()["tuning"] == [
        {"nbytes": 8, "algo": "ring", "proto": "ll"},
        {"nbytes": 16777216, "algo": "tree", "proto": "simple"},
    ]
    assert run_of("box: NCCL INFO 8 Bytes -> Algo 1 proto 0 time 7.2\n").header.machine["nccl"]["tuning"]


def test_the_table_of_nccls_model_with_one_heading() -> None:
    ways = told(OLD_TABLE).model.ways
    assert ways["all_reduce", "ring", "simple"] == pytest.approx((268.4e-6, 9.5e9))
    assert ways["all_reduce", "tree", "ll128"] == pytest.approx((37e-6, 4e9))
    assert [key for key in ways if key[0] == "broadcast"] == [("broadcast", "ring", "simple")]  # 0.0 is never taken


def test_the_table_of_nccls_model_with_two_headings() -> None:
    facts = told(NEW_TABLE).facts()["model"]
    assert len(facts) == 5
    last = {"op": "all_reduce", "algo": "ring", "proto": "simple"}
    assert facts[-1] == last | {"seconds": pytest.approx(270.1e-6), "bytes_per_s": pytest.approx(81.2e9)}


def test_a_row_without_its_heading_is_no_model() -> None:
    assert not told(NEW_TABLE.splitlines()[-1]).model.ways


def test_gpus_known_by_class_only_are_gpus() -> None:
    gpu = '<pci busid="{}:00:00.0" class="0x030200" link_speed="16 GT/s" link_width="16"/>'
    vga = '<pci busid="0005:00:00.0" class="0x030000" vendor="0x1a03" link_speed="" link_width=""/>'
    machine = logs.merge([f'<system version="1"><cpu numaid="1">{gpu.format("0003")}{gpu.format("0001")}{vga}</cpu></system>'])  # fmt: skip  # noqa: E501
    assert [(node.id, node.get("address")) for node in machine.of("gpu")] == [
        ("gpu:0", "0001:00:00.0"), ("gpu:1", "0003:00:00.0"),
    ]  # fmt: skip
    assert machine.nodes["gpu:0"].get("numa") == 1


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("BabelStream\nVersion: 4.0\nImplementation: CUDA\n"
         "Function    MBytes/sec  Min (sec)   Max         Average     \n"
         "Copy        1380183.6   0.00039     0.00039     0.00039\n",
         "BabelStream"),
        (" STREAM Benchmark implementation in CUDA\n Array size (double precision) = 536.87 MB\n"
         "Function      Rate (GB/s)     Avg time      Min time      Max time\n"
         "Copy:         1380.2   0.1 0.1 0.1\n", "STREAM"),
        ("======= ROCm System Management Interface =======\n==== Weight between two GPUs ====\n"
         "       GPU0         GPU1\n"
         "GPU0   0            15\nGPU1   15           0\n", "rocm-smi"),
        ("[CUDA Bandwidth Test] - Starting...\nRunning on...\n\n Device 0: A100\n Quick Mode\n", "bandwidthTest"),
        ("job: (g=0): rw=read, bs=(R) 128KiB-128KiB, ioengine=psync, iodepth=1\nfio-3.28\nStarting 1 process\n"
         "  read: IOPS=1951, BW=244MiB/s (256MB/s)(4879MiB/20001msec)\n", "--output-format=json"),
    ],
)  # fmt: skip
def test_tools_that_are_not_imported_are_named(text: str, what: str) -> None:
    assert what in refused(text)


def test_osu_barrier_is_not_asked_for_its_whole_output() -> None:
    sentence = refused("\n# OSU MPI Barrier Latency Test v5.8\n# Avg Latency(us)\n            94.39\n")
    assert "has no sizes" in sentence
    assert "osu_allreduce" in sentence
    assert "whole output" not in sentence
