"""RDMA ports out of captured and made-up machines: which is taken, by which address, what is said of the others."""

from __future__ import annotations

from pathlib import Path

import pytest
from iobench.errors import Unavailable
from iobench.rdma import counters, ports
from iobench.topology import discover
from iobench.topology.sysfs import Tree

from rdma_sides import sysfs
from test_topology_odd import plant

ODD = "rdma-bond-two-ports-virtual-function-device-without-ports"


@pytest.fixture
def odd(tmp_path: Path) -> dict[str, ports.Port]:
    """A bond, a device of two ports, a virtual function, a device that lists no port and one without a state."""
    return {port.name: port for port in ports.read(Tree(str(plant(ODD, tmp_path))))}


def test_partial_listings_hide_no_other_port(odd: dict[str, ports.Port]) -> None:
    assert list(odd) == ["mlx4_0/1", "mlx4_0/2", "mlx5_1/1", "mlx5_9/1", "mlx5_bond_0/1"]
    assert not odd["mlx5_9/1"].active
    assert odd["mlx5_9/1"].gids == ()
    with pytest.raises(Unavailable, match="mlx5_9/1 is in an unknown state"):
        ports.choose(list(odd.values()), "mlx5_9")


def test_several_ports_bonded_and_virtual_ones(odd: dict[str, ports.Port], tmp_path: Path) -> None:
    found = list(odd.values())
    assert [port.name for port in found if port.virtual] == ["mlx5_1/1"]
    assert ports.choose(found).name == "mlx4_0/2", "neither a port that is down nor a virtual function before others"
    assert ports.choose(found, "mlx4_0").name == "mlx4_0/2"
    assert ports.choose(found, "mlx5_1/1").virtual
    with pytest.raises(Unavailable, match=r"needs mlx4_0/1 as an active RDMA port: mlx4_0/1 is down, .*mlx4_0/2"):
        ports.choose(found, "mlx4_0/1")
    graph = discover(str(tmp_path))
    assert {port.id.removeprefix("port:") for port in ports.usable(graph)} == {"mlx4_0/2", "mlx5_1/1", "mlx5_bond_0/1"}
    assert graph.nodes["port:mlx4_0/1"].get("physical_state") == "Polling"


def test_counters_are_of_the_interfaces_that_carry_the_frames(odd: dict[str, ports.Port], tmp_path: Path) -> None:
    assert odd["mlx4_0/1"].interfaces == ("eth0",)
    assert odd["mlx4_0/2"].interfaces == ("eth1",)
    assert odd["mlx5_1/1"].interfaces == ("eth4",)
    assert odd["mlx5_bond_0/1"].interfaces == ("eth2", "eth3")
    tree = Tree(str(tmp_path))
    assert counters.read(tree, odd["mlx5_bond_0/1"]) == {"net/eth2/rx_dropped": 3, "net/eth3/rx_dropped": 5}
    assert counters.read(tree, odd["mlx4_0/2"]) == {"counters/port_xmit_discards": 7, "net/rx_dropped": 1}
    assert counters.settings(tree, odd["mlx5_bond_0/1"]) == {"interface_mtu": 9000}


def test_the_gid_of_a_bond_is_that_of_its_own_address(odd: dict[str, ports.Port]) -> None:
    chosen = odd["mlx5_bond_0/1"].gid()
    assert (chosen.index, chosen.kind, chosen.interface, chosen.ip) == (3, "RoCE v2", "bond0", "192.0.2.1")
    assert str(chosen) == "GID 3 on bond0 (RoCE v2, routable)"
    assert odd["mlx5_bond_0/1"].gid(5).interface == "bond0.100"
    assert str(odd["mlx5_1/1"].gid()) == "GID 1 on eth4 (RoCE v2, link-local)"
    assert odd["mlx4_0/2"].gid().kind == "IB/RoCE v1", "nothing better is there, and preflight says so"


