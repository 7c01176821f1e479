"""The GPU-to-GPU probe without a GPU: which pairs, which points."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from iobench import probe as probes
from iobench import topology
from iobench.errors import Unavailable
from iobench.paths import data_dir
from iobench.topology.graph import Node, Topology
from iobench.units import GIB, KIB, MIB

P2P = probes.load("p2p")
ONE, TWO, EIGHT = (
    topology.load(data_dir("topologies") / f"{name}.json") for name in ("1x-h200", "2x-h200", "hgx-8x-h100")
)


def points(graph: Topology, *assignments: str) -> list[dict[str, Any]]:
    return list(P2P.points(graph, probes.narrow(P2P, assignments)))


def pairs(found: list[dict[str, Any]]) -> set[tuple[int, int]]:
    return {(point["gpu"], point["peer"]) for point in found}


def without_peers(graph: Topology, gpu: str, peer: str) -> Topology:
    changed = copy.deepcopy(graph)
    node = changed.nodes[gpu]
    peers = {**node.get("peers", {}), changed.nodes[peer].get("pci"): False}
    changed.nodes[gpu] = Node(node.id, node.kind, {**node.attrs, "peers": peers})
    return changed


def test_both_orders_of_a_pair_get_the_whole_sweep() -> None:
    found = points(TWO)
    assert pairs(found) == {(0, 1), (1, 0)}
    for direction in ("read", "write"):
        for gpu, peer in ((0, 1), (1, 0)):
            mine = [p for p in found if (p["gpu"], p["peer"], p.get("direction")) == (gpu, peer, direction)]
            fine = [p["nbytes"] for p in mine if (p["traffic"], p["engine"], p["mode"]) == ("one", "ce", "events")]
            assert (fine[0], fine[-1], len(fine)) == (4, GIB, 15)
            ways = {(p["traffic"], p["engine"], p["mode"]) for p in mine}
            assert {("both", "ce", "events"), ("one", "sm", "events"), ("both", "sm", "kernel-loop")} <= ways
    assert {(p["pattern"], p["nbytes"]) for p in found if p["op"] == "chase"} >= {
        ("random", 2 * MIB),
        ("stride", 2 * MIB),
    }


def test_every_ordered_pair_is_in_the_matrix() -> None:
    found = points(EIGHT)
    assert len(pairs(found)) == 56
    brief = [point for point in found if (point["gpu"], point["peer"]) == (3, 5)]
    assert 0 < len(brief) < 10
    assert {point["direction"] for point in brief if point["op"] == "copy"} == {"read", "write"}
    assert any(point["op"] == "chase" for point in brief)
    assert len([point for point in found if (point["gpu"], point["peer"]) == (1, 0)]) > 50
    assert len(points(EIGHT, "gpu=3", "peer=5")) > 50


def test_no_peer_access_no_pair() -> None:
    with pytest.raises(Unavailable, match="peer access"):
        points(ONE)
    with pytest.raises(Unavailable, match="peer access"):
        points(Topology("empty"))
    one_way = without_peers(TWO, "gpu:0", "gpu:1")
    assert pairs(points(one_way)) == {(1, 0)}
    with pytest.raises(Unavailable, match="peer access"):
        points(without_peers(one_way, "gpu:1", "gpu:0"))
    with pytest.raises(Unavailable, match="among those asked for"):
        points(TWO, "gpu=0", "peer=0")


def test_unknown_peer_access_is_tried() -> None:
    graph = Topology("no-nvml")
    for number in range(2):
        graph.add(f"gpu:{number}", "gpu", vendor="NVIDIA")
    assert pairs(points(graph)) == {(0, 1), (1, 0)}


def test_the_user_narrows() -> None:
    assert {point["mode"] for point in points(TWO, "engine=sm", "mode=graph")} == {"graph"}
    assert points(TWO, "engine=ce", "mode=kernel-loop") == []
    assert {point["op"] for point in points(TWO, "pattern=random")} == {"chase"}
    assert {point["nbytes"] for point in points(TWO, "op=copy", "nbytes=64K")} == {64 * KIB}
