"""What further public logs showed: NCCL's own model, choices without a name, clouds' topology files, other tools."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from iobench import importers
from iobench.errors import UserError
from iobench.importers.log import from_bytes
from iobench.nccl.log import Told
from iobench.record import Run
from iobench.topology import limits, logs

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


HEAD = """\
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""
INFO = "box0:65704:65704 [1] NCCL INFO AllReduce: opCount 0 sendbuff 0x7 recvbuff 0x9 count 2097152 datatype 7 op 0\n"


def test_a_row_that_nccl_cut_in_three_is_one() -> None:
    text = HEAD + "     8388608       2097152     float     sum      -1" + INFO + INFO
    text += "    314.7   26.66   26.66      0" + INFO + INFO + "    310.8   26.99   26.99      0\n"
    run = run_of(text + "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 26.8\n")
    assert [(r.point["inplace"], r.first.seconds[0][0]) for r in run] == [
        (False, pytest.approx(314.7e-6)), (True, pytest.approx(310.8e-6)),
    ]  # fmt: skip
    assert run.header.request["unread_rows"] == 0


def test_words_between_the_pieces_of_a_row_are_no_figures() -> None:
    text = (
        HEAD + "     8388608       2097152     float     sum      -1" + INFO + "    314.7   26.66   26.66      0" + INFO
    )
    run = run_of(text + "GPU 3 at 310 MHz\n    310.8   26.99   26.99      0\n# Out of bounds values : 0 OK\n")
    assert sorted(r.first.seconds[0][0] for r in run) == pytest.approx([310.8e-6, 314.7e-6])


def test_mpiruns_tags_inside_a_row_are_no_wrong_data() -> None:
    tag = "[1,0]<stdout>:"
    row = f"{tag}           8             2     float     sum      -1{tag}    85.14    0.00    0.00      0"
    row += f"{tag}    62.82    0.00    0.00      0\n"
    run = run_of(
        "".join(tag + line + "\n" for line in HEAD.splitlines()) + row + f"{tag}# Out of bounds values : 0 OK\n"
    )
    assert [record.first.verified for record in run] == [True, True]
    assert [record.first.seconds[0][0] for record in run] == pytest.approx([85.14e-6, 62.82e-6])


def test_fio_over_several_hosts_adds_their_jobs_and_not_their_sum() -> None:
    def job(name: str, host: str, nbytes: int) -> dict[str, object]:
        read = {"io_bytes": nbytes, "bw_bytes": nbytes, "runtime": 1000, "total_ios": nbytes // 4096}
        return {"jobname": name, "groupid": 0, "error": 0, "hostname": host, "job options": {"bs": "4k"}, "read": read}

    stats = [job("j", "east", 4096000), job("j", "west", 8192000), job("All clients", "west", 12288000)]
    run = run_of("hostname=east, be=0\n" + json.dumps({"fio version": "fio-3.7", "client_stats": stats}))
    assert [record.first.moved for record in run] == [12288000]
    assert "2 hosts" in run.header.request["normalised"][0]
    assert "east" not in json.dumps(run.header.request)


def test_perftests_json_that_ends_before_its_results_is_perftests() -> None:
    sentence = refused('{\n"test_info": {\n"test": "Send_Bidirectional_BW_Test",\n"Dual_port": "OFF",\n')
    assert "perftest's JSON ends early" in sentence


def test_daxctl_list_in_mail_and_changed_by_hand() -> None:
    text = '>> [\n>>   {\n>>     "chardev":"dax0.0",\n>>     "size":536870912,\n>>     "target_node":2,\n'
    text += '>>     "movable":true\n>>     "removable":false  <----\n>>   }\n>> ]\n'
    machine = logs.merge([text])
    assert machine.nodes["dax:dax0.0"].get("target_numa") == 2
    assert any("comma was missing" in sentence for sentence in machine.facts["findings"])


def test_links_left_out_at_the_end_are_not_inactive() -> None:
    links = "".join(f"         Link {n}: 53.125 GB/s\n" for n in range(18))
    text = f"GPU 0: NVIDIA GB200 (UUID: GPU-0)\n{links}GPU 1: NVIDIA GB200 (UUID: GPU-1)\n{links[:60]}...\n"
    findings = logs.merge([text]).facts["findings"]
    assert findings == ["gpu:1: the list of its NVLinks was cut: how many are active is unknown"]


@pytest.mark.parametrize(
    ("product", "gigabytes"),
    [("Tesla V100-SXM2-32GB", 898), ("Tesla V100S-PCIE-32GB", 1134), ("Tesla V100-SXM3-32GB", 981)],
)
def test_each_v100_has_its_own_memory(product: str, gigabytes: int) -> None:
    limit = limits.gpu_memory(product)
    assert limit
    assert limit.bytes_per_s == gigabytes * 1e9


def test_a_topology_from_another_vendors_tool_says_whose_it_is(tmp_path: Path) -> None:
    path = tmp_path / "topo.txt"
    path.write_text("===== ROCm System Management Interface =====\n==== Link Type between two GPUs ====\n       GPU0\n")
    with pytest.raises(UserError, match="output of rocm-smi"):
        logs.read([path])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("        GPU0    GPU1    NIC0    NIC1    CPU Affinity\nGPU0     X      NV18    NODENODE    0-55\n"
         "GPU1    NV18     X      NODENODE    0-55\n", "the row of GPU0 does not fit the header"),
        ("        GPU0  GPU1  CPU Affinity  NUMA\nGPU0     X    NV18  0-51         0\n",
         "the heading is not nvidia-smi's"),
    ],
)  # fmt: skip
def test_a_damaged_matrix_is_not_called_unknown(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "topo.txt"
    path.write_text(text)
    with pytest.raises(UserError, match=why):
        logs.read([path])


def test_perftests_json_in_its_valid_form() -> None:
    told = {"test": "RDMA_Write_BW_Test", "Number_of_qps": 1, "Connection_type": "RC", "TX_depth": 128}
    results = {"MsgSize": 65536, "n_iterations": 5000, "BW_peak": 5293.52, "BW_average": 2229.27, "MsgRate": 0.035668}
    line = next(iter(run_of(json.dumps({"test_info": told, "results": results}, indent=2)))).first
    assert line.moved
    assert line.moved / line.seconds[0][0] == pytest.approx(0.035668e6 * 65536, rel=1e-3)  # MiB/s, as its rate proves


def test_nvlinks_that_differ_by_direction_are_the_fewer_and_said() -> None:
    link = '<nvlink target="0000:{}:00.0" count="{}"/>'
    gpu = '<pci busid="0000:{}:00.0" class="0x030200"><gpu dev="{}" sm="86">' + link + "</gpu></pci>"
    text = gpu.format("17", 0, "65", 12) + gpu.format("65", 1, "17", 1)
    machine = logs.merge([f'<system version="1"><cpu numaid="0">{text}</cpu></system>'])
    (made,) = [link for link in machine.links if link.kind == "nvlink"]
    assert made.attrs["links"] == 1
    assert "NCCL's topology file: gpu:0 has 12 NVLinks to gpu:1, but 1 back" in machine.facts["findings"]


def test_gpus_whose_rows_were_cut_off_show_nothing_back() -> None:
    text = "        GPU0    GPU1    GPU2    CPU Affinity\nGPU0     X      NV6     NV6     0-23\n"
    text += "GPU1    NV6      X      NV6     0-23\n"
    findings = logs.merge([text]).facts["findings"]
    assert not any("back" in sentence for sentence in findings)
    assert any("no row for GPU2" in sentence for sentence in findings)
