"""Odd machines, one small tree each, the odd thing in the file's name: unknown stays unknown, nothing crashes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from iobench.topology import Link, Topology, describe, discover, mount_of
from iobench.units import GB
from tests.machines import CAPTURED, Machine

ODD = CAPTURED / "odd"
Tree = Callable[..., Topology]


def plant(name: str, root: Path) -> Path:
    data = json.loads((ODD / f"{name}.json").read_text(encoding="utf-8"))
    machine = Machine(root)
    for path, text in data["files"].items():
        machine.file(path, text)
    for path, target in data["links"].items():
        machine.link(path, target)
    return root


@pytest.fixture
def odd(tmp_path: Path) -> Tree:
    return lambda name: discover(plant(name, tmp_path))


def link_of(graph: Topology, end: str, kind: str) -> Link:
    return next(link for link in graph.links if link.kind == kind and end in {link.a, link.b})


def rate(graph: Topology, src: str, dst: str) -> float | None:
    path = graph.path(src, dst)
    assert path is not None, f"no way from {src} to {dst}"
    return path.bytes_per_s


@pytest.mark.parametrize("name", sorted(file.stem for file in ODD.glob("*.json")))
def test_no_odd_tree_crashes_and_all_say_the_same_twice(name: str, tmp_path: Path) -> None:
    root = plant(name, tmp_path)
    graph = discover(root)
    assert graph.name
    assert describe(graph).startswith(graph.name)
    assert Topology.from_dict(json.loads(json.dumps(graph.to_dict(), allow_nan=False))).to_dict() == graph.to_dict()
    assert discover(root).to_dict() == graph.to_dict()
    assert all(link.bytes_per_s is None or link.bytes_per_s > 0 for link in graph.links)
    assert all(link.source for link in graph.links if link.bytes_per_s)


@pytest.mark.parametrize("name", ["pci-numa-node-minus-one-of-two", "pci-numa-node-empty"])
def test_unknown_numa_node_is_not_node_0(odd: Tree, name: str) -> None:
    graph = odd(name)
    assert graph.nodes["gpu:0"].get("numa") is None
    assert graph.nodes["pci:0000:00:06.0"].get("numa") is None
    assumed = [link for link in graph.links if link.kind == "host bridge"]
    assert [(link.b, link.attrs) for link in assumed] == [("numa:0", {"assumed": True}), ("numa:1", {"assumed": True})]
    assert rate(graph, "gpu:0", "mem:1") == pytest.approx(63.015e9, rel=1e-4)
    path = graph.path("numa:0", "numa:1")
    assert path is not None
    assert [link.kind for link in path.links] == ["interconnect"], "a host bridge at an unknown node is no shortcut"


@pytest.mark.parametrize(
    ("name", "generation", "width", "gigabytes"),
    [
        ("link-speed-missing", None, None, None),
        ("link-speed-empty", None, 16, None),
        ("link-speed-unknown", None, 16, None),
        ("link-speed-unknown-speed", None, 16, None),
        ("link-width-255", 4, None, None),
        ("link-width-0", 4, None, None),
        ("link-speed-kernel-5.6-16-GT", 4, 16, 31.508),
        ("link-speed-kernel-5.6-32-GT", 5, 8, 31.508),
        ("link-speed-kernel-5.7-16.0-GT-PCIe", 4, 16, 31.508),
        ("link-speed-64.0-GT-PCIe", 6, 16, 128.0),
        ("link-speed-2.5-GT-at-idle", 5, 16, 63.015),
        ("root-port-without-link-attributes", 5, 16, 63.015),
        ("slot-narrower-than-device", 4, 8, 15.754),
    ],
)
def test_link(odd: Tree, name: str, generation: int | None, width: int | None, gigabytes: float | None) -> None:
    graph = odd(name)
    link = link_of(graph, graph.nodes["gpu:0"].get("pci"), "pcie")
    assert link.attrs.get("max_generation") == generation
    assert link.attrs.get("max_width") == width
    assert (link.bytes_per_s is None) == (gigabytes is None)
    if gigabytes:
        assert link.bytes_per_s == pytest.approx(gigabytes * GB, rel=1e-4)
        assert link.attrs["warn_bytes_per_s"] < gigabytes * GB
        assert "PCI Express Base Specification" in link.source
    else:
        assert "unknown" in describe(graph)


def test_idle_link_shows_now_and_maximum(odd: Tree) -> None:
    graph = odd("link-speed-2.5-GT-at-idle")
    link = link_of(graph, "pci:0000:00:06.0", "pcie")
    assert link.attrs["current_generation"] == 1
    assert link.attrs["current_bytes_per_s"] == 4e9
    assert "now gen 1 x16, maximum gen 5 x16, limit 63.0 GB/s" in describe(graph)


def test_emulated_link_is_no_limit(odd: Tree) -> None:
    graph = odd("emulated-nvme-2.5-GT-x1")
    link = link_of(graph, "pci:0000:00:04.0", "pcie")
    assert link.bytes_per_s is None
    assert "not physical" in link.source


def test_cpus_without_memory_and_memory_without_cpus(odd: Tree) -> None:
    graph = odd("node-with-cpus-and-no-memory")
    zero, one = graph.nodes["numa:0"], graph.nodes["numa:1"]
    assert (zero.get("has_cpu"), zero.get("has_memory"), one.get("has_cpu"), one.get("has_memory")) == (
        True,
        False,
        False,
        True,
    )
    assert "mem:0" not in graph.nodes
    path = graph.path("mem:1", "cpu:0")
    assert path is not None
    assert [link.kind for link in path.links] == ["dram", "interconnect", "local"]
    assert path.bytes_per_s is None
    assert "no memory" in describe(graph)


def test_node_ids_with_gaps(odd: Tree) -> None:
    graph = odd("node-ids-with-gaps-cpulist-blank")
    assert [node.id for node in graph.of("numa")] == ["numa:0", "numa:3"]
    assert graph.nodes["numa:3"].get("cpus") == []
    assert graph.nodes["mem:3"].get("memory_bytes") == 1047552 * 1024
    assert link_of(graph, "numa:3", "interconnect").attrs == {"distance": 28}


def test_no_numa_folder_is_one_assumed_node(odd: Tree) -> None:
    graph = odd("no-numa-folder")
    node = graph.nodes["numa:0"]
    assert node.get("assumed") is True
    assert node.get("cpus") == [0, 1]
    assert graph.nodes["mem:0"].get("memory_bytes") == 4 << 30
    assert rate(graph, "mem:0", "cpu:1") == pytest.approx(204.8e9)
    assert "assumed" in describe(graph)


def test_no_sysfs_at_all(odd: Tree) -> None:
    graph = odd("no-sysfs-only-cpuinfo")
    assert [cpu.id for cpu in graph.of("cpu")] == ["cpu:0"]
    assert graph.of("socket") == []
    assert graph.nodes["machine"].get("model_name") is None
    assert rate(graph, "mem:0", "cpu:0") is None
    assert graph.name == "genuineintel-fam6-1cpu"
    assert "virtual" not in graph.facts


def test_empty_tree(odd: Tree) -> None:
    graph = odd("empty")
    assert graph.of("cpu") == []
    assert graph.nodes["numa:0"].get("assumed") is True
    assert graph.name == "unknown-0cpu"


def test_package_id_minus_one_is_no_socket(odd: Tree) -> None:
    graph = odd("package-id-minus-one")
    assert graph.of("socket") == []
    assert graph.nodes["cpu:0"].get("socket") is None
    assert graph.nodes["machine"].get("vendor") == "0x41"
    assert rate(graph, "mem:0", "cpu:0") is None


def test_allowed_cpus_and_memory(odd: Tree) -> None:
    graph = odd("cpus-allowed-is-a-part")
    assert [cpu.get("allowed") for cpu in graph.of("cpu")] == [False, True]
    assert [node.get("allowed") for node in graph.of("numa")] == [False, True]
    assert "not allowed here: 0" in describe(graph)


def test_rate_of_a_port_that_is_down_does_not_count(odd: Tree) -> None:
    graph = odd("rdma-port-down-rate-10-beside-active-200")
    lines = {node.id: node.get("line_bytes_per_s") for node in graph.of("port")}
    assert lines == {"port:mlx5_0/1": None, "port:mlx5_1/1": 25e9, "port:mlx5_2/1": None, "port:mlx5_3/1": None}
    assert rate(graph, "port:mlx5_1/1", "mem:0") == 25e9
    assert link_of(graph, "port:mlx5_0/1", "line").bytes_per_s is None
    assert graph.nodes["port:mlx5_0/1"].get("physical_state") == "Polling"


def test_signalling_rates_hold_less_data(odd: Tree) -> None:
    graph = odd("rdma-rate-signalling-40-qdr-56-fdr")
    rates = [node.get("line_bytes_per_s") for node in graph.of("port")]
    assert rates[0] == pytest.approx(4e9)
    assert rates[1] == pytest.approx(54.545e9 / 8, rel=1e-3)
    assert rates[2] == pytest.approx(5e9), "40 Gb/s Ethernet is 40 Gb/s of data"


def test_nic_speed(odd: Tree) -> None:
    graph = odd("nic-speed-minus-one-and-4294967295-and-down")
    assert [node.get("line_bytes_per_s") for node in graph.of("nic")] == [None, None, None, 3.125e9]
    assert rate(graph, "nic:eth3", "mem:0") == 3.125e9


def test_an_interface_named_by_its_address(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    device = machine.pci("pci0000:00/0000:00:03.0", "0x020000", "0b95:1790")
    machine.nic("enx02" + "00000000" + "0a", device, 1000)
    graph = discover(tmp_path)
    assert [node.id for node in graph.of("nic")] == ["nic:enx-0"]
    assert graph.nodes["nic:enx-0"].get("line_bytes_per_s") == 125e6


def test_mounts(odd: Tree) -> None:
    graph = odd("mount-overlay-upper-visible-and-escaped-space")
    assert graph.nodes["mount:/"].get("block") == "block:nvme0n1", "the overlay's upper folder lies on the disk"
    assert graph.nodes["mount:/my data"].get("block") == "block:nvme0n1"
    assert graph.nodes["mount:/net"].attrs == {"fstype": "nfs4", "network": True}
    assert "fileserver" not in json.dumps(graph.to_dict())
    assert rate(graph, "mount:/my data", "mem:0") == pytest.approx(7.877e9, rel=1e-3)
    found = {
        path: getattr(mount_of(graph, path), "id", None) for path in ("/my data/a/b", "/my datab", "/var/lib", "/x")
    }
    assert found == {
        "/my data/a/b": "mount:/my data",
        "/my datab": "mount:/",
        "/var/lib": "mount:/var/lib",
        "/x": "mount:/",
    }


def test_overlay_in_a_container(odd: Tree) -> None:
    graph = odd("mount-overlay-upper-hidden-in-a-container")
    assert graph.nodes["mount:/"].attrs == {"fstype": "overlay"}
    assert "mount:/etc/hosts" not in graph.nodes
    assert graph.nodes["block:nvme0n1"].get("mounts") is None


def test_mount_point_with_an_identifier_is_left_out(tmp_path: Path) -> None:
    uuid = "-".join(["01234567", "89ab", "cdef", "0123", "456789abcdef"])
    Machine(tmp_path).mounts(f"0:61 /pods/{uuid}/vol tmpfs tmpfs", "0:62 /tmp tmpfs tmpfs")
    assert [node.id for node in discover(tmp_path).of("mount")] == ["mount:/tmp"]


def test_mounts_without_mountinfo(odd: Tree) -> None:
    graph = odd("mounts-without-mountinfo-btrfs-own-number")
    assert graph.nodes["mount:/"].attrs == {"fstype": "btrfs", "block": "block:nvme0n1"}


def test_disks_on_disks(odd: Tree) -> None:
    graph = odd("disk-dm-loop-multipath-empty-drive")
    assert {node.id for node in graph.of("block")} == {
        f"block:{name}" for name in ("dm-0", "loop1", "nvme0n1", "nvme1n1", "zram0")
    }
    assert graph.nodes["mount:/"].get("block") == "block:dm-0"
    assert rate(graph, "mount:/", "mem:0") == pytest.approx(7.877e9, rel=1e-3)
    assert rate(graph, "block:loop1", "mem:0") == pytest.approx(7.877e9, rel=1e-3)
    assert graph.nodes["block:nvme1n1"].get("pci") == "pci:0000:00:05.0"
    assert rate(graph, "block:zram0", "mem:0") == pytest.approx(204.8e9)


def test_cxl_device_that_is_not_mapped(odd: Tree) -> None:
    graph = odd("cxl-memory-device-without-region-numa-minus-one")
    node = graph.nodes["cxl:mem0"]
    assert node.get("state") == "present, not mapped"
    assert node.get("device_numa") is None
    assert node.get("volatile_bytes") == 64 << 30
    assert node.get("persistent_bytes") is None
    assert rate(graph, "cxl:mem0", "mem:0") == pytest.approx(31.508e9, rel=1e-4)


def test_dax_with_odd_figures(odd: Tree) -> None:
    graph = odd("dax-negative-size-unknown-target-partly-online")
    dax = graph.nodes["dax:dax0.0"]
    assert dax.get("nbytes") is None
    assert (dax.get("state"), dax.get("memory_blocks"), dax.get("memory_blocks_online")) == ("partly online", 3, 1)
    assert graph.nodes["cxl:region0"].get("nbytes") is None
    assert link_of(graph, "mem:1", "cxl").bytes_per_s is None


def test_caches(odd: Tree) -> None:
    graph = odd("cache-size-empty-and-shared-list-empty")
    shown: dict[str, Any] = {node.id: (node.get("nbytes"), node.get("cpus")) for node in graph.of("cache")}
    assert shown == {
        "cache:L1d:0": (32768, [0]),
        "cache:L2:0": (None, [0, 1]),
        "cache:L3:0": (None, [0]),
        "cache:L1d:1": (32768, [1]),
        "cache:L3:1": (None, [1]),
    }
    assert rate(graph, "cache:L2:0", "cpu:1") == 96 * 4.5e9


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [
        ("nps2-two-nodes-of-one-socket", 102.4),
        ("l3-as-numa-two-nodes-of-one-socket", 204.8),
        ("numa-fake-two-nodes-of-one-socket", 204.8),
    ],
)
def test_a_node_has_its_share_of_the_channels(odd: Tree, name: str, gigabytes: float) -> None:
    graph = odd(name)
    assert rate(graph, "mem:0", "cpu:0") == pytest.approx(gigabytes * GB)
    assert link_of(graph, "numa:0", "interconnect").bytes_per_s is None


def test_virtual_machine_claims_nothing_between_its_sockets(odd: Tree) -> None:
    graph = odd("virtual-machine-with-two-sockets")
    assert graph.facts["virtual"] is True
    assert link_of(graph, "numa:0", "interconnect").bytes_per_s is None
    assert rate(graph, "mem:1", "cpu:0") == pytest.approx(204.8e9)


def test_two_sockets_in_one_node_add_up(odd: Tree) -> None:
    assert rate(odd("two-sockets-in-one-node"), "mem:0", "cpu:0") == pytest.approx(409.6e9)


def test_more_cpus_than_a_socket_has(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    identity = "vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 1\nmodel name\t: AMD EPYC"
    machine.cpus(130, 1, identity, "512K", "32768K", 130, flags="hypervisor")
    machine.node(0, "0-129", 64, "10")
    graph = discover(tmp_path)
    assert rate(graph, "mem:0", "cpu:0") is None
    assert "130 CPUs in one socket" in link_of(graph, "mem:0", "dram").source
