"""The GPU probes from end to end on pretended GPUs (fakes/cuda): every way, every kernel, faults that must show.

The kernels are the real ones, built for the CPU; the clock is the fake's, so no assertion here depends on the machine.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from iobench import gpu, topology
from iobench import probe as probes
from iobench.check import find_limit, judge
from iobench.errors import EXIT_WRONG_DATA, WrongData
from iobench.fit import fit_run
from iobench.gpu import nvml, others
from iobench.gpu.device import _device, machine
from iobench.kernels import gpu as kernels
from iobench.kernels.gpu import pointers, streams
from iobench.record import Line, Record, read
from iobench.stats import median_interval
from iobench.timing import cuda_group
from iobench.timing.sampler import Sampler
from iobench.units import GIB, KIB, MIB
from iobench.worker import measure
from tests.conftest import ROOT, cli_environment

import host_kernels

FAKES = ROOT / "tests/fakes/cuda"
CACHES = (kernels._module, _device, machine, nvml._library)
COPY = {"op": "copy", "gpus": "0", "direction": "h2d", "traffic": "one", "engine": "ce", "memory": "pinned"}
PEER = {"op": "copy", "gpu": 0, "peer": 1, "direction": "read", "traffic": "one", "engine": "ce", "mode": "events"}
OURS, TRAINER = 20, 21
SHORT = """
from iobench import gpu
whole = gpu.memcpy
gpu.memcpy = lambda dst, src, nbytes, stream: whole(dst, src, nbytes - 4 if nbytes == 65536 else nbytes, stream)
"""
Pretend = Callable[..., Any]


def forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in ("cupy", "pynvml")]:
        del sys.modules[name]
    for cache in CACHES:
        cache.cache_clear()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the kernels that were built are kept for all tests here."""
    folder = tmp_path_factory.mktemp("kernels")
    host_kernels.needs_compiler(folder)
    return folder


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch, built: Path) -> Iterator[Pretend]:
    """Make this process see pretended GPUs; the keywords are those of FAKE_GPUS. Returns their machine."""

    def begin(**described: Any) -> Any:
        monkeypatch.setenv("FAKE_GPUS", json.dumps(described))
        monkeypatch.setenv("FAKE_CUDA_CACHE", str(built))
        monkeypatch.syspath_prepend(str(FAKES))
        forget()
        return importlib.import_module("cupy._machine").MACHINE

    forget()
    yield begin
    forget()


