"""Logs of a machine's and a fabric's state out of public issues, each with the right finding. Figures as reported."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from iobench import importers
from iobench.errors import UserError
from iobench.importers.log import from_bytes
from iobench.rdma.pairing import cpus_near
from iobench.record import Run
from iobench.topology import logs
from iobench.topology.graph import Topology
from tests.conftest import cli_environment


def graph(text: str) -> Topology:
    return logs.merge([text])


def run_of(text: str) -> Run:
    log = from_bytes(text.encode())
    return importers.to_run(log, importers.read_log(log))


def findings(machine: Topology) -> str:
    return " | ".join(machine.facts.get("findings", ()))


# --- iblinkinfo ------------------------------------------------------------------------------------------

LINK = '   12  {}[  ] ==( 4X      {:>9} Gbps Active/  LinkUp)==>      {}    1[  ] "somewhere mlx5_0" ( {})\n'


def test_iblinkinfo_the_slowest_link_is_the_limit() -> None:
    """nccl-tests#71: EDR (25.78125 Gb/s a lane) at an HDR switch beside peers with 53.125."""
    text = "Switch: 0xb8599f0300e1e0aa MF0;sw:MQM8700/U1:\n"
    text += LINK.format(1, "53.125", 4, "") + LINK.format(2, "25.78125", 5, "Could be 53.125 Gbps")
    text += '   12  3[  ] ==(                Down/ Polling)==>             [  ] "" ( )\n'
    run = run_of(text)
    fabric = run.header.topology["facts"]["fabric"]
    assert fabric == {"links": {"4X EDR": 1, "4X HDR": 1}, "down": 1, "slowest_bytes_per_s": 12.5e9}
    assert any("1 4X EDR of 2 active links" in warning and "12.5 GB/s" in warning for warning in run.warnings)
    assert any("1 active links run below what both ends can do" in warning for warning in run.warnings)
    assert "somewhere" not in run.header.to_json()
    assert "MF0" not in run.header.to_json()


def test_iblinkinfo_alike_and_unknown_rates() -> None:
    machine = graph("".join(LINK.format(port, "53.125", port, "") for port in (1, 2)))
    assert machine.facts["fabric"]["slowest_bytes_per_s"] == 25e9
    assert not findings(machine)
    assert graph(LINK.format(1, "7.77", 2, "")).facts["fabric"]["slowest_bytes_per_s"] is None


# --- the query of nvidia-smi -----------------------------------------------------------------------------

COMMAND = "$ nvidia-smi --query-gpu=pstate,pcie.link.gen.current,pcie.link.gen.max --format=csv,noheader\n"
HEADING = "pstate, pcie.link.gen.current, pcie.link.gen.max\n"


@pytest.mark.parametrize("before", [COMMAND, HEADING, COMMAND.replace(",noheader", "") + HEADING])
def test_a_link_that_idles_is_no_downgrade(before: str) -> None:
    """nvtop#6: Gen1 of Gen4 in P8."""
    machine = graph(f"{before}P8, 1, 4\n")
    assert machine.nodes["gpu:0"].get("pcie") == {"max_generation": 4, "current_generation": 1}
    assert not findings(machine)


def test_a_link_below_its_best_under_load_is_one() -> None:
    """open-gpu-kernel-modules#731: stuck at Gen3 of Gen4 in P0."""
    assert "Gen3 of Gen4 under load" in findings(graph(f"{HEADING}P8, 1, 4\nP0, 3, 4\n"))
    assert not findings(graph(f"{HEADING}P0, 3, 4\nP0, 4, 4\n")), "it was at its best once"
    heading = "index, pci.bus_id, utilization.gpu [%], pcie.link.width.current, pcie.link.width.max\n"
    assert not findings(graph(f"{heading}0, 00000000:17:00.0, 0 %, 8, 16\n"))
    assert "gpu:0: its PCIe link is x8 of x16" in findings(graph(f"{heading}0, 00000000:17:00.0, 97 %, 8, 16\n"))


def test_rows_without_their_columns_names_are_refused() -> None:
    with pytest.raises(UserError, match="no log of a tool that iobench knows"):
        run_of("P8, 1, 4\nP0, 3, 4\n")


def test_a_query_names_the_products() -> None:
    text = "index, name, pci.bus_id, memory.total [MiB], pcie.link.gen.max, pcie.link.width.max\n"
    text += (
        "0, NVIDIA H200, 00000000:19:00.0, 143771 MiB, 5, 16\n1, NVIDIA H200, 00000000:3B:00.0, 143771 MiB, [N/A], 16\n"
    )
    machine = graph(text)
    assert machine.nodes["gpu:1"].get("address") == "0000:3b:00.0"
    assert machine.nodes["gpu:1"].get("pcie") == {"max_width": 16}
    assert machine.nodes["vram:0"].get("memory_bytes") == 143771 * 1024**2


# --- NVLink bridges --------------------------------------------------------------------------------------


def test_a_bridge_that_is_half_seated_is_named() -> None:
    """nccl#557: one pair of two shows fewer links."""
    text = "\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\nGPU0\t X \tNV4\tSYS\tSYS\t0-7\nGPU1\tNV4\t X \tSYS\tSYS\t0-7\n"
    text += "GPU2\tSYS\tSYS\t X \tNV2\t0-7\nGPU3\tSYS\tSYS\tNV2\t X \t0-7\n"
    assert "partial links: GPU2 and GPU3 have 2 NVLinks, other pairs 4" in findings(graph(text))
    assert not findings(graph(text.replace("NV2", "NV4")))


