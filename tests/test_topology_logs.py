"""A machine's graph from what tools printed: limits by the table's rows, unknown where the log does not say."""

from pathlib import Path

import pytest
from iobench import importers
from iobench.errors import UserError
from iobench.topology import logs
from iobench.topology.graph import Topology

LOGS = Path(__file__).parent / "fixtures" / "logs"


def graph(*names: str) -> Topology:
    return logs.read([LOGS / name for name in names])


def limit(machine: Topology, a: str, b: str) -> float | None:
    found = [link for link in machine.links if {link.a, link.b} == {a, b}]
    assert len(found) == 1, found
    return found[0].bytes_per_s


def test_h200x2_all_commands_of_nvidia_smi() -> None:
    machine = graph("h200-2x-nvidia-smi-all-commands-query-cut.txt", "h200-2x-sysfs-listing-numa-minus-1.txt")
    assert limit(machine, "gpu:0", "nvswitch:0") == limit(machine, "gpu:1", "nvswitch:0") == 450e9
    assert machine.nodes["gpu:1"].get("memory_bytes") == 143771 * 1024**2
    assert machine.nodes["gpu:0"].get("peers") == {"pci:0000:00:07.0": True}
    assert machine.nodes["pci:0000:00:06.0"].get("numa") == 0, "-1 in sysfs, 0 in the affinity of topo -m"
    path = machine.path("vram:0", "mem:0")
    assert path
    assert path.bytes_per_s == pytest.approx(63.015e9, rel=1e-4)
    assert machine.facts["findings"] == ["nvidia-smi -q says 2 GPUs and shows 1: the log is cut"]


def test_emulated_devices_have_no_limit() -> None:
    machine = graph("h200-2x-sysfs-listing-numa-minus-1.txt")
    assert limit(machine, "pci:0000:00", "pci:0000:00:01.0") is None
    assert machine.nodes["pci:0000:00:01.0"].get("numa") is None


def test_topo_cube_of_v100() -> None:
    machine = graph("machine-topo-8x-v100-cube-nic-rows-lack-columns.txt")
    links = {(link.a, link.b): link.attrs["links"] for link in machine.links if link.kind == "nvlink"}
    assert len(links) == 16
    assert links["gpu:0", "gpu:2"] == 2
    assert links["gpu:3", "gpu:4"] == 1
    assert machine.nodes["port:mlx5_0/1"].get("relations")["gpu:2"] == "PIX"
    assert machine.nodes["gpu:7"].get("numa") == 1
    assert machine.nodes["gpu:0"].get("cpu_affinity")[-1] == 71
    assert "nvswitch:0" not in machine.nodes
    assert "findings" not in machine.facts


def test_topo_with_spaces_legend_and_several_nodes() -> None:
    machine = graph("machine-topo-spaces-nic-legend-numa-range.txt")
    assert machine.nodes["gpu:0"].get("numa") is None, "0-1 is no node"
    assert machine.nodes["gpu:1"].get("numa") is None
    assert machine.nodes["port:rocep4s0f0/1"].get("relations")["port:rocep4s0f1/1"] == "PIX"
    assert limit(machine, "gpu:0", "gpu:1") is None, "four links, of which generation?"


def test_topo_asymmetric_counts_are_a_finding_and_the_lower_one_counts() -> None:
    machine = graph("machine-topo-asymmetric-nvlinks.txt")
    assert machine.facts["findings"] == ["GPU0 shows 4 NVLinks to GPU1, which shows 2 back"]
    assert [link.attrs["links"] for link in machine.links if link.kind == "nvlink"] == [2]


def test_topo_more_links_than_a_gpu_has_lead_to_switches() -> None:
    machine = graph("machine-topo-8x-a100-switched-last-row-missing.txt")
    links = [link for link in machine.links if link.kind == "nvlink"]
    assert {(link.b, link.attrs["links"]) for link in links} == {("nvswitch:0", 12)}
    assert len(links) == 8
    assert machine.facts["findings"] == ["nvidia-smi topo: no row for mlx5_0: the matrix is incomplete"]


