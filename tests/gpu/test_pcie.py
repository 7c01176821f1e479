"""The PCIe probe on a GPU: rates below the link's limit, every way measured and verified, planted faults caught."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from iobench import gpu
from iobench import probe as probes
from iobench.check import judge
from iobench.errors import EXIT_WRONG_DATA, Unavailable, WrongData
from iobench.fit import fit_run
from iobench.gpu import Device
from iobench.gpu.device import machine
from iobench.record import read
from iobench.timing.sampler import Sampler
from iobench.units import GB, KIB, MIB

pytestmark = pytest.mark.gpu

PCIE = probes.load("pcie")
COPY = {"op": "copy", "gpus": "0", "direction": "h2d", "traffic": "one", "engine": "ce", "memory": "pinned"}
SHORT = """
from iobench import gpu
whole = gpu.memcpy
gpu.memcpy = lambda dst, src, nbytes, stream: whole(dst, src, nbytes - 4 if nbytes == 65536 else nbytes, stream)
"""


def rate(samples: probes.Samples) -> float:
    seconds = float(np.median(np.max(np.asarray(samples.timed.seconds), axis=0))) / samples.timed.ops
    return samples.moved / seconds


@pytest.mark.parametrize("direction", ["h2d", "d2h"])
@pytest.mark.parametrize(
    "way",
    [
        {"mode": "events"},
        {"mode": "graph"},
        {"mode": "host-call"},
        {"mode": "events", "traffic": "both"},
        {"mode": "events", "engine": "sm"},
        {"mode": "kernel-loop", "engine": "sm"},
        {"mode": "kernel-loop", "engine": "sm", "traffic": "both"},
        {"mode": "host-call", "memory": "pageable"},
    ],
)
@pytest.mark.parametrize("nbytes", [4 * MIB, 5000])
def test_every_way_is_measured_and_below_the_limit(
    sampler: Sampler, direction: str, way: dict[str, str], nbytes: int
) -> None:
    if way["mode"] == "kernel-loop" and nbytes < MIB:
        pytest.skip("one message of a few bytes is no loop")
    sampler.budget = 0.05
    samples = PCIE.measure({**COPY, "direction": direction, **way, "nbytes": nbytes}, sampler)
    assert samples.verified is True
    limit = samples.legs[0].bytes_per_s if samples.legs else None
    assert rate(samples) < (limit or 130 * GB)
    if nbytes == 4 * MIB and way.get("memory") != "pageable":
        assert rate(samples) > 0.2 * (limit or 5 * GB)


def test_the_chase_is_slower_than_local_memory(sampler: Sampler) -> None:
    samples = PCIE.measure({"op": "chase", "gpus": "0", "pattern": "random", "nbytes": 2 * MIB}, sampler)
    seconds = float(np.median(samples.timed.seconds)) / samples.timed.ops
    assert 0.3e-6 < seconds < 5e-6
    assert 0.2e9 < samples.evidence["sm_hz"] < 4e9


def test_the_link_was_watched_under_load(sampler: Sampler) -> None:
    samples = PCIE.measure({**COPY, "mode": "events", "nbytes": 64 * MIB}, sampler)
    seen = samples.evidence["gpus"]["gpu:0"]
    assert seen["samples"] >= 2
    assert seen["hertz"] >= 10


@pytest.mark.parametrize("nbytes", [64 * KIB, 5000])
@pytest.mark.parametrize("direction", ["h2d", "d2h"])
def test_a_copy_that_is_short_is_wrong_data(
    sampler: Sampler, nbytes: int, direction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = gpu.memcpy

    def short(dst: int, src: int, count: int, stream: Any) -> None:
        whole(dst, src, count - 4 if count == nbytes else count, stream)

    monkeypatch.setattr(gpu, "memcpy", short)
    with pytest.raises(WrongData):
        PCIE.measure({**COPY, "direction": direction, "mode": "events", "nbytes": nbytes}, sampler)


def test_wrong_data_has_its_own_exit_code_and_is_in_no_fit(tmp_path: Path, cli: Callable[..., Any]) -> None:
    """A probe file of the user's, whose copies of 64 KiB lack four bytes."""
    source = probes.files()["pcie"].read_text(encoding="utf-8")
    folder = tmp_path / "probes"
    folder.mkdir()
    (folder / "pcie.py").write_text(source + SHORT, encoding="utf-8")
    axes = ["gpus=0", "direction=h2d", "traffic=one", "engine=ce", "mode=events", "memory=pinned", "nbytes=4K:1M:4"]
    options = [word for axis in axes for word in ("-a", axis)]
    ended = cli("run", "pcie", "--probes", folder, "--quick", "--out", tmp_path / "run", *options)
    assert ended.returncode == EXIT_WRONG_DATA, ended.stderr
    done = read(tmp_path / "run")
    verdicts = {record.point["nbytes"]: judge(done)[record.key] for record in done}
    assert verdicts[64 * KIB].status == "wrong"
    assert not verdicts[64 * KIB].usable
    assert all(verdict.status != "wrong" for nbytes, verdict in verdicts.items() if nbytes != 64 * KIB)
    assert any("wrong" in note for fitted in fit_run(done) for note in fitted.notes)


def test_out_of_memory_fails_the_point_and_the_next_one_works(sampler: Sampler, card: Device) -> None:
    point = {**COPY, "mode": "events", "nbytes": 1 << 60}
    with pytest.raises((gpu.OutOfMemory, Unavailable)):
        PCIE.measure(point, sampler)
    assert PCIE.measure({**point, "nbytes": MIB}, sampler).verified is True


@pytest.mark.multigpu
def test_all_gpus_at_once(sampler: Sampler) -> None:
    samples = PCIE.measure({**COPY, "gpus": "all", "mode": "events", "nbytes": 4 * MIB}, sampler)
    count = len(gpu.devices())
    assert np.asarray(samples.timed.seconds).shape[0] == count
    assert samples.moved == 4 * MIB * count
    assert len(samples.legs) == count


def test_points_of_this_machine_can_be_measured(sampler: Sampler) -> None:
    assert list(PCIE.points(machine(), probes.narrow(PCIE, [])))