def test_the_routable_gid_of_version_2_is_chosen(tmp_path: Path) -> None:
    table = (
        ("fe80:0000:0000:0000:0000:00ff:fe00:0001", "IB/RoCE v1"),
        ("fe80:0000:0000:0000:0000:00ff:fe00:0001", "RoCE v2"),
        ("0000:0000:0000:0000:0000:ffff:0a00:0001", "IB/RoCE v1"),
        ("2001:0db8:0000:0000:0000:0000:0000:0001", "RoCE v2"),
        ("0000:0000:0000:0000:0000:ffff:0a00:0001", "RoCE v2"),
        ("0000:0000:0000:0000:0000:0000:0000:0000", ""),
    )
    (port,) = ports.read(sysfs(tmp_path, table))
    assert [gid.index for gid in port.gids] == [0, 1, 2, 3, 4]
    assert port.gid().index == 4
    assert port.gid(3).ip == "2001:db8::1"
    assert "routable" in str(port.gid())
    with pytest.raises(Unavailable, match="no GID 9: it has 0, 1, 2, 3, 4"):
        port.gid(9)


def test_ports_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    tree = sysfs(tmp_path)
    folder = tmp_path / "sys/class/infiniband/mlx5_1/ports/1"
    folder.mkdir(parents=True)
    (folder / "state").write_text("1: DOWN\n")
    (tmp_path / "sys/class/infiniband/mlx5_2").mkdir()  # a device that lists no port
    found = ports.read(tree)
    assert [port.name for port in found] == ["fake0/1", "mlx5_1/1"]
    assert ports.choose(found).name == "fake0/1"
    with pytest.raises(Unavailable, match=r"needs mlx5_1 as an active RDMA port: .*mlx5_1/1 is down"):
        ports.choose(found, "mlx5_1")
    with pytest.raises(Unavailable, match="this machine has none"):
        ports.choose([])
    assert ports.read(Tree(str(tmp_path / "nothing"))) == []


def findings(root: Path) -> list[str]:
    from iobench import preflight, topology

    graph = topology.discover(str(root))
    return [one.sentence for one in preflight.find(preflight.Host.at(str(root), graph), ("rdma",))]


def test_preflight_of_a_container_without_device_files(tmp_path: Path) -> None:
    sysfs(tmp_path)
    (only,) = findings(tmp_path)
    assert "--device=/dev/infiniband" in only
    (tmp_path / "dev/infiniband").mkdir(parents=True)
    (tmp_path / "dev/infiniband/uverbs0").touch()
    assert findings(tmp_path) == []


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ((), "no GID"),
        ((("fe80:0000:0000:0000:0000:00ff:fe00:0001", "RoCE v2"),), "link-local GIDs only"),
        ((("0000:0000:0000:0000:0000:ffff:0a00:0001", "IB/RoCE v1"),), "RoCE v1 only"),
    ],
)
def test_preflight_of_gid_tables(tmp_path: Path, table: tuple[tuple[str, str], ...], says: str) -> None:
    sysfs(tmp_path, table)
    (tmp_path / "dev/infiniband").mkdir(parents=True)
    (tmp_path / "dev/infiniband/uverbs0").touch()
    (only,) = findings(tmp_path)
    assert says in only


def test_preflight_of_a_port_with_lanes_missing(tmp_path: Path) -> None:
    sysfs(tmp_path)
    (tmp_path / "dev/infiniband").mkdir(parents=True)
    (tmp_path / "dev/infiniband/uverbs0").touch()
    for name, rate in (("mlx5_0", "100 Gb/sec (4X EDR)"), ("mlx5_1", "25 Gb/sec (1X EDR)")):
        folder = tmp_path / f"sys/class/infiniband/{name}/ports/1"
        folder.mkdir(parents=True)
        (folder / "rate").write_text(f"{rate}\n")
        (folder / "state").write_text("4: ACTIVE\n")
        (folder / "link_layer").write_text("InfiniBand\n")
    assert findings(tmp_path) == ["mlx5_1/1 runs on 1 of 4 lanes (25 Gb/s): look at its cable and both ends"]