@pytest.mark.parametrize(
    ("row", "numa"),
    [("GPU0\tX\t0-7\tN/A\tN/A", None), ("GPU0\t X \t0,2,4,6\t-1\t\tN/A", None), ("GPU0\t X \t0-19\t0\t\tN/A", 0)],
)
def test_topo_of_one_gpu(row: str, numa: int | None) -> None:
    machine = logs.merge([f"\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n{row}\n"])
    assert machine.nodes["gpu:0"].get("numa") == numa


def test_topo_row_out_of_step_is_left_out() -> None:
    machine = logs.merge(["\tGPU0\tGPU1\tCPU Affinity\nGPU0\tX\tNV2\t0-7\nGPU1\tX\tNV2\t0-7\n"])
    assert any("row of GPU1 does not fit" in sentence for sentence in machine.facts["findings"])


def test_topo_nvlinks_to_a_nic_are_a_shifted_row_and_no_link() -> None:
    rows = "GPU0\tX\tNV2\tNV4\t0-7\nGPU1\tNV2\tX\tSYS\t0-7\nmlx5_0\tSYS\tSYS\tX\n"
    machine = logs.merge([f"\tGPU0\tGPU1\tmlx5_0\tCPU Affinity\n{rows}"])
    assert machine.facts["findings"] == [
        "GPU0 shows NV4 to mlx5_0, which is no GPU: the columns of that row are shifted"
    ]
    assert [(link.a, link.b) for link in machine.links if link.kind == "nvlink"] == [("gpu:0", "gpu:1")]


def test_nvlink_status_inactive_links_and_rate() -> None:
    machine = logs.merge(
        [
            (LOGS / "machine-nvlink-status-two-links-inactive.txt").read_text(encoding="utf-8"),
            "\tGPU0\tGPU1\tCPU Affinity\nGPU0\tX\tNV2\t0-7\nGPU1\tNV2\tX\t0-7\n",
        ]
    )
    assert machine.facts["findings"] == ["gpu:0: 2 of 4 NVLinks are inactive"]
    assert machine.nodes["gpu:0"].get("nvlinks_active") == 2
    assert limit(machine, "gpu:0", "gpu:1") == 50e9


def test_ports_that_are_down_have_no_rate() -> None:
    machine = graph("machine-ibstat-down-port-beside-active-200.txt")
    rates = {node.id: node.get("line_bytes_per_s") for node in machine.of("port")}
    assert rates == {
        "port:mlx5_0/1": 25e9,
        "port:mlx5_1/1": None,
        "port:mlx4_0/1": 4e9,  # QDR: 40 Gb/s are signalled, 32 are data
        "port:mlx5_2/1": None,
        "port:mlx5_3/1": 12.5e9,
        "port:rxe0/1": None,
    }
    assert machine.nodes["port:mlx5_1/1"].get("physical_state") == "Polling"


def test_devinfo_rates() -> None:
    machine = graph("machine-ibv-devinfo-disabled-qdr-and-active-hdr.txt")
    assert machine.nodes["port:mlx5_1/1"].get("line_bytes_per_s") is None
    assert machine.nodes["port:mlx5_2/1"].get("line_bytes_per_s") == 25e9
    assert machine.nodes["port:mlx5_1/1"].get("state") == "DOWN"


def test_ibstatus_text() -> None:
    machine = logs.merge(
        ["Infiniband device 'mlx5_0' port 1 status:\n\tstate:\t\t 4: ACTIVE\n\tphys state:\t 5: LinkUp\n"
         "\trate:\t\t 200 Gb/sec (4X HDR)\n\tlink_layer:\t InfiniBand\n"]
    )  # fmt: skip
    assert machine.nodes["port:mlx5_0/1"].get("line_bytes_per_s") == 25e9


