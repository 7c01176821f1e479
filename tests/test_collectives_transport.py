"""Which way NCCL is made to take, and which it says it took; the plan of points on GPUs. Logs as NCCL writes them."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from iobench import probe as probes
from iobench import topology
from iobench.collectives import gpus, torch, transport
from iobench.collectives.ops import Work
from iobench.collectives.transport import NotTaken, Way
from iobench.errors import Unavailable, UserError
from iobench.timing.sampler import Timed

PROBE = probes.load("allreduce")
MACHINES = Path(__file__).parents[1] / "topologies"


def info(*said: str) -> str:
    return "\n".join(f"vm:565:565 [0] NCCL INFO {line}" for line in said)


NVL = "GPU/0-60 :GPU/0-60 (0/5000.0/LOC) GPU/0-70 (2/370.8/NVL) NVS/0-0 (1/370.8/NVL) CPU/0-0 (1/48.0/PHB)"
PCI = "GPU/0-60 :GPU/0-60 (0/5000.0/LOC) GPU/0-70 (2/24.0/PHB) CPU/0-0 (1/24.0/PHB)"
P2P = "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM"
SHM = "Channel 00 : 0[0] -> 1[1] via SHM/direct/direct"
SOCKET = "Channel 00/0 : 0[0] -> 1[1] [send] via NET/Socket/0"
IB = "Channel 00/0 : 0[0] -> 1[1] [send] via NET/IB/0"
GDR = "Channel 00/0 : 0[0] -> 1[1] [send] via NET/IB/0/GDRDMA"
NO_IB = "NET/IB : No device found."


@pytest.mark.parametrize(
    ("asked", "said", "taken"),
    [
        ("nvlink", (NVL, P2P), "nvlink"),
        ("pcie", (PCI, P2P), "pcie"),
        ("shm", (NVL, SHM), "shm"),
        ("socket", (NVL, NO_IB, SOCKET), "socket"),
        ("ib", (NVL, IB), "ib"),
        ("ib", (NVL, GDR), "ib, GPUDirect RDMA"),
    ],
)
def test_the_log_proves_the_way(asked: str, said: tuple[str, ...], taken: str) -> None:
    words, proven = transport.proof(Way(asked), transport.Log().add([info(*said)]))
    assert proven
    assert words.startswith(f"{taken}: NCCL's channels via ")


@pytest.mark.parametrize(
    ("way", "said", "sentence"),
    [
        (Way("ib"), (NVL, NO_IB, SOCKET), r"asked ib, NCCL chose socket \(No device found\)"),
        (Way("nvlink"), (PCI, P2P), r"asked nvlink, NCCL chose pcie"),
        (Way("nvlink"), (NVL, "P2P is disabled between connected GPUs 0 and 1", SHM), r"asked nvlink, NCCL chose shm"),
        (Way("shm"), (NVL, P2P), r"asked shm, NCCL chose nvlink"),
        (Way("ib", gdr="on"), (NVL, IB), r"asked GPUDirect RDMA, NCCL went through host memory over ib"),
        (Way("ib", gdr="off"), (NVL, GDR), r"asked ib without GPUDirect RDMA, NCCL used it"),
    ],
)
def test_another_way_is_a_failure_that_says_which_and_why(way: Way, said: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(NotTaken, match=sentence):
        transport.proof(way, transport.Log().add([info(*said)]))


def test_the_slowest_of_all_ranks_channels_counts() -> None:
    with pytest.raises(NotTaken, match="asked nvlink, NCCL chose socket"):
        transport.proof(Way("nvlink"), transport.Log().add([info(NVL, P2P), info(SOCKET)]))


@pytest.mark.parametrize("said", [(), (NVL,), (P2P,)])
def test_a_log_that_does_not_tell_leaves_the_way_unproven(said: tuple[str, ...]) -> None:
    _, proven = transport.proof(Way("nvlink"), transport.Log().add([info(*said)]))
    assert not proven


def test_variables_force_the_way_and_the_log() -> None:
    made = Way("socket", algo="ring", proto="LL").environment("/tmp/x")
    assert made["NCCL_P2P_DISABLE"] == made["NCCL_SHM_DISABLE"] == made["NCCL_IB_DISABLE"] == "1"
    assert (made["NCCL_NET"], made["NCCL_ALGO"], made["NCCL_PROTO"]) == ("Socket", "ring", "LL")
    assert made["NCCL_DEBUG_FILE"] == "/tmp/x.%p"
    assert made["NCCL_DEBUG_SUBSYS"].endswith("TUNING")
    assert "TUNING" not in Way("socket", tuning=False).environment("")["NCCL_DEBUG_SUBSYS"]
    assert "NCCL_ALGO" not in Way("socket").environment("")
    assert Way("ib", gdr="off").environment("")["NCCL_NET_GDR_LEVEL"] == "LOC"


def test_between_nodes_the_gpus_of_one_node_keep_their_own_way() -> None:
    made = Way("ib", nodes=2).environment("")
    assert "NCCL_P2P_DISABLE" not in made
    assert "NCCL_NET" not in made  # NCCL takes InfiniBand before sockets, and says why where it does not


def test_variables_of_the_users_that_had_to_give_way_are_said() -> None:
    own = {"NCCL_P2P_DISABLE": "1", "NCCL_DEBUG": "WARN", "NCCL_SHM_DISABLE": "1", "HOME": "/"}
    assert Way("nvlink").overridden(own) == ["your NCCL_P2P_DISABLE=1 was set to 0 for transport nvlink"]


# --- the plan


def points(machine: str, *narrowed: str) -> list[dict[str, Any]]:
    graph = topology.load(MACHINES / f"{machine}.json")
    return list(PROBE.points(graph, probes.narrow(PROBE, narrowed)))


def test_every_transport_of_the_machine_is_measured() -> None:
    found = points("2x-h200")
    assert list(dict.fromkeys(point["transport"] for point in found)) == ["nvlink", "shm", "socket"]
    assert {point["engine"] for point in found} == {"nccl", "torch"}
    assert {point["ranks"] for point in found} == {2}


def test_the_sweep_has_every_size_and_the_comparisons_some() -> None:
    found = points("2x-h200", "transport=nvlink")
    sweep = [p["nbytes"] for p in found if (p["engine"], p["mode"], p["inplace"]) == ("nccl", "graph", "no")]
    assert sweep == [8 << n for n in range(27)]
    torch_graph = [p["nbytes"] for p in found if (p["engine"], p["mode"]) == ("torch", "graph")]
    assert torch_graph[0] == 8
    assert 5 < len(torch_graph) < len(sweep)
    assert len(found) < 100


def test_points_of_one_group_of_processes_stand_together() -> None:
    def group(point: dict[str, Any]) -> tuple[Any, ...]:
        return point["engine"], gpus.way_of(point), point["ranks"]

    made = [group(point) for point in points("hgx-8x-h100", "transport=nvlink,socket")]
    changes = sum(a != b for a, b in itertools.pairwise(made))
    assert changes == len(set(made)) - 1


def test_eight_gpus_are_measured_in_twos_fours_and_all() -> None:
    assert {point["ranks"] for point in points("hgx-8x-h100", "transport=nvlink")} == {2, 4, 8}


def test_infiniband_where_a_port_is_active() -> None:
    assert {point["transport"] for point in points("hgx-8x-h100")} >= {"nvlink", "ib"}
    with pytest.raises(Unavailable, match="needs the transport ib between GPUs"):
        points("2x-h200", "transport=ib")


def test_gdr_is_an_axis_of_infiniband_alone() -> None:
    found = points("hgx-8x-h100", "gdr=on,off")
    assert {point["transport"] for point in found} == {"ib"}
    assert {point["gdr"] for point in found} == {"on", "off"}


def test_ops_with_parts_leave_out_sizes_that_do_not_divide() -> None:
    found = points("hgx-8x-h100", "op=all_gather", "transport=nvlink", "ranks=8", "engine=nccl", "mode=graph")
    assert min(point["nbytes"] for point in found) == 32
    with pytest.raises(UserError, match="8 parts of whole float32s: choose a multiple of 32"):
        points("hgx-8x-h100", "op=all_gather", "transport=nvlink", "ranks=8", "engine=nccl", "nbytes=8")


def test_torch_has_some_operations_in_place_only() -> None:
    assert torch.supports("all_reduce", "float32", True)
    assert not torch.supports("all_reduce", "float32", False)
    assert torch.supports("all_gather", "bfloat16", False)
    assert not torch.supports("all_reduce", "float8", True)


def test_one_gpu_is_not_enough() -> None:
    with pytest.raises(Unavailable, match="needs two NVIDIA GPUs: the topology shows 1"):
        points("1x-h200", "engine=nccl")


def test_a_machine_without_gpus_keeps_gloo() -> None:
    assert {point["engine"] for point in points("cloud-vm")} == {"gloo"}
    with pytest.raises(Unavailable, match="needs two NVIDIA GPUs: the topology shows none"):
        points("cloud-vm", "transport=nvlink")


# --- proof by counters


def timed(iterations: int, ops: int) -> Timed:
    return Timed([[1e-3] * iterations] * 2, [[1e-3]] * 2, ops, "budget")


def carried(*sent: int) -> list[dict[str, Any]]:
    return [{"gpu": "gpu:0", "sent": count, "received": count} for count in sent]


WORK = Work.of("all_reduce", 1 << 20, "float32", 2)
MOVED = (1 << 20) * 64 * 10


@pytest.mark.parametrize(
    ("way", "counts", "words", "proven"),
    [
        (Way("nvlink", algo="ring"), (MOVED, MOVED), "NVLink counters agree", True),
        (Way("nvlink", algo="ring"), (MOVED // 2, MOVED // 2), "NVLink not proven", False),
        (Way("nvlink"), (0, 0), "NVLink not proven", False),
        (Way("shm"), (0, 0), "the NVLinks stood still", True),
        (Way("shm"), (MOVED, MOVED), "but the NVLinks carried", False),
    ],
)
def test_counters_of_the_links(way: Way, counts: tuple[int, int], words: str, proven: bool) -> None:
    said, shown = gpus._links(way, WORK, timed(9, 64), carried(*counts))
    assert said.startswith(words)
    assert shown is proven


def test_few_bytes_and_missing_counters_prove_nothing_and_deny_nothing() -> None:
    assert gpus._links(Way("nvlink"), Work.of("all_reduce", 8, "float32", 2), timed(9, 64), carried(0, 0)) == ("", True)
    assert gpus._links(Way("nvlink"), WORK, timed(9, 64), []) == ("", True)
    assert gpus._carried([None], [None]) == []


def test_legs_load_every_link_once_in_each_direction() -> None:
    from iobench.check import find_limit
    from iobench.record import Line

    graph = topology.load(MACHINES / "2x-h200.json")
    legs = gpus._legs(graph, Way("nvlink"), WORK, ["gpu:0", "gpu:1"])
    line = Line("allreduce", "", {}, moved=WORK.moved, legs=legs)
    limit, missing = find_limit(line, graph)
    assert not missing
    assert limit is not None
    assert limit.bytes_per_s == pytest.approx(450e9, rel=0.01)
    assert limit.nbytes == WORK.moved


def test_launch_cost_is_said_where_it_matters() -> None:
    about = {"launch_seconds": [10e-6, 12e-6]}
    assert "12.0 us and is what is timed" in gpus._launch_notes("eager", about, timed(9, 80))[0]
    assert gpus._launch_notes("blocking", about, timed(9, 1)) == []
    assert gpus._launch_notes("graph", {}, timed(9, 1)) == []