@pytest.fixture
def sampler() -> Iterator[Sampler]:
    made = Sampler(budget=0.02, max_samples=40)
    yield made
    made.close()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU walks one hundredth of what a GPU does in a launch."""
    monkeypatch.setattr(streams, "_ALONE_NBYTES", 2 * MIB)
    monkeypatch.setattr(streams, "_LAUNCH_NBYTES", MIB)
    monkeypatch.setattr(pointers, "SAMPLE_SECONDS", 1e-4)


def line_of(name: str, point: dict[str, Any], sampler: Sampler) -> Line:
    probe = probes.load(name)
    module = sys.modules[f"iobench_probe_{name}"]
    if hasattr(module, "_LOOP_SECONDS"):
        module._LOOP_SECONDS = 2e-5  # type: ignore[attr-defined]  a CPU copies some MB where a GPU does hundreds
    return measure(probe, point, sampler)


def below_the_limit(line: Line) -> bool:
    seconds = float(np.median(np.max(np.asarray(line.seconds), axis=0))) / line.ops
    limit, _ = find_limit(line, machine())
    return limit is None or limit.seconds < seconds


@pytest.mark.parametrize(("direction", "nbytes"), [("h2d", 256 * KIB), ("d2h", 5000)])
@pytest.mark.parametrize(
    "way",
    [
        {"mode": "events"},
        {"mode": "graph"},
        {"mode": "events", "traffic": "both"},
        {"mode": "events", "engine": "sm"},
        {"mode": "kernel-loop", "engine": "sm"},
        {"mode": "kernel-loop", "engine": "sm", "traffic": "both"},
        {"mode": "host-call"},
        {"mode": "host-call", "memory": "pageable"},
    ],
)
def test_every_way_over_pcie(
    pretend: Pretend, sampler: Sampler, way: dict[str, str], nbytes: int, direction: str
) -> None:
    nbytes = max(nbytes, 256 * KIB) if way["mode"] == "kernel-loop" else nbytes
    pretend()
    line = line_of("pcie", {**COPY, "direction": direction, **way, "nbytes": nbytes}, sampler)
    assert (line.status, line.reason, line.verified) == ("ok", "", True)
    assert [note for note in line.notes if "gave up" in note] == []
    assert line.evidence["gpus"]["gpu:0"]["link_bytes_per_s"] == pytest.approx(63.015e9, rel=1e-3)
    if way["mode"] != "host-call":  # its clock is the host's
        assert below_the_limit(line)
    if way.get("traffic") == "both" and way["mode"] == "events":
        assert line.evidence["overlapped"] == 1.0


@pytest.mark.parametrize("traffic", ["one", "both"])
def test_all_gpus_at_once_are_measured_while_all_are_busy(pretend: Pretend, sampler: Sampler, traffic: str) -> None:
    pretend(count=2)
    line = line_of("pcie", {**COPY, "gpus": "all", "traffic": traffic, "mode": "events", "nbytes": MIB}, sampler)
    assert (line.status, line.reason, line.verified) == ("ok", "", True)
    assert len(line.seconds) == 2
    assert line.moved == 2 * MIB
    assert line.evidence["method"] == cuda_group.METHOD


@pytest.mark.parametrize("pattern", ["random", "stride"])
def test_chases_through_host_and_peer(pretend: Pretend, sampler: Sampler, pattern: str) -> None:
    pretend(count=2)
    for name, ends in (("pcie", {"gpus": "0"}), ("p2p", {"gpu": 0, "peer": 1})):
        line = line_of(name, {"op": "chase", **ends, "pattern": pattern, "nbytes": 64 * KIB}, sampler)
        assert (line.status, line.reason, line.verified) == ("ok", "", True)
        assert line.quantity == "latency"


@pytest.mark.parametrize(
    ("direction", "way"),
    [
        ("read", {"mode": "events"}),
        ("write", {"mode": "graph"}),
        ("write", {"mode": "events", "traffic": "both"}),
        ("read", {"mode": "kernel-loop", "engine": "sm"}),
        ("write", {"mode": "kernel-loop", "engine": "sm", "traffic": "both"}),
        ("read", {"mode": "host-call"}),
    ],
)
def test_every_way_between_gpus(pretend: Pretend, sampler: Sampler, way: dict[str, str], direction: str) -> None:
    pretend(count=2, memory=2 * GIB)
    line = line_of("p2p", {**PEER, "direction": direction, **way, "nbytes": 256 * KIB}, sampler)
    assert (line.status, line.reason, line.verified) == ("ok", "", True)
    assert line.proven, line.path
    assert "NVLink" in line.path
    if way["mode"] != "host-call":
        assert below_the_limit(line)


@pytest.mark.parametrize(("nbytes", "buffers", "mode"), [(100_001, "one", "events"), (3 * MIB, "rotating", "graph")])
@pytest.mark.parametrize("kernel", ["read", "write", "copy", "triad", "memcpy", "memset"])
def test_every_stream_over_gpu_memory(
    pretend: Pretend, small: None, sampler: Sampler, kernel: str, nbytes: int, buffers: str, mode: str
) -> None:
    pretend()
    point = {"kernel": kernel, "gpu": 0, "buffers": buffers, "mode": mode, "nbytes": nbytes, "shape": "auto"}
    line = line_of("hbm", point, sampler)
    assert (line.status, line.reason, line.verified) == ("ok", "", True)
    assert below_the_limit(line)


@pytest.mark.parametrize("load", ["ca", "cg"])
def test_the_chase_through_gpu_memory(pretend: Pretend, small: None, sampler: Sampler, load: str) -> None:
    pretend()
    line = line_of("hbm", {"kernel": "chase", "gpu": 0, "load": load, "nbytes": 64 * KIB}, sampler)
    assert (line.status, line.reason, line.verified) == ("ok", "", True)
    assert median_interval([line.seconds[0]]).median / line.ops > 300e-9


@pytest.mark.parametrize(
    ("layout", "dtype", "mode"),
    [
        ("contiguous", "fp16", "graph"),
        ("paged", "int8", "graph"),
        ("paged", "fp8", "graph"),
        ("paged", "fp16", "events"),
    ],
)
def test_kv_caches(pretend: Pretend, sampler: Sampler, layout: str, dtype: str, mode: str) -> None:
    pretend()
    sampler.max_samples = 5
    point = {
        "gpu": 0, "model": "llama-3-8b", "batch": 1, "tokens": 17, "layout": layout, "dtype": dtype, "block": 16,
        "walk": "head", "mode": mode,
    }  # fmt: skip
    line = line_of("kv", point, sampler)
    assert (line.status, line.reason, line.verified) == ("ok", "", True)
    assert line.evidence["steps_verified"] >= line.ops * len(line.seconds[0])


class Torch:
    """torch on the CPU that answers for "cuda:0"; a product that is timed runs on the pretended stream."""

    def __init__(self, machine: Any) -> None:
        self._torch, self._machine = pytest.importorskip("torch"), machine
        nothing = contextlib.nullcontext
        self.cuda = SimpleNamespace(
            ExternalStream=lambda ptr, device: ptr, stream=lambda stream: nothing(), empty_cache=lambda: None,
            synchronize=lambda device: machine.wait_all(),
        )  # fmt: skip

    def __getattr__(self, name: str) -> Any:
        true = getattr(self._torch, name)
        if name not in ("Generator", "randn", "empty", "ones"):
            return true
        return lambda *arguments, **named: true(*arguments, **{k: v for k, v in named.items() if k != "device"})

    def mm(self, left: Any, right: Any, out: Any = None) -> Any:
        from cupy.cuda import current_stream

        if out is None:
            self._machine.wait_all()
            return self._torch.mm(left, right)
        self._machine.put(current_stream().ptr, 2e-3, lambda line: self._torch.mm(left, right, out=out))
        return out


@pytest.mark.parametrize(("dtype", "mode"), [("fp16", "events"), ("bf16", "graph")])
def test_products(pretend: Pretend, sampler: Sampler, monkeypatch: pytest.MonkeyPatch, dtype: str, mode: str) -> None:
    torch = Torch(pretend())
    probes.load("gemm")
    module = sys.modules["iobench_probe_gemm"]
    point = {"gpu": 0, "model": "llama-3-8b", "product": "out", "dtype": dtype, "tokens": 2, "mode": mode}
    sampler.max_samples = 5
    with monkeypatch.context() as patch:
        patch.setattr(module, "_torch", lambda device, dtype: torch)
        samples = module.measure(point, sampler)
        assert samples.verified
        assert samples.evidence["flops"] == 2 * 2 * 4096 * 4096
        assert 0 < samples.evidence["relative_error"] < 0.02
        patch.setattr(torch, "mm", lambda left, right, out=None: Torch.mm(torch, left, right, out) * 1.5)
        with pytest.raises(WrongData):
            module.measure(point, sampler)


def test_a_stream_that_skips_is_wrong_data(
    pretend: Pretend, small: None, sampler: Sampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend()
    text = kernels.source("hbm").read_text(encoding="utf-8")
    module = gpu.require().RawModule(
        code=text.replace("if (i < n) { FETCH; USE; }", ""), options=("-std=c++17",), backend="nvrtc"
    )
    true = kernels.function
    monkeypatch.setattr(
        kernels, "function", lambda file, name: module.get_function(name) if file == "hbm" else true(file, name)
    )
    point = {"kernel": "copy", "gpu": 0, "buffers": "rotating", "mode": "events", "nbytes": 100_016, "shape": "auto"}
    with pytest.raises(WrongData):
        probes.load("hbm").measure(point, sampler)


def test_out_of_memory_fails_the_point_and_the_run_goes_on(pretend: Pretend, sampler: Sampler) -> None:
    pretend(memory=16 * MIB)
    point = {**COPY, "mode": "events", "nbytes": 32 * MIB}
    line = line_of("pcie", point, sampler)
    assert line.status == "failed"
    assert "has no room for 32 MiB" in line.reason
    assert line_of("pcie", {**point, "nbytes": 64 * KIB}, sampler).status == "ok"


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only we and a trainer run here. Who belongs to whom on a real system: test_gpu_core_watch.py."""
    monkeypatch.setattr(others, "_ours", lambda pid: pid == OURS)
    monkeypatch.setattr(others, "process_name", {OURS: "python", TRAINER: "trainer"}.get)