def test_numactl_sparse_nodes() -> None:
    machine = graph("machine-numactl-cpus-without-memory-and-cxl-nodes.txt")
    assert [node.id for node in machine.of("numa")] == ["numa:0", "numa:1", "numa:4", "numa:5"]
    assert machine.nodes["numa:1"].get("has_memory") is False
    assert "mem:1" not in machine.nodes
    assert machine.nodes["numa:4"].get("has_cpu") is False
    assert machine.nodes["mem:4"].get("memory_bytes") == 1023 * 1024**2
    assert {link.attrs["distance"] for link in machine.links if {link.a, link.b} == {"numa:1", "numa:5"}} == {14}


def test_lspci_the_lower_end_counts_and_the_state_does_not() -> None:
    machine = graph("machine-lspci-gpu-below-a-switch-link-idle-acs-on.txt")
    link = next(link for link in machine.links if link.b == "pci:0000:17:00.0")
    assert (link.attrs["max_generation"], link.attrs["current_generation"]) == (5, 1)
    assert link.bytes_per_s == pytest.approx(63.015e9, rel=1e-4)
    assert limit(machine, "pci:0000:00:01.0", "pci:0000:15:00.0") == pytest.approx(31.5e9, rel=1e-3)
    assert limit(machine, "pci:0000:00", "pci:0000:00:05.0") is None, "Width x0 is unknown"
    assert machine.nodes["gpu:0"].get("numa") == 1
    assert len(machine.of("gpu")) == 1
    assert "access control (ACS) is on at 1 PCI bridges" in machine.facts["findings"][0]


def test_cxl_negative_sizes_are_unknown() -> None:
    machine = graph("machine-cxl-list-negative-extent-and-dax-online.txt")
    assert machine.nodes["cxl:mem1"].get("persistent_bytes") is None
    assert machine.nodes["cxl:mem1"].get("volatile_bytes") == 256 * 1024**3
    assert machine.nodes["dax:dax9.0"].get("state") == "offline"
    assert [(link.a, link.b) for link in machine.links if link.kind == "interleave"] == [("cxl:region9", "cxl:mem0")]


def test_nccl_topology_file() -> None:
    machine = graph("machine-nccl-topo-empty-speed-width-0-and-switches.xml")
    assert limit(machine, "pci:0000:45:00.0", "pci:0000:53:00.0") == pytest.approx(63.015e9, rel=1e-4), (
        "32 GT/s, old spelling"
    )
    assert limit(machine, "pci:0000:45:00.0", "pci:0000:52:00.0") is None, "Unknown and 255"
    assert limit(machine, "pci:0001:00", "pci:0001:00:00.0") is None, "empty and 0"
    assert limit(machine, "gpu:0", "nvswitch:0") == 450e9
    assert limit(machine, "gpu:1", "gpu:2") == 300e9
    assert machine.nodes["port:rdmap82s0/1"].get("line_bytes_per_s") == 50e9
    assert machine.nodes["gpu:1"].get("numa") is None
    assert machine.nodes["numa:0"].get("cpus") == list(range(16))


def test_rccl_writes_the_same_file_for_amd() -> None:
    text = '<system version="2"><cpu numaid="0"><pci busid="0000:c1:00.0" class="0x038000" link_speed="32.0 GT/s PCIe" '
    text += 'link_width="16"><gpu dev="0" sm="94" gcn="942" rank="0"><xgmi target="0000:c5:00.0" count="1"/></gpu>'
    text += "</pci></cpu></system>"
    machine = logs.merge([text])
    assert machine.nodes["gpu:0"].get("vendor") == "AMD"
    assert "nvidia" not in machine.name


def test_nccl_topology_file_with_entities_is_not_expanded() -> None:
    bomb = '<system version="1"><!ENTITY a "aaaa"><cpu numaid="0"/></system>'
    assert logs.merge([bomb]).of("numa") == []