def test_four_gpus_with_six_links_each_way() -> None:
    """nccl#1617: NV6 between four H100, 18 links a GPU, wired to each other."""
    rows = "".join(f"GPU{a}\t" + "\t".join("X" if a == b else "NV6" for b in range(4)) + "\t0-7\t0\n" for a in range(4))
    machine = graph("\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity\n" + rows)
    links = [(link.a, link.b, link.attrs["links"]) for link in machine.links if link.kind == "nvlink"]
    assert len(links) == 6
    assert {count for _, _, count in links} == {6}
    assert not findings(machine)


# --- NUMA nodes of NICs ----------------------------------------------------------------------------------

GPU_NODES, NIC_NODES = (1, 1, 0, 0, 3, 3, 2, 2), (3, 3, 2, 0, 2, 1, 0, 1)


def test_processes_sit_beside_their_nic_not_beside_the_gpu_of_the_same_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """azurehpc-health-checks#46: pinned by the GPUs' nodes 30 Gb/s, by the NICs' 194 Gb/s."""
    text = '<system version="1">\n'
    for node in range(4):
        text += f'<cpu numaid="{node}" affinity="{15 << 4 * node:04x}" arch="x86_64" vendor="AuthenticAMD">\n'
        for n in range(8):
            where = f"{0x1000 + n:04x}:00:0"
            if GPU_NODES[n] == node:
                text += f'<pci busid="{where}1.0" class="0x030200"><gpu dev="{n}" sm="80" rank="{n}"/></pci>\n'
            if NIC_NODES[n] == node:
                text += f'<pci busid="{where}2.0" class="0x020700"><nic><net name="mlx5_ib{n}" port="1" speed="200000"/></nic></pci>\n'  # noqa: E501
        text += "</cpu>\n"
    state = "CA 'mlx5_ib{}'\n\tPort 1:\n\t\tState: Active\n\t\tPhysical state: LinkUp\n\t\tRate: 200\n"
    machine = logs.merge([text + "</system>\n", "".join(state.format(n) for n in range(8))])
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    for n, node in enumerate(NIC_NODES):
        port = machine.nodes[f"port:mlx5_ib{n}/1"]
        assert port.get("numa") == node
        assert machine.nodes[f"gpu:{n}"].get("numa") == GPU_NODES[n]
        near = [4 * node + cpu for cpu in range(4)]
        assert cpus_near(machine, f"mlx5_ib{n}") == [near[:2], near[2:]]


# --- cuFile ----------------------------------------------------------------------------------------------


def test_cufile_in_compatibility_mode_on_overlay() -> None:
    """cudf#13651, LMCache#795: nobody noticed."""
    text = " 05-07-2023 15:31:50:107 [pid=7 tid=7] NOTICE  cufio-drv:830 running in compatible mode\n"
    text += " 05-07-2023 15:31:50:108 [pid=7 tid=7] ERROR  cufio-fs:327 error creating udev_device for block device"
    run = run_of(f"{text} dev_no: 0:383\n")
    assert run.header.machine["cufile"] == {"path": "compat", "reasons": ["overlay"]}
    assert any("no GPUDirect Storage" in warning for warning in run.warnings)
    assert any("device 0:383, which no drive has" in warning for warning in run.warnings)
    run = run_of(f"{text} dev_no: 259:3\n")
    assert run.header.machine["cufile"]["reasons"] == ["udev"]
    assert any("--volume /run/udev:/run/udev:ro" in warning for warning in run.warnings)


def test_cufile_with_drives_that_nvidia_fs_does_not_know() -> None:
    """open-gpu-kernel-modules#51: numa_node:-1 is no node."""
    text = "ERROR  cufio-fs:199 NVMe Driver not registered with nvidia-fs!!!\n"
    text += "DEBUG  cufio-fs:742 dev_no:259:1 numa_node:-1 ext4_journal_mode:ordered\n"
    facts = run_of(text).header.machine["cufile"]
    assert facts == {"path": "compat", "reasons": ["nvme not patched"], "numa": None, "ext4_journal": "ordered"}


def test_cufile_buffers_that_do_not_fit_bar1() -> None:
    """gds-nvidia-fs#4."""
    run = run_of("nvidia-fs:Inc-bar-usage failed: size 524288000 remaining bytes 281018368\n")
    assert run.header.machine["cufile"] == {"bar1_wanted_bytes": 524288000, "bar1_free_bytes": 281018368}
    assert any("500 MiB does not fit into the 268 MiB" in warning for warning in run.warnings)


# --- several queries in one log --------------------------------------------------------------------------


def test_two_queries_of_one_gpu_are_no_cut_log() -> None:
    query = "Attached GPUs                             : 1\nGPU 00000000:83:00.0\n    Product Name : NVIDIA H200\n\n"
    assert not findings(graph(query + "==============NVSMI LOG==============\n" + query))
    cut = query.replace(": 1\n", ": 8\n")
    assert "says 8 GPUs and shows 1: the log is cut" in findings(graph(cut + cut))


def test_logs_leave_the_package_as_it_is() -> None:
    """The submodule discover has the name of its function: whoever imports it first must not hide that."""
    code = (
        "from iobench.topology import logs; logs.merge(['']); import iobench.topology as t; assert t.discover.__name__"
    )
    code += " == 'discover' and callable(t.discover)"
    subprocess.run([sys.executable, "-c", code], check=True, env=cli_environment())
