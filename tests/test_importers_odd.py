"""What logs pasted in public showed: mixed tables, lines without their start, made-up buses, aligned columns."""

from __future__ import annotations

import pytest
from iobench import importers
from iobench.errors import UserError
from iobench.importers.log import from_bytes
from iobench.record import Run
from iobench.topology import logs

HEADING = "Function    Best Rate MB/s  Avg time     Min time     Max time\n"
VALID = "Solution Validates: avg error less than 1.000000e-13 on all three arrays\n"
FAILED = "Failed Validation on array a[], AvgRelAbsErr > epsilon (1.000000e-13)\n"
ROWS = [
    f"{name}:          12000.0     0.025733     0.012922     0.030255\n" for name in ("Copy", "Scale", "Add", "Triad")
]
SWITCHES = """<system version="1">
  <cpu numaid="0" affinity="0f"><pci busid="ffff:ff:01.0" class="0x060400" link_speed="16 GT/s" link_width="16">
    <pci busid="0003:00:00.0" class="0x030200" link_speed="16 GT/s" link_width="16"/></pci></cpu>
  <cpu numaid="1" affinity="f0"><pci busid="ffff:ff:02.0" class="0x060400" link_speed="16 GT/s" link_width="16">
    <pci busid="0001:00:00.0" class="0x030200" link_speed="16 GT/s" link_width="16"/></pci></cpu>
</system>"""


def run_of(text: str) -> Run:
    log = from_bytes(text.encode())
    return importers.to_run(log, importers.read_log(log))


def mixed(*checks: str) -> Run:
    first = HEADING + "".join(ROWS[:2]) + HEADING + ROWS[0] + ROWS[2] + ROWS[1] + ROWS[3] + "".join(ROWS[2:])
    return run_of(first + "".join(checks))


def test_stream_tables_of_runs_at_once_lack_nothing() -> None:
    run = mixed(VALID, VALID)
    assert run.header.request["incomplete"] == ""
    assert "the tables of 2 runs are mixed" in run.header.request["normalised"][0]
    assert [record.first.verified for record in run] == [True] * 4
    assert sum(len(record.lines) for record in run) == 8


def test_stream_one_failed_check_of_mixed_runs_is_every_ones() -> None:
    assert all(record.wrong_data for record in mixed(VALID, FAILED))


def test_stream_mixed_tables_that_lack_a_row_end_early() -> None:
    run = run_of(HEADING + "".join(ROWS[:2]) + HEADING + "".join(ROWS) + ROWS[2] + VALID)
    assert "copy, scale of" in run.header.request["incomplete"]


def test_gdsio_batches_have_a_depth_and_a_line_without_its_start_is_shown() -> None:
    line = "XferType: GPU_BATCH Threads: 1 IoDepth: 8 DataSetSize: 524206080/8388608(KiB) IOSize: 16384(KiB) Throughput: 1.664916 GiB/sec, Avg_Latency: 9383.0 usecs ops: 31995 total_time 300.268538 secs\n"  # fmt: skip  # noqa: E501
    run = run_of(f"# IoType: WRITE {line}# WRITE {line}")
    assert [record.point["depth"] for record in run] == [8]
    assert run.records[0].bytes_per_s == pytest.approx(1.664916 * 1024**3)
    assert run.header.request["unread_rows"] == 1


def test_nccl_tuning_lines_with_aligned_columns() -> None:
    lines = "NCCL INFO AllGather:    16 Bytes -> Algo RING  proto LL     channel{Lo..Hi}={0..0}\n"
    lines += "NCCL INFO AllGather: 32768 Bytes -> Algo PAT   proto SIMPLE channel{Lo..Hi}={0..1}\n"
    tuning = run_of(lines).header.machine["nccl"]["tuning"]
    assert [(each["nbytes"], each["algo"], each["proto"], each["channels"]) for each in tuning] == [
        (16, "ring", "ll", 1),
        (32768, "pat", "simple", 2),
    ]


def test_nccl_lines_that_tell_nothing_are_refused_in_these_words() -> None:
    with pytest.raises(UserError, match="none of NCCL's 1 lines tells a version"):
        run_of("NCCL INFO   Algorithm   |                            Tree                  |\n")


def test_switches_of_two_cpus_on_one_made_up_bus_keep_their_numa_nodes() -> None:
    machine = logs.merge([SWITCHES])
    above = {link.b: link.a for link in machine.links if link.kind == "pcie"}
    bridges = [above[above["pci:0003:00:00.0"]], above[above["pci:0001:00:00.0"]]]
    assert [machine.nodes[bridge].get("numa") for bridge in bridges] == [0, 1]
    assert machine.nodes["pci:0001:00:00.0"].get("numa") == 1


def test_ibstat_remark_behind_a_tab_is_no_state() -> None:
    text = "CA 'mlx4_0'\n\tPort 1:\n\t\tState: Down\t# after disable\n\t\tPhysical state: Disabled\n\t\tRate: 10\n"
    assert logs.merge([text]).nodes["port:mlx4_0/1"].get("state") == "DOWN"


def test_ibv_devinfo_filtered_to_its_states_has_one_port_each() -> None:
    text = "hca_id:    rdma_en3\n  state:    PORT_DOWN (1)\n  active_width:  8X (4)\n  active_speed:  10.0 Gbps (4)\n"
    text += (
        "hca_id:    rdma_en4\n  state:    PORT_ACTIVE (4)\n  active_width:  4X (2)\n  active_speed:  10.0 Gbps (4)\n"
    )
    text += "hca_id:    two_0\n  state:    PORT_DOWN (1)\n  state:    PORT_ACTIVE (4)\n"
    ports = {node.id: (node.get("state"), node.get("line_bytes_per_s")) for node in logs.merge([text]).of("port")}
    assert list(ports) == ["port:rdma_en3/1", "port:rdma_en4/1"]
    assert ports["port:rdma_en3/1"] == ("DOWN", None)
    assert ports["port:rdma_en4/1"] == ("ACTIVE", 4e9)


def test_cxl_device_in_the_damaged_part_of_a_list_is_told() -> None:
    whole = '[{"memdev":"mem0","ram_size":268435456}]\n'
    damaged = '[{"host":"0000:d2:01.3, "memdev":{"memdev":"mem1","ram_size":268435456}}]\n'
    assert "mem1 named, but not described" in logs.merge([whole + damaged]).facts["findings"][0]
    assert not logs.merge([whole]).facts.get("findings")


def test_numactl_distances_that_cannot_be_read_are_told() -> None:
    text = "available: 2 nodes (0-1)\nnode 0 cpus: 0\nnode 0 size: 8 MB\nnode 1 cpus: 1\nnode 1 size: 0 MB\n"
    text += "node distances:\nnode   0   1=20\n  0:  10  16=20\n  1:  16  10\n"
    machine = logs.merge([text])
    assert "distances can't be read" in machine.facts["findings"][0]
    assert not [link for link in machine.links if link.kind == "distance"]
