"""What iobench finds, does and says in the emulated lab; the numbers mean nothing and none is looked at."""

from __future__ import annotations

import sys

import pytest
from iobench import check, fit, report
from iobench.cxl.forms import obstacles
from iobench.record import Run
from iobench.topology.graph import Topology

from lab import cli, machine, setup
from lab.vm import Guest

MIB = 1 << 20
SMALL = "-a nbytes=1M -a threads=1 -a block=32K"
# Two processes, one after the other: the second must find the first one's bytes.
PATTERN = """
cat > /root/pattern.py <<'END'
import mmap, os, sys
handle = os.open("/dev/{device}", os.O_RDWR)
area = mmap.mmap(handle, 4 << 20, mmap.MAP_SHARED)
wanted = bytes(range(256)) * 1024
if sys.argv[1] == "write":
    area[1 << 20 : (1 << 20) + len(wanted)] = wanted
else:
    print("same" if area[1 << 20 : (1 << 20) + len(wanted)] == wanted else "lost")
END
{python} /root/pattern.py {first}
{python} /root/pattern.py {then}
"""


@pytest.fixture(scope="module")
def mapped(guest: Guest) -> Guest:
    """What is run while the CXL memory is a mapped device."""
    weights = "weights -a method=direct,buffered-cold -a nbytes=8M -a block=256K -a threads=2"
    cli.call(
        guest,
        cli.topology_line("devdax"),
        cli.run_line("cxl-devdax", f"cxl -a form=devdax -a kernel=chase,gather,read {SMALL}"),
        cli.run_line("dram", "dram -a kernel=read,chase -a nbytes=1M -a pages=base -a threads=2,1"),
        cli.run_line("loaded", "loaded -a mix=read,2:1 -a delay=0 -a sample=mean -a nbytes=64K -a pages=base"),
        cli.run_line("weights", f"{weights} --scratch {setup.NVME_MOUNT}/scratch"),
    )
    return guest


@pytest.fixture(scope="module")
def online(mapped: Guest) -> Guest:
    """What is run once the same memory is a NUMA node."""
    done = mapped.run(setup.SYSTEM_RAM, timeout=600)
    assert done.code == 0, done.text
    cli.call(
        mapped,
        cli.topology_line("system-ram"),
        cli.run_line("cxl-node", f"cxl -a kernel=chase,gather,copy -a node=0,{machine.CXL_NODE} {SMALL}"),
        cli.run_line(
            "cxl-loaded",
            f"cxl -a form=node -a node={machine.CXL_NODE} -a kernel=loaded -a mix=read -a delay=0 -a nbytes=64K",
        ),
        cli.run_line("numa", "numa -a op=read -a nbytes=1M -a pages=base"),
    )
    return mapped


@pytest.fixture(scope="module")
def first(mapped: Guest) -> Topology:
    return cli.graph(mapped, "devdax")


@pytest.fixture(scope="module")
def second(online: Guest) -> Topology:
    return cli.graph(online, "system-ram")


@pytest.fixture(scope="module")
def node(online: Guest) -> Run:
    return cli.measured(online, "cxl-node")


@pytest.fixture(scope="module")
def numa(online: Guest) -> Run:
    return cli.measured(online, "numa")


def test_the_kernel_is_content(guest: Guest) -> None:
    assert guest.booted > 0
    trouble = [line for line in guest.console().splitlines() if "Oops" in line or "BUG:" in line or "LAB-" in line]
    assert not trouble


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


def test_memory_probe(mapped: Guest) -> None:
    run = cli.measured(mapped, "dram")
    check_labels(run)
    assert {record.point["kernel"] for record in run} == {"read", "chase"}


def test_load_comes_from_other_nodes_where_a_node_has_one_cpu(mapped: Guest) -> None:
    run = cli.measured(mapped, "loaded")
    check_labels(run)
    assert {(record.point["mix"], record.point["delay"]) for record in run} == {(mix, 0) for mix in ("read", "2:1")}
    chasing, loading = machine.CPUS[0], machine.CPUS[1]
    for record in run:
        assert record.point["loaders"] == "far"
        assert record.point["threads"] == 1
        assert record.first.evidence["cpus"] == [chasing, loading]
        assert set(record.first.evidence["pages_on_node"]) == {"0"}
        assert f"the load from CPUs of other nodes than CPU {chasing}'s" in record.first.path
        assert record.first.proven


def test_cxl_memory_that_is_mapped(mapped: Guest) -> None:
    devdax = cli.measured(mapped, "cxl-devdax")
    check_labels(devdax)
    assert {record.point["kernel"] for record in devdax} == {"chase", "gather", "read"}
    for record in devdax:
        assert record.first.evidence["mapping"] == f"/dev/{setup.DAX}"
        assert "CXL memory (region0)" in record.first.path
        assert record.first.proven