def test_a_file_of_nothing_known_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("hello\n", encoding="utf-8")
    with pytest.raises(UserError, match="give that of nvidia-smi"):
        logs.read([tmp_path / "x.txt"])


def test_import_of_a_state_log_gives_its_topology() -> None:
    run = importers.read(LOGS / "h200-2x-nvidia-smi-all-commands-query-cut.txt")
    assert Topology.from_dict(run.header.topology).nodes["gpu:1"].get("model_name") == "NVIDIA H200"
    assert len(run) == 0


@pytest.mark.parametrize(
    ("speed", "width", "bytes_per_s"),
    [
        ("16.0 GT/s PCIe", "16", 31.508e9), ("16 GT/s", "16", 31.508e9), ("32 GT/s", "8", 31.508e9),
        ("64.0 GT/s PCIe", "16", 128e9), ("", "16", None), ("Unknown", "16", None), ("Unknown speed", "16", None),
        ("16.0 GT/s PCIe", "255", None), ("16.0 GT/s PCIe", "0", None), ("16.0 GT/s PCIe", "", None),
    ],
)  # fmt: skip
def test_link_attributes_that_nccl_takes_for_defaults(speed: str, width: str, bytes_per_s: float | None) -> None:
    text = (
        f'<system version="1"><cpu numaid="0" affinity="f"><pci busid="0000:17:00.0" class="0x030200" '
        f'link_speed="{speed}" link_width="{width}"/></cpu></system>'
    )
    found = limit(logs.merge([text]), "pci:0000:17", "pci:0000:17:00.0")
    assert found == (None if bytes_per_s is None else pytest.approx(bytes_per_s, rel=1e-3))


@pytest.mark.parametrize(
    "attributes", ["", 'link_width="16"', 'link_speed="16.0 GT/s PCIe"', 'link_speed="" link_width=""']
)
@pytest.mark.parametrize("kind", ["0x060400", "0x060000"])
def test_a_root_port_without_its_link_is_unknown_not_gen_3(attributes: str, kind: str) -> None:
    """nccl#326, #428, #1020, nccl-tests#233, #182: NCCL falls back to gen 3 and 16 lanes, and differs between ranks."""
    text = f'<system version="1"><cpu numaid="0"><pci busid="0000:00:00.0" class="{kind}" {attributes}>'
    text += (
        '<pci busid="0000:17:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16"/></pci></cpu></system>'
    )
    machine = logs.merge([text])
    assert limit(machine, "pci:0000:00", "pci:0000:00:00.0") is None
    assert limit(machine, "pci:0000:00:00.0", "pci:0000:17:00.0") == pytest.approx(31.508e9, rel=1e-3)


def test_topo_row_with_a_nic_column_and_a_list_of_cpus() -> None:
    header = "\tGPU0\tGPU1\tmlx5_0\tCPU Affinity\tNUMA Affinity\n"
    rows = "GPU0\t X \tNV6\tNODE\t0,2,4,6,8,10\t0\nGPU1\tNV6\t X \tNODE\t0,2,4,6,8,10\t0\nmlx5_0\tNODE\tNODE\t X \n"
    machine = logs.merge([header + rows])
    assert machine.nodes["gpu:0"].get("cpu_affinity") == [0, 2, 4, 6, 8, 10]
    assert machine.nodes["gpu:1"].get("numa") == 0
    assert machine.nodes["port:mlx5_0/1"].get("relations") == {"gpu:0": "NODE", "gpu:1": "NODE"}


def test_the_same_output_twice_is_one_machine() -> None:
    text = (LOGS / "machine-lspci-gpu-below-a-switch-link-idle-acs-on.txt").read_text(encoding="utf-8")
    assert logs.merge([text + text]).to_dict()["nodes"] == logs.merge([text]).to_dict()["nodes"]
