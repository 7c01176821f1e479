"""Counters of network ports as the proof of InfiniBand."""

from __future__ import annotations

from pathlib import Path

import pytest
from iobench.collectives import ports
from iobench.collectives.ports import Sent
from iobench.topology.graph import Topology
from iobench.topology.sysfs import Tree

MIB = 1 << 20


def machine(root: Path, **words: int) -> tuple[Topology, Tree]:
    """Return a machine with a port for each device and the words that it has sent."""
    graph = Topology("box")
    for device, count in words.items():
        folder = root / "sys/class/infiniband" / device / "ports/1/counters"
        folder.mkdir(parents=True)
        (folder / "port_xmit_data").write_text(f"{count}\n")
        graph.add(f"port:{device}/1", "port", device=device, port=1, state="ACTIVE")
    graph.add("port:mlx5_9/1", "port", device="mlx5_9", port=1, state="DOWN")
    return graph, Tree(str(root))


def test_active_ports_are_read_in_bytes(tmp_path: Path) -> None:
    graph, tree = machine(tmp_path, mlx5_0=1 << 40, mlx5_1=5)
    graph.add("port:mlx5_2/1", "port", device="mlx5_2", port=1, state="ACTIVE")  # has no counters
    assert ports.read(graph, tree).by_port == {"mlx5_0/1": 1 << 42, "mlx5_1/1": 20}


def test_growth_and_rails() -> None:
    grown = Sent({"a/1": 900, "b/1": 1000, "c/1": 7}).since(Sent({"a/1": 0, "b/1": 100, "c/1": 2}))
    assert grown.by_port == {"a/1": 900, "b/1": 900, "c/1": 5}
    assert grown.rails == ["a/1", "b/1"]


@pytest.mark.parametrize(
    ("sent", "words", "proven"),
    [
        ({"a/1": 600 * MIB, "b/1": 600 * MIB}, "2 rails (a/1, b/1) sent 1.17 GiB", True),
        ({"a/1": 1100 * MIB, "b/1": 0}, "1 rail (a/1) sent 1.07 GiB", True),
        ({"a/1": 100 * MIB, "b/1": 0}, "ports not proven: their counters show 100 MiB of 1000 MiB", False),
        ({}, "", True),
    ],
)
def test_what_the_counters_prove(sent: dict[str, int], words: str, proven: bool) -> None:
    assert ports.proof(Sent(sent), 1000 * MIB, 64 * MIB) == (words, proven)


def test_few_bytes_prove_nothing_and_deny_nothing() -> None:
    assert ports.proof(Sent({"a/1": 0}), MIB, 64 * MIB) == ("", True)