def test_what_is_written_to_the_device_can_be_read_back(mapped: Guest) -> None:
    """The device keeps what another process wrote: with one root port QEMU silently loses it."""
    assert (
        mapped.run(
            PATTERN.format(first="write", then="read", device=setup.DAX, python=sys.executable), timeout=600
        ).out.strip()
        == "same"
    )


def test_cxl_memory_as_a_node(second: Topology) -> None:
    far = second.nodes[f"numa:{_node(second)}"]
    dax = second.nodes[f"dax:{setup.DAX}"]
    assert far.get("has_cpu") is False
    assert far.get("has_memory")
    assert dax.get("mode") == "system-ram"
    assert dax.get("state") == "online"
    assert [link.kind for link in second.links if link.a == f"mem:{_node(second)}"] == ["cxl"]
    assert _node(second) == machine.CXL_NODE


def test_cxl_memory_that_is_a_node(node: Run, second: Topology) -> None:
    check_labels(node)
    far = str(_node(second))
    forms = {form: [record for record in node if record.point["form"] == form] for form in ("node", "interleave")}
    for record in forms["node"]:
        assert record.first.proven
        assert set(record.first.evidence["pages_on_node"]) == {far}
        assert record.first.evidence["placement"] == "move_pages"
    measured = [record for record in forms["interleave"] if record.point["turns"] == "equal"]
    assert measured
    for record in measured:
        pages = record.first.evidence["pages_on_node"]
        assert far in pages
        assert len(pages) == 2
        assert record.first.proven


def test_cxl_memory_under_load(online: Guest, second: Topology) -> None:
    run = cli.measured(online, "cxl-loaded")
    check_labels(run)
    (record,) = run
    assert record.point["loaders"] == "far"
    assert record.first.evidence["cpus"] == [machine.CPUS[0]]
    assert record.first.evidence["load_cpus"] == [machine.CPUS[1]]
    assert set(record.first.evidence["pages_on_node"]) == {str(_node(second))}
    assert record.first.path.endswith("the load from CPUs of other nodes")
    assert record.first.proven


def test_weighted_interleave_says_what_it_needs(node: Run) -> None:
    asked = [record for record in node if record.point.get("turns") == "weighted"]
    assert asked
    for record in asked:
        assert record.status == "ok" or "Linux 6.9" in record.reason


def test_memory_of_every_node_from_every_cpu(numa: Run, second: Topology) -> None:
    check_labels(numa)
    pairs = {(record.point["mem"], record.point["cpu"]) for record in numa}
    nodes = {*machine.NODES, _node(second)}
    assert {pair for pair in pairs if isinstance(pair[0], int)} == {(mem, cpu) for mem in nodes for cpu in machine.CPUS}
    assert all(record.first.proven for record in numa)


def test_weights_from_nvme(mapped: Guest) -> None:
    weights = cli.measured(mapped, "weights")
    check_labels(weights)
    direct = [record for record in weights if record.point["method"] == "direct"]
    assert direct
    for record in direct:
        assert record.first.proven, record.first.path
        assert record.first.path == "o_direct"
        assert [leg.src for leg in record.first.legs] == ["block:nvme0n1"]


def test_offline_memory_is_told_from_online(online: Guest) -> None:
    done = online.run(setup.OFFLINE, timeout=600)
    if done.code:
        pytest.skip(f"the kernel keeps pages on the node: {done.err.strip()[-200:]}")
    cli.call(online, cli.topology_line("offline"))
    graph = cli.graph(online, "offline")
    assert graph.nodes[f"dax:{setup.DAX}"].get("state") == "offline"
    assert any("daxctl online-memory" in text for text in obstacles(graph))
    assert online.run(setup.ONLINE, timeout=600).code == 0


def check_labels(run: Run) -> None:
    """Every point measured, its data right, and no number taken for performance."""
    trouble = [record.reason for record in run if record.status == "failed"]
    assert not trouble
    measured = [record for record in run if record.used]
    assert measured
    assert all(line.verified for record in measured for line in record.used)
    verdicts = check.judge(run)
    assert {verdicts[record.key].status for record in measured} == {"emulated"}
    assert report.summary(run) == []
    assert not any(fitted.model for fitted in fit.fit_run(run))
    assert run.header.machine["virtual"]["emulator"] == "QEMU TCG"


def _node(graph: Topology) -> int:
    return int(graph.nodes[f"dax:{setup.DAX}"].get("target_numa"))
