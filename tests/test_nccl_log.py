"""NCCL's own lines: what they prove of the way, and what they do not."""

from __future__ import annotations

import pytest
from iobench.nccl.log import Told


def told(*lines: str) -> Told:
    found = Told()
    for line in lines:
        found.add(f"box:1:2 [0] NCCL INFO {line}")
    return found


P2P = "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM"
NVL = "GPU/0-60 :GPU/0-60 (0/5000.0/LOC) GPU/0-70 (2/370.8/NVL) CPU/0-0 (1/48.0/PHB) NET/0-0 (3/1.2/PHB)"


@pytest.mark.parametrize(
    ("lines", "transport"),
    [
        ((P2P, NVL), "nvlink"),
        ((P2P,), ""),  # P2P may be PCIe
        ((P2P, NVL.replace("NVL", "PHB")), ""),
        (("Ring 00 : 0[0] -> 1[1] via direct shared memory",), "shm"),
        (("Channel 00 : 0[2000] -> 1[3000] via SHM/direct/direct", P2P, NVL), "shm"),
        (("Channel 00/0 : 1[1] -> 0[0] [receive] via NET/Socket/0", P2P, NVL), "socket"),
        (("Channel 00/0 : 1[1] -> 0[0] [send] via NET/IB/0/GDRDMA",), "ib"),
        (("NET/IB : Using [0]mlx5_0:1/RoCE [RO]", "Channel 00/0 : 1[1] -> 0[0] [send] via NET/IB/0"), "roce"),
        (("Channel 00/0 : 1[1] -> 0[0] [send] via NET/AWS Libfabric/0/GDRDMA",), "efa"),
        (("Channel 00/0 : 1[1] -> 0[0] [send] via NET/OFI/0",), ""),
        (("NET/IB : Using [0]mlx5_0:1/IB [RO]", "Using network Socket"), ""),  # what could be used was not seen used
        (("Channel 00/02 :    0   1   2",), ""),
    ],
)  # fmt: skip
def test_the_transport_is_what_the_channels_say(lines: tuple[str, ...], transport: str) -> None:
    assert told(*lines).transport == transport


def test_tuning_by_name_and_by_number() -> None:
    found = told(
        "AllReduce: 65536 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..7}",
        "AllGather: 33554432 Bytes -> Algo 1 proto 2 time 123.4",
    )
    assert found.tuning["all_reduce", 65536] == {"algo": "ring", "proto": "ll", "channels": 8}
    assert found.tuning["all_gather", 33554432] == {"algo": "ring", "proto": "simple"}


def test_ranks_settings_and_version() -> None:
    found = told("comm 0x1 rank 9 nranks 32 cudaDev 1 - Init COMPLETE", "NCCL_P2P_DISABLE set by environment to 1.")
    found.add("RCCL version 2.20.5-HEAD:1234")
    assert (found.ranks, found.settings, found.version, found.library) == (
        32, {"NCCL_P2P_DISABLE": "1"}, "2.20.5-HEAD", "rccl",
    )  # fmt: skip


def test_no_line_of_nccl_is_none() -> None:
    assert not Told().add("8 2 float sum -1 18.32 0.00 0.00 0")
    assert Told().path == ""
    assert Told().facts() == {}
