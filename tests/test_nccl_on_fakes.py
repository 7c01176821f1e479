"""Collectives on NCCL from the command line to the records, on stand-ins for cupy, NCCL and NVML (tests/fake_gpu)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from iobench import record
from iobench.record import Line
from iobench.units import MIB
from tests.conftest import ROOT, Cli, cli_environment

FAKE = ROOT / "tests" / "fake_gpu"
SETTINGS = ("NCCL_", "CUDA_", "IOBENCH_RANK_", "FAKE_")  # those of who runs the tests change the way and the words
Measure = Callable[..., tuple[CompletedProcess[str], list[Line]]]


@pytest.fixture
def measure(cli: Cli, tmp_path: Path) -> Measure:
    """Run ``iobench run allreduce AXES`` on a machine of stand-ins; return the process and the points' lines."""

    def call(*axes: str, machine: str = "2x-h200", **more: str) -> tuple[CompletedProcess[str], list[Line]]:
        counters = tmp_path / "counters"
        counters.mkdir(exist_ok=True)
        own = {name: value for name, value in cli_environment().items() if not name.startswith(SETTINGS)}
        own["PYTHONPATH"] = os.pathsep.join([str(FAKE), own["PYTHONPATH"]])
        own |= {"FAKE_MACHINE": str(ROOT / "topologies" / f"{machine}.json"), "FAKE_COUNTERS": str(counters)}
        own |= {"IOBENCH_RANK_DEADLINE": "900", **more}
        chosen = [word for axis in ("engine=nccl", *axes) for word in ("-a", axis)]
        options = ["--launches", "1", "--quick", "--budget", "1", "--no-report", "--deadline", "1800"]
        done = cli("run", "allreduce", *chosen, *options, "--out", tmp_path / "out", env=own, timeout=1800)
        return done, lines(tmp_path / "out") if (tmp_path / "out").exists() else []

    return call


def lines(folder: Path) -> list[Line]:
    return [line for entry in record.read(folder).records for line in entry.lines]


def measured(line: Line) -> bool:
    """Whether it was measured; other processes may have made it suspect."""
    return bool(line.seconds) and line.verified is True and line.status in ("ok", "suspect")


def test_every_operation_from_the_command_line(measure: Measure) -> None:
    ops = "op=all_reduce,all_gather,reduce_scatter,broadcast,reduce,all_to_all,sendrecv"
    done, found = measure("transport=nvlink", ops, "mode=graph", "inplace=no", "nbytes=64")
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(found) == 7
    assert all(measured(line) and line.proven for line in found), [line.reason for line in found]
    assert {line.path.partition(":")[0] for line in found} == {"nvlink"}
    assert all(len(line.seconds) == 2 for line in found)


def test_types_in_place_each_waited_for(measure: Measure) -> None:
    done, found = measure(
        "transport=nvlink", "mode=blocking", "inplace=yes", "dtype=float32,float16,bfloat16,float8", "nbytes=256"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(found) == 4
    assert all(measured(line) for line in found), [line.reason for line in found]
    assert all(line.evidence["launch_seconds"] for line in found)


def test_launched_one_by_one(measure: Measure) -> None:
    done, found = measure("transport=nvlink", "mode=eager", "inplace=no", "nbytes=256")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [measured(line) for line in found] == [True]
    says = (
        "launching an operation from Python costs 200.0 us (with a line of NCCL's log for each: this NCCL can't be told"
    )
    assert found[0].notes[0] == f"{says} to stop) and is what is timed"


def test_each_transport_is_taken_and_proven_and_nccls_choices_are_kept(measure: Measure) -> None:
    done, found = measure("transport=nvlink,shm,socket", "mode=graph", "inplace=no", "nbytes=8,1048576")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.path.partition(":")[0] for line in found] == ["nvlink"] * 2 + ["shm"] * 2 + ["socket"] * 2
    assert all(line.proven for line in found)
    assert [line.evidence["proto"] for line in found] == ["ll", "simple"] * 3
    assert {line.evidence["algo"] for line in found} == {"ring"}
    assert [entry["nbytes"] for entry in found[1].evidence["tuning"]] == [8, MIB]
    assert found[0].evidence["nccl"] == "2.28.9"
    assert found[0].evidence["buffers"] == "cudaMalloc"
    nvlink, shm = found[1].evidence["nvlink"], found[3].evidence["nvlink"]
    assert min(one["sent"] for one in nvlink) > MIB
    assert max(one["sent"] for one in shm) == 0


@pytest.mark.parametrize(
    ("asked", "taken", "words"),
    [
        ("shm", "NET/Socket/0", "NotTaken: asked shm, NCCL chose socket (No device found)"),
        ("nvlink", "SHM/direct/direct", "NotTaken: asked nvlink, NCCL chose shm (No device found)"),
    ],
)
def test_a_way_that_was_not_taken_is_no_number(measure: Measure, asked: str, taken: str, words: str) -> None:
    done, found = measure(f"transport={asked}", "mode=graph", "inplace=no", "nbytes=8", FAKE_WAY=taken)
    assert done.returncode == 1
    assert [(line.status, line.reason, line.seconds) for line in found] == [("failed", words, [])]


def test_faults_end_their_points_in_the_right_sentence_and_no_others(measure: Measure, scratch: Path) -> None:
    done, found = measure(
        "transport=nvlink", "mode=graph", "inplace=no", "nbytes=32,64,128,512",
        FAKE_FAULT="allReduce:64:wrong,allReduce:128:kill", TMPDIR=str(scratch),
    )  # fmt: skip
    assert done.returncode == 3, "wrong data outranks all else"
    assert [line.point["nbytes"] for line in found if line.status == "failed"] == [64, 128]
    wrong, killed = found[1:3]
    assert wrong.verified is False
    assert "all_reduce: 1 of 16 elements of rank 1's result are wrong, the first is element 0" in wrong.reason
    assert killed.reason.startswith("RankFailed: rank 1 killed by signal 9 while in all_reduce of 128 bytes float32")


def test_a_stopped_rank_ends_its_point_at_the_deadline(measure: Measure, scratch: Path) -> None:
    """It stops in the first operation: nothing but a pause of so many seconds could come before."""
    done, found = measure(
        "transport=nvlink", "mode=graph", "inplace=no", "nbytes=256", IOBENCH_RANK_DEADLINE="15",
        FAKE_FAULT="allReduce:256:stop", TMPDIR=str(scratch),
    )  # fmt: skip
    assert done.returncode == 1
    (stopped,) = found
    assert "rank 1 gave no answer within 15 s while in all_reduce of 256 bytes float32" in stopped.reason
    assert "(stopped by a signal)" in stopped.reason


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    """Return a folder for temporary files; nothing of NCCL's logs is left in it."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    yield folder
    assert list(folder.glob("iobench-*")) == []


def test_eight_ranks_on_eight_gpus(measure: Measure) -> None:
    done, found = measure(
        "transport=nvlink", "mode=graph", "inplace=no", "ranks=8", "op=all_reduce,all_to_all", "nbytes=256",
        machine="hgx-8x-h100",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert [len(line.seconds) for line in found] == [8, 8]
    assert all(measured(line) and line.proven for line in found), [line.reason for line in found]
