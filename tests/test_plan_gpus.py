"""Plans for machines of two to eight GPUs, from their topology files: what is measured, and how long it takes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from iobench import catalogue, plan, topology
from iobench.errors import UserError
from iobench.run import Session
from iobench.topology import logs
from iobench.writer import Writer
from tests.conftest import ROOT, Cli

MACHINES = ROOT / "topologies"


def planned(machine: str, *axes: str, probe: str = "allreduce", **more: Any) -> plan.Plan:
    request = plan.Request([probe], list(axes), **more)
    return plan.make(request, topology.load(MACHINES / f"{machine}.json"))


@pytest.mark.parametrize(("machine", "counts"), [("2x-h200", {2}), ("hgx-8x-h100", {2, 4, 8})])
def test_nvlink_between_two_four_and_eight(machine: str, counts: set[int]) -> None:
    points = planned(machine, "transport=nvlink").points["allreduce"]
    assert {point["ranks"] for point in points} == counts
    for ranks in counts:
        mine = [point for point in points if point["ranks"] == ranks]
        graph = [p["nbytes"] for p in mine if (p["engine"], p["mode"], p["inplace"]) == ("nccl", "graph", "no")]
        assert graph == [8 << n for n in range(27)]
        assert {p["engine"] for p in mine} == {"nccl", "torch"}
        assert {p["mode"] for p in mine} == {"graph", "eager", "blocking"}


def test_groups_of_processes_are_started_once_each() -> None:
    made = planned("hgx-8x-h100", "transport=nvlink,shm,socket", "engine=nccl")
    (job,) = [job for job in made.jobs() if job.launch == 0]
    points = len(made.points["allreduce"])
    assert job.setup_seconds == pytest.approx(3 * (3 * 2.5 + 0.1 * (2 + 4 + 8)) + 0.05 * points)


@pytest.mark.parametrize(("left", "begins"), [(1.0, False), (3600.0, True)])
def test_a_further_launch_begins_only_where_its_processes_can_start_in_time(
    tmp_path: Path, left: float, begins: bool
) -> None:
    made = planned("hgx-8x-h100", "transport=nvlink", "engine=nccl", budget=left)
    session = Session(made, tmp_path, Writer(tmp_path / "records.jsonl", -1, 0), set())
    session._end = time.monotonic() + left
    jobs = list(made.jobs())
    assert {job.launch for job in jobs} == {0, 1, 2}
    assert all(session._is_time_for(job) is begins for job in jobs)


def test_every_pair_and_every_gpu_of_eight() -> None:
    points = planned("hgx-8x-h100", probe="p2p").points["p2p"]
    large = {(p["gpu"], p["peer"]) for p in points if p["op"] == "copy" and p["nbytes"] == 64 << 20}
    assert len(large) == 56
    points = planned("hgx-8x-h100", probe="pcie").points["pcie"]
    assert {number for point in points for number in str(point["gpus"]).split("+")} >= {str(n) for n in range(8)}


def test_a_sweep_of_two_four_and_eight_fits_ten_minutes() -> None:
    total = 0.0
    for probe, axes in (("allreduce", ("transport=nvlink",)), ("p2p", ()), ("pcie", ())):
        made = planned("hgx-8x-h100", *axes, probe=probe, launches=1)
        jobs = list(made.jobs())
        total += made.estimate(jobs) + sum(job.setup_seconds for job in jobs)
    assert total < 600


def test_dry_run_of_a_machine_that_is_not_here(cli: Cli) -> None:
    done = cli(
        "run", "allreduce", "-a", "transport=nvlink", "-a", "nbytes=8,64M", "--dry-run", "--machine", "hgx-8x-h100"
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert said[0].startswith("on 8x-nvidia-h100")
    assert "s to set up" in said[-1]
    assert any("ranks=8" in line for line in said)
    refused = cli("run", "allreduce", "--machine", "hgx-8x-h100")
    assert (refused.returncode, "--machine is for --dry-run" in refused.stderr) == (2, True)


def test_an_unknown_machine_names_the_next() -> None:
    with pytest.raises(UserError, match=r"no topology file hgx-8x-h10\b.*hgx-8x-h100"):
        catalogue.dry_run(["allreduce"], [], {}, "hgx-8x-h10")


def test_eight_gpus_out_of_what_nvidia_smi_printed() -> None:
    """A public matrix of eight H200: ports named out of the GPUs' order, nothing said of limits."""
    text = (ROOT / "tests/fixtures/logs/machine-topo-8x-h200-nics-not-in-the-gpus-order.txt").read_text(
        encoding="utf-8"
    )
    graph = logs.merge([text])
    links = [link for link in graph.links if link.kind == "nvlink"]
    assert {(link.b, link.attrs["links"]) for link in links} == {("nvswitch:0", 18)}
    assert len(links) == 8
    made = plan.make(plan.Request(["allreduce"], ["transport=nvlink", "engine=nccl", "nbytes=8,64M"]), graph)
    assert {point["ranks"] for point in made.points["allreduce"]} == {2, 4, 8}
    assert len({(p["gpu"], p["peer"]) for p in plan.make(plan.Request(["p2p"]), graph).points["p2p"]}) == 56