@pytest.mark.usefixtures("processes")
def test_another_process_on_the_gpu_is_named_and_its_points_suspect(pretend: Pretend, sampler: Sampler) -> None:
    pretend(busy=[[OURS, 70], [TRAINER, 70]])
    line = line_of("pcie", {**COPY, "mode": "events", "nbytes": 64 * KIB}, sampler)
    assert (line.status, line.verified) == ("suspect", True)
    assert line.reason == f"gpu:0 was busy with another process: {TRAINER} (trainer)"


@pytest.mark.usefixtures("processes")
def test_our_own_process_disturbs_nothing(pretend: Pretend, sampler: Sampler) -> None:
    pretend(busy=[[OURS, 70]])
    line = line_of("pcie", {**COPY, "mode": "events", "nbytes": 64 * KIB}, sampler)
    assert (line.status, line.reason, line.verified) == ("ok", "", True)


def test_a_time_above_the_peak_is_impossible(pretend: Pretend, small: None, sampler: Sampler) -> None:
    pretend()
    point = {"kernel": "read", "gpu": 0, "buffers": "rotating", "mode": "events", "nbytes": 3 * MIB, "shape": "auto"}
    line = line_of("hbm", point, sampler)
    line.seconds = [[value / 200 for value in row] for row in line.seconds]
    from iobench import check

    assert check.verdict(Record("hbm", point, [line]), topology.discover()).status == "impossible"


