"""What iobench finds, does and says in the emulated lab; the numbers mean nothing and none is looked at."""

from __future__ import annotations

import pytest
from iobench import check, fit, report
from iobench.record import Run
from iobench.topology.graph import Topology

from lab import cli, machine, setup
from lab.vm import Guest

MIB = 1 << 20


@pytest.fixture(scope="module")
def first(guest: Guest) -> Topology:
    """The machine as it booted: the CXL memory is a devdax device."""
    return cli.discover(guest, "devdax")[0]


@pytest.fixture(scope="module")
def dram(guest: Guest) -> Run:
    return cli.measure(guest, "dram", "dram", "-a", "kernel=read,chase", "-a", "nbytes=1M", "-a", "pages=base")


def test_boot_is_quick(guest: Guest) -> None:
    assert guest.booted < 60.0, "a boot takes under 30 s on two free cores"


def test_nodes_with_and_without_cpus(first: Topology) -> None:
    nodes = {int(node.id.partition(":")[2]): node for node in first.of("numa")}
    assert set(nodes) == set(machine.NODES)
    for number, node in nodes.items():
        assert node.get("has_cpu") is (number in machine.CPUS)
        assert node.get("has_memory")
        assert 0.6 * machine.NODES[number] * MIB < node.get("memory_bytes") <= machine.NODES[number] * MIB


def test_firmware_latency_and_bandwidth(first: Topology) -> None:
    for number, nearest in machine.INITIATOR.items():
        node = first.nodes[f"numa:{number}"]
        assert node.get("initiators") == [nearest]
        assert node.get("firmware_read_seconds") == pytest.approx(machine.LATENCY[nearest, number] * 1e-9)
        assert node.get("firmware_read_bytes_per_s") == pytest.approx(
            machine.BANDWIDTH[nearest, number] * 1024**3, rel=0.08
        )


def test_distances(first: Topology) -> None:
    found = {
        (int(link.a[5:]), int(link.b[5:])): link.attrs["distance"]
        for link in first.links
        if link.kind == "interconnect"
    }
    assert found == machine.DISTANCE


def test_cxl_memory_as_devdax(first: Topology) -> None:
    memory, region, dax = (first.nodes[name] for name in ("cxl:mem0", "cxl:region0", f"dax:{setup.DAX}"))
    assert memory.get("state") == "mapped"
    assert memory.get("persistent_bytes") == machine.CXL_MIB * MIB
    assert region.get("committed")
    assert dax.get("mode") == "devdax"
    assert dax.get("region") == region.id
    assert 0 < dax.get("nbytes") <= machine.CXL_MIB * MIB


def test_nvme_beside_its_node(first: Topology) -> None:
    disk = first.nodes["block:nvme0n1"]
    device = next(there for there, link in first.neighbours(disk.id) if there.startswith("pci:"))
    bridge = next(node for node in first.of("pci") if node.get("host_bridge") and node.id.endswith(":40"))
    assert first.path(device, f"numa:{machine.NVME_NODE}") is not None
    assert [there for there, _ in first.neighbours(bridge.id) if there.startswith("numa:")] == [
        f"numa:{machine.NVME_NODE}"
    ]
    assert setup.NVME_MOUNT in disk.get("mounts")


def test_soft_roce(first: Topology) -> None:
    ports = [node for node in first.of("port") if node.id.startswith(f"port:{setup.RDMA_DEVICE}/")]
    assert len(ports) == 1


def test_memory_probe_is_right_and_labelled(dram: Run) -> None:
    assert len(dram) >= 3
    check_labels(dram)


def check_labels(run: Run) -> None:
    """Every point measured, its data right, its path proven where it must be, and no number taken for performance."""
    assert [record.reason for record in run if record.status not in ("ok", "suspect")] == []
    assert all(line.verified for record in run for line in record.lines)
    verdicts = check.judge(run)
    assert {verdict.status for verdict in verdicts.values()} == {"emulated"}
    assert report.summary(run) == []
    assert not any(fitted.model for fitted in fit.fit_run(run))
    assert run.header.machine["virtual"]["emulator"] == "QEMU TCG"
