"""Findings on GPUDirect Storage before a run, on constructed machines; the inputs are those of the issues."""

from __future__ import annotations

from pathlib import Path

import pytest
from iobench import preflight
from iobench.preflight import gds
from iobench.preflight.host import Host
from iobench.topology.graph import Topology
from iobench.topology.sysfs import Tree
from tests.machines import built

NVFS = """GDS Version: 1.14.0.31
NVFS statistics(ver: 4.0)
IO stats: {state}, peer IO stats: Disabled

Active Shadow-Buffer (MiB): 0
Reads				: n=4 ok=4 err=0 readMiB=64 io_state_err=0
"""
CUFILE = """{
    // NOTE : settings
    "properties": {
        "max_direct_io_size_kb" : 16384, // KB
        "use_pci_p2pdma" : true
    },
    "fs": { "generic": { "posix_unaligned_writes" : false } },
    "block": { "nvme": { "use_pci_p2pdma": %s } }
}
"""


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """A machine with GPUs, nvidia-fs that counts, udev, libcufile, and files on ext4 of an NVMe drive."""
    graph = built("hgx-8x-h100", tmp_path)
    found = Host(Tree(tmp_path), graph, {})
    for block in graph.of("block"):
        if block.get("type") == "disk":
            graph.add(block.id, "block", numa=0)
    write(found, "proc/driver/nvidia-fs/stats", NVFS.format(state="Enabled"))
    write(found, "run/udev/data/b259:0", "")
    write(found, "usr/lib/x86_64-linux-gnu/libcufile.so.0", "")
    mounted(found, "ext4", "/dev/nvme0n1p1")
    return found


def write(host: Host, path: str, text: str) -> None:
    place = Path(host.tree.path(path))
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)


def mounted(
    host: Host, kind: str, source: str, options: str = "rw", device: str = "nvme0n1", block: str = "disk"
) -> None:
    write(host, "proc/self/mountinfo", f"21 1 259:1 / / rw,relatime - {kind} {source} {options}\n")
    host.topology.add(f"block:{device}", "block", type=block, mounts=["/"], numa=0)


def sentences(host: Host) -> list[str]:
    return [finding.sentence for finding in gds.find(host)]


def test_a_sound_machine_has_no_finding(host: Host) -> None:
    assert sentences(host) == []


def test_without_gpus_nothing_is_said() -> None:
    assert gds.find(Host(Tree("/nowhere"), Topology("empty"))) == []


def test_it_is_a_subject_of_the_preflight(host: Host) -> None:
    write(host, "proc/sys/kernel/osrelease", "6.6.87.2-microsoft-standard-WSL2\n")
    found = preflight.find(host, ("gds",))
    assert [finding.subject for finding in found] == ["gds"]
    assert "WSL" in found[0].sentence
    assert not found[0].stops


def test_no_udev_in_a_container(host: Host) -> None:
    import shutil

    shutil.rmtree(host.tree.path("run/udev"))
    assert any("--volume /run/udev:/run/udev:ro" in text for text in sentences(host))


def test_no_library(host: Host) -> None:
    Path(host.tree.path("usr/lib/x86_64-linux-gnu/libcufile.so.0")).unlink()
    assert any("pip install nvidia-cufile" in text for text in sentences(host))


def test_counters_that_are_off_prove_nothing(host: Host) -> None:
    write(host, "proc/driver/nvidia-fs/stats", NVFS.format(state="Disabled"))
    assert any("rw_stats_enabled" in text for text in sentences(host))


@pytest.mark.parametrize(
    ("block", "registry", "lacks"),
    [
        ("false", 'RegistryDwords: ""', ["block.nvme.use_pci_p2pdma", "RMForceStaticBar1=1"]),
        ("true", 'RegistryDwords: ""', ["RMForceStaticBar1=1"]),
        ("false", 'RegistryDwords: "RMForceStaticBar1=1;"', ["block.nvme.use_pci_p2pdma"]),
        ("true", 'RegistryDwords: "RMForceStaticBar1=1;"', []),
    ],
)
def test_p2pdma_needs_all_three_settings(host: Host, block: str, registry: str, lacks: list[str]) -> None:
    Path(host.tree.path("proc/driver/nvidia-fs/stats")).unlink()
    write(host, "etc/cufile.json", CUFILE % block)
    write(host, "proc/driver/nvidia/params", registry + "\n")
    found = sentences(host)
    assert len(gds.p2pdma_lacks(host)) == len(lacks)
    assert bool(found) == bool(lacks)
    for name in lacks:
        assert name in found[0]
    assert not lacks or "modprobe nvidia-fs" in found[0]


def test_a_commented_setting_is_none(host: Host) -> None:
    write(host, "etc/cufile.json", '{ "properties": { // "use_pci_p2pdma": true\n } }')
    assert "properties.use_pci_p2pdma" in gds.p2pdma_lacks(host)


@pytest.mark.parametrize(
    ("kind", "source", "options", "words"),
    [
        ("overlay", "overlay", "rw", "no device that cuFile could find"),
        ("tmpfs", "tmpfs", "rw", "in memory"),
        ("nfs4", "server:/x", "rw", "RDMA"),
        ("btrfs", "/dev/nvme0n1p1", "rw", "does not take"),
        ("ext4", "/dev/nvme0n1p1", "rw,data=writeback", "data=ordered"),
    ],
)
def test_filesystems_that_keep_cufile_out(host: Host, kind: str, source: str, options: str, words: str) -> None:
    mounted(host, kind, source, options)
    (text,) = sentences(host)
    assert words in text


@pytest.mark.parametrize(
    ("device", "block", "words"),
    [("dm-0", "device mapper", "device mapper"), ("loop3", "loop", "a loop device"), ("vda", "disk", "no NVMe drive")],
)
def test_devices_that_keep_cufile_out(host: Host, device: str, block: str, words: str) -> None:
    for node in host.topology.of("block"):
        host.topology.add(node.id, "block", mounts=[])
    mounted(host, "ext4", f"/dev/{device}", device=device, block=block)
    (text,) = sentences(host)
    assert words in text
    assert "compat" in text


@pytest.mark.parametrize(
    ("last", "small"), [("0x00000000d0ffffff", True), ("0x00000021ffffffff", False), ("odd", False)]
)
def test_a_small_bar1(host: Host, last: str, small: bool) -> None:
    gpu = host.topology.of("gpu")[0]
    lines = f"0x00000000c0000000 0x00000000c0ffffff 0x0000000000040200\n0x00000000d0000000 {last} 0x000000000014220c\n"
    write(host, f"sys/bus/pci/devices/{gpu.get('address')}/resource", lines)
    found = sentences(host)
    assert bool(found) == small
    assert not small or "16 MiB of its" in found[0]


def test_a_drive_on_another_socket(host: Host) -> None:
    for gpu in host.topology.of("gpu"):
        host.topology.add(gpu.id, "gpu", numa=1)
    (text,) = sentences(host)
    assert "another NUMA node" in text
    host.topology.add(host.topology.of("gpu")[0].id, "gpu", numa=None)
    unknown = [gpu.get("numa") for gpu in host.topology.of("gpu")]
    assert (None in unknown) == (sentences(host) == [])