def test_planted_wrong_data_ends_with_exit_3_and_is_in_no_fit(
    cli: Callable[..., Any], tmp_path: Path, built: Path
) -> None:
    """The command line as a user has it, with a probe file whose copies of 64 KiB lack four bytes."""
    folder = tmp_path / "probes"
    folder.mkdir()
    source = probes.files()["pcie"].read_text(encoding="utf-8")
    (folder / "pcie.py").write_text(source + SHORT, encoding="utf-8")
    axes = ["gpus=0", "direction=h2d", "traffic=one", "engine=ce", "mode=events", "memory=pinned", "nbytes=4K:1M:4"]
    options = [word for axis in axes for word in ("-a", axis)]
    usual = cli_environment()
    path = os.pathsep.join([str(FAKES), usual["PYTHONPATH"]])
    more = {"env": {**usual, "PYTHONPATH": path, "FAKE_CUDA_CACHE": str(built)}}
    arguments = ["run", "pcie", "--probes", folder, "--quick", "--no-report", "--out", tmp_path / "run", *options]
    ended = cli(*arguments, "--deadline", 1500, timeout=1500, **more)
    assert ended.returncode == EXIT_WRONG_DATA, ended.stdout + ended.stderr
    done = read(tmp_path / "run")
    verdicts = {record.point["nbytes"]: judge(done)[record.key] for record in done}
    assert verdicts[64 * KIB].status == "wrong"
    assert not verdicts[64 * KIB].usable
    assert [nbytes for nbytes, verdict in verdicts.items() if verdict.status == "wrong"] == [64 * KIB]
    fits = fit_run(done)
    models = [fitted.model for fitted in fits if fitted.model is not None]
    assert models
    assert all(64 * KIB not in [point.nbytes for point in model.measured] for model in models)
    assert any("wrong" in note for fitted in fits for note in fitted.notes)
