"""Findings on NCCL before a run, on constructed machines: the inputs are those of the issues that named them."""

from __future__ import annotations

import contextlib
import copy
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from iobench import preflight
from iobench.preflight import nccl
from iobench.preflight.host import Host
from iobench.topology.graph import Topology
from iobench.topology.sysfs import Tree
from tests.machines import built

MIB = 1 << 20


Write = Callable[[str, str | bytes], None]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Topology]:
    """Thousands of files, written once: a test gets its own graph and takes back what it writes."""
    root = tmp_path_factory.mktemp("hgx")
    return root, built("hgx-8x-h100", root)


@pytest.fixture
def host(machine: tuple[Path, Topology]) -> Host:
    root, graph = machine
    return Host(Tree(root), copy.deepcopy(graph), {}, shm_free=64 << 30, memlock=None)


@pytest.fixture
def write(host: Host) -> Iterator[Write]:
    """Return what writes a file of the machine for this test."""
    with contextlib.ExitStack() as undo:

        def written(path: str, text: str | bytes) -> None:
            place = Path(host.tree.path(path))
            if place.exists():
                undo.callback(place.write_bytes, place.read_bytes())
            else:
                undo.callback(remove, next(new for new in (*reversed(place.parents), place) if not new.exists()))
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(text.encode() if isinstance(text, str) else text)

        yield written


def remove(place: Path) -> None:
    shutil.rmtree(place) if place.is_dir() else place.unlink()


def sentences(host: Host) -> list[str]:
    return [finding.sentence for finding in nccl.find(host)]


def test_a_sound_machine_has_no_finding(host: Host) -> None:
    assert sentences(host) == []


@pytest.mark.parametrize(("free", "stops"), [(64 * MIB, True), (1 << 30, False)])
def test_shared_memory_of_a_container(host: Host, free: int, stops: bool) -> None:
    host.shm_free = free
    (finding,) = nccl.find(host)
    assert finding.stops is stops
    assert f"/dev/shm has {free // MIB if stops else 1} {'MiB' if stops else 'GiB'} left" in finding.sentence
    assert "--shm-size=1g" in finding.sentence
    assert finding.concerns == ("shm",)


def test_left_segments_are_counted(host: Host, write: Write) -> None:
    write("dev/shm/nccl-WU88OE", "")
    write("dev/shm/sem.other", "")
    assert sentences(host) == ["/dev/shm holds 1 files nccl-*: of a running job, or left by one that was killed"]


@pytest.mark.parametrize(
    ("value", "words"),
    [("0,1,1", "names 1 more than once"), ("0,8", "names 8, and the machine has 8 GPUs"), ("0,1,2", ""), ("", "")],
)
def test_visible_devices(host: Host, value: str, words: str) -> None:
    host.environment = {"CUDA_VISIBLE_DEVICES": value}
    found = nccl.find(host)
    assert [words in one.sentence and one.stops for one in found] == ([True] if words else [])


def test_locked_memory_matters_where_there_is_rdma(host: Host, tmp_path: Path) -> None:
    host.memlock = 64 << 10
    (finding,) = nccl.find(host)
    assert "may lock 64 KiB" in finding.sentence
    assert "ulimit -l unlimited" in finding.sentence
    plain = Host(Tree(tmp_path / "none"), built("laptop", tmp_path / "laptop"), {}, 1 << 30, 64 << 10)
    assert nccl.find(plain) == []


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("ro quiet intel_iommu=on", True), ("ro intel_iommu=on iommu=pt", False), ("ro quiet", False),
        ("amd_iommu=on", True), ("intel_iommu=on iommu.passthrough=1", False),
    ],
)  # fmt: skip
def test_a_translating_iommu(host: Host, write: Write, words: str, found: bool) -> None:
    write("proc/cmdline", words)
    write("sys/class/iommu/dmar0/x", "")
    assert any("the IOMMU translates" in sentence for sentence in sentences(host)) is found


def config(control: int, loops: bool = False) -> bytes:
    """Return a configuration space whose extended list holds AER, then ACS."""
    data = bytearray(4096)
    struct.pack_into("<I", data, 0x100, 0x0001 | 1 << 16 | 0x150 << 20)
    following = 0x100 if loops else 0
    kind = 0x0019 if loops else 0x000D
    struct.pack_into("<I", data, 0x150, kind | 1 << 16 | following << 20)
    struct.pack_into("<HH", data, 0x154, 0x5F, control)
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (config(0x1D), 0x1D), (config(0), 0), (config(0x1D)[:256], 0), (b"", 0), (config(0x1D, loops=True), 0),
        (b"\xff" * 4096, 0),
    ],
)  # fmt: skip
def test_acs_control_word(data: bytes, expected: int) -> None:
    assert nccl.acs_control(data) == expected


def test_acs_that_redirects_is_named_with_the_bridge(host: Host, write: Write) -> None:
    bridge = next(
        name
        for name in host.tree.names("sys/bus/pci/devices")
        if (host.tree.text("sys/bus/pci/devices", name, "class") or "").startswith("0x0604")
    )
    write(f"sys/bus/pci/devices/{bridge}/config", config(0x01))
    assert sentences(host) == []  # source validation alone redirects nothing
    write(f"sys/bus/pci/devices/{bridge}/config", config(0x1D))
    (sentence,) = sentences(host)
    assert f"at 1 PCIe bridges ({bridge})" in sentence


def test_a_port_that_polls(host: Host) -> None:
    host.topology.nodes["port:mlx5_3/1"].attrs.update(state="DOWN", physical_state="Polling")
    assert "mlx5_3/1 is down (Polling): NCCL leaves it out; NCCL_IB_HCA must not name it" in sentences(host)


def test_no_active_port_stops(host: Host) -> None:
    for port in host.topology.of("port"):
        port.attrs["state"] = "DOWN"
    first = preflight.find(host)[0]
    assert first.stops
    assert first.sentence.startswith("no RDMA port is active (mlx5_0/1 is down")


def test_ports_of_unequal_rate(host: Host) -> None:
    host.topology.nodes["port:mlx5_7/1"].attrs["line_bytes_per_s"] = 25e9
    assert "the active ports differ in rate (1 at 25.0 GB/s, 7 at 50.0 GB/s)" in sentences(host)[0]


def test_a_gpu_without_a_port_on_its_node(host: Host) -> None:
    for number in range(4, 8):
        host.topology.nodes[f"port:mlx5_{number}/1"].attrs["state"] = "DOWN"
    assert any("gpu:4, gpu:5, gpu:6, gpu:7 have no RDMA port on the same NUMA node" in one for one in sentences(host))


@pytest.mark.parametrize(
    ("types", "gids", "asked", "words"),
    [
        ({"0": "IB/RoCE v1", "1": "RoCE v2"}, {"1": "fe80:0000:0000:0000:0000:0000:0000:0001"}, None, "has no GID"),
        ({"3": "RoCE v2"}, {"3": "0000:0000:0000:0000:0000:ffff:c000:0201"}, None, ""),
        ({"1": "RoCE v2", "3": "RoCE v2"}, {"3": "0000:0000:0000:0000:0000:ffff:c000:0201"}, "1", "it has 3"),
        ({"3": "RoCE v2"}, {"3": "0000:0000:0000:0000:0000:ffff:c000:0201"}, "3", ""),
    ],
)
def test_gids_of_a_roce_port(
    host: Host, write: Write, types: dict[str, str], gids: dict[str, str], asked: str | None, words: str
) -> None:
    host.topology.nodes["port:mlx5_0/1"].attrs["link_layer"] = "Ethernet"
    folder = "sys/class/infiniband/mlx5_0/ports/1"
    for number, kind in types.items():
        write(f"{folder}/gid_attrs/types/{number}", kind)
    for number, gid in gids.items():
        write(f"{folder}/gids/{number}", gid)
    host.environment = {"NCCL_IB_GID_INDEX": asked} if asked else {}
    found = [one for one in nccl.find(host) if "GID" in one.sentence]
    assert [words in one.sentence and one.stops for one in found] == ([True] if words else [])


def test_names_that_are_prefixes(host: Host) -> None:
    host.topology.add("port:mlx5_10/1", "port", device="mlx5_10", state="ACTIVE", numa=0, line_bytes_per_s=50e9)
    host.environment = {"NCCL_IB_HCA": "mlx5_1"}
    assert sentences(host) == [
        "NCCL_IB_HCA=mlx5_1 also takes mlx5_10, because it is a prefix: write NCCL_IB_HCA==mlx5_1"
    ]
    for value in ("=mlx5_1", "^mlx5_1", "mlx5", "mlx5_2:1", ""):
        host.environment = {"NCCL_IB_HCA": value}
        assert sentences(host) == []


def test_an_interface_that_is_not_there(host: Host) -> None:
    host.environment = {"NCCL_SOCKET_IFNAME": "bond0"}
    (finding,) = nccl.find(host)
    assert finding.stops
    assert finding.sentence == "NCCL_SOCKET_IFNAME=bond0 names nothing here (there is lo): NCCL would find no device"


@pytest.mark.parametrize(
    ("built_with", "loaded", "count"), [("2.27.0", "2.23.4", 1), ("2.28.3", "2.28.9", 0), ("", "2.28.9", 0)]
)
def test_headers_and_library(built_with: str, loaded: str, count: int) -> None:
    assert len(nccl.versions(built_with, loaded)) == count


def test_this_machine_is_looked_at() -> None:
    from iobench import topology

    for finding in preflight.find(Host.here(topology.discover())):
        assert finding.sentence
