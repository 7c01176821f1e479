"""The watch over a GPU without a GPU: hops in captured trees, an NVML that says little or nothing, other processes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from iobench import gpu
from iobench.gpu import links, nvml
from iobench.gpu.nvml import Process, Reading
from iobench.gpu.others import others
from iobench.gpu.watch import Seen, Watch
from iobench.topology.pci import End
from iobench.topology.sysfs import Tree
from tests.machines import BRIDGE, GEN4, GEN5, GPU, Machine, hgx, unpack

GIGA = 1e9
ENDS_ONLY = 1e-4  # Hz: between a watch's begin and its end no sample comes in, however late the end is
ROOT_PORT = "pci0000:00/0000:00:01.0"
SWITCHED = f"{ROOT_PORT}/0000:01:00.0/0000:02:00.0"  # root port, upstream port, downstream port
IDLE = "2.5 GT/s PCIe"


def card(root: Path, link: str, upstream: str = f"{GEN5},16", chain: str = SWITCHED) -> str:
    """Write a GPU below a switch; returns its address."""
    box = Machine(root)
    parts = chain.split("/")
    for depth in range(1, len(parts)):
        box.pci("/".join(parts[: depth + 1]), BRIDGE, "1000:c030", upstream if depth == 2 else f"{GEN5},16")
    box.pci(f"{chain}/0000:03:00.0", GPU, "10de:2335", link)
    return "0000:03:00.0"


def device(pci: str, node: str | None = "gpu:0", index: int = 0) -> gpu.Device:
    return gpu.Device(index, "NVIDIA H200", pci, 132, 60 << 20, 140 << 30, (9, 0), node=node)


def reading(reasons: int | None) -> Reading:
    return Reading(End(5, 16), 1980, 3201, 300.0, 40, reasons)


def test_hops_are_the_links_below_the_root_port(tmp_path: Path) -> None:
    address = card(tmp_path, f"{GEN5},16")
    found = links.hops(Tree(tmp_path), address)
    assert [(hop.name, hop.most) for hop in found] == [("0000:01:00.0", End(5, 16)), (address, End(5, 16))]


def test_a_gpu_at_the_root_port_has_one_hop(tmp_path: Path) -> None:
    address = card(tmp_path, f"{GEN5},16", chain=ROOT_PORT)
    assert [hop.name for hop in links.hops(Tree(tmp_path), address)] == [address]


def test_hops_of_every_gpu_of_a_large_machine(tmp_path: Path) -> None:
    for told in hgx(tmp_path):
        found = links.hops(Tree(tmp_path), told.pci)
        assert len(found) == 2
        assert {hop.most for hop in found} == {End(5, 16)}


def test_the_captured_machines_show_the_gpus_own_link(tmp_path: Path) -> None:
    root = unpack("1x-h200", tmp_path)
    (hop,) = links.hops(Tree(root), "0000:00:06.0")
    assert links.words(hop.most) == "gen 5 x16"
    assert links.words(links.now(Tree(root), hop)) == "gen 5 x16"


def test_a_gpu_that_sysfs_lacks_has_no_hops(tmp_path: Path) -> None:
    assert links.hops(Tree(tmp_path), "0000:99:00.0") == []


def test_the_upstream_port_is_the_narrowest(tmp_path: Path) -> None:
    """A GPU that says 32 GT/s x16 behind a port that runs at 16 GT/s x8."""
    address = card(tmp_path, f"{GEN5},16", upstream=f"{GEN4},8,{GEN5},16")
    with gpu.watch([device(address)], root=str(tmp_path), hertz=ENDS_ONLY) as seen:
        pass
    assert seen.link_bytes_per_s(device(address)) == pytest.approx(16 * GIGA * 8 * 128 / 130 / 8)
    assert seen.limit_notes == ["link of 0000:01:00.0 (to gpu:0) ran at gen 4 x8 under load, its maximum is gen 5 x16"]
    evidence = seen.evidence()["gpu:0"]
    assert evidence["links"][0] == {"hop": "0000:01:00.0", "most": "gen 5 x16", "seen": {"gen 4 x8": 2}}
    assert evidence["samples"] == 2


def test_the_best_state_counts_not_the_idle_one(tmp_path: Path) -> None:
    """Idle links fall back to generation 1: what they wake up to is the limit."""
    address = card(tmp_path, f"{IDLE},16,{GEN5},16")
    watch = Watch([device(address)], Tree(tmp_path), 20)
    seen = watch.seen[0]
    seen.take(Tree(tmp_path), None)
    assert watch.link_bytes_per_s(device(address)) == pytest.approx(4 * GIGA)
    place = tmp_path / "sys/devices" / SWITCHED / address
    (place / "current_link_speed").write_text(f"{GEN5}\n")
    seen.take(Tree(tmp_path), None)
    assert watch.link_bytes_per_s(device(address)) == pytest.approx(32 * GIGA * 16 * 128 / 130 / 8)
    assert watch.limit_notes == []
    assert watch.evidence()["gpu:0"]["links"][1]["seen"] == {"gen 1 x16": 1, "gen 5 x16": 1}


def test_unknown_states_limit_nothing(tmp_path: Path) -> None:
    address = card(tmp_path, "Unknown,255")
    with gpu.watch([device(address)], root=str(tmp_path)) as seen:
        pass
    rate = seen.link_bytes_per_s(device(address))
    assert rate == pytest.approx(32 * GIGA * 16 * 128 / 130 / 8)  # of the upstream port, which is known


def test_nothing_known_is_no_limit_and_no_crash(tmp_path: Path) -> None:
    one = device("0000:99:00.0", node=None, index=3)
    with gpu.watch([one], root=str(tmp_path)) as seen:
        pass
    assert seen.link_bytes_per_s(one) is None
    assert seen.limit_notes == []
    assert seen.suspect == ""
    assert seen.evidence()["cuda:3"]["links"] == []


def test_it_samples_again_and_again(tmp_path: Path) -> None:
    address = card(tmp_path, f"{GEN5},16")
    with gpu.watch([device(address)], root=str(tmp_path), hertz=1000) as seen:
        end = time.monotonic() + 600
        while seen.evidence()["gpu:0"]["samples"] < 6 and time.monotonic() < end:
            time.sleep(0.001)
    assert seen.evidence()["gpu:0"]["samples"] >= 6


def test_an_error_inside_ends_the_watch(tmp_path: Path) -> None:
    address = card(tmp_path, f"{GEN5},16")
    with pytest.raises(RuntimeError), gpu.watch([device(address)], root=str(tmp_path)) as seen:
        raise RuntimeError
    assert not seen._thread.is_alive()


class NVMLError(Exception):
    """Stands for pynvml's."""


class Library:
    """Stands for pynvml: says only what it was made with."""

    NVMLError = NVMLError

    def __init__(self, **answers: Any) -> None:
        self._answers = {f"nvmlDeviceGet{name}": answer for name, answer in answers.items()}

    def __getattr__(self, name: str) -> Any:
        if name not in self._answers:
            raise AttributeError(name)

        def call(handle: Any, *arguments: Any) -> Any:
            answer = self._answers[name]
            if isinstance(answer, Exception):
                raise answer
            return answer[arguments[0]] if isinstance(answer, dict) else answer

        return call


def test_readings() -> None:
    library = Library(
        ClockInfo={1: 1980, 2: 3201}, PowerUsage=312_500, Temperature=44, CurrentClocksEventReasons=4,
        CurrPcieLinkGeneration=5, CurrPcieLinkWidth=16, PcieReplayCounter=7,
    )  # fmt: skip
    card = nvml.Gpu(library, None)
    assert card.read() == Reading(End(5, 16), 1_980_000_000, 3_201_000_000, 312.5, 44, 4)
    assert card.replays() == 7


def test_old_library_has_the_old_name_of_the_reasons() -> None:
    assert nvml.Gpu(Library(CurrentClocksThrottleReasons=1), None).read().reasons == 1


@pytest.mark.parametrize("library", [Library(), Library(ClockInfo=NVMLError("Not Supported"), PowerUsage=OSError())])
def test_a_silent_nvml_is_unknown(library: Library) -> None:
    card = nvml.Gpu(library, None)
    assert card.read() == Reading(End(None, None), None, None, None, None, None)
    assert card.replays() is None
    assert card.processes(0) == []


def test_without_nvml_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "_library", lambda: None)
    assert nvml.at("0000:00:06.0") is None
    assert nvml.memory_nbytes("0000:00:06.0") is None


def test_nvml_speaks_for_the_link_where_sysfs_does_not(tmp_path: Path) -> None:
    card = nvml.Gpu(Library(CurrPcieLinkGeneration=3, CurrPcieLinkWidth=8), None)
    seen = Seen("gpu:0", [links.Hop("0000:00:06.0", End(5, 16))])
    seen.take(Tree(tmp_path), card)
    assert seen.narrowest() == pytest.approx(8 * GIGA * 8 * 128 / 130 / 8)


@pytest.mark.parametrize(
    ("masks", "words"),
    [
        ([0, 1], ""),  # idle is no fault
        ([4], ""),  # the power cap of a busy GPU is its normal limit
        ([0, 0x40, 0x80 | 1], "gpu:0 was slowed: hardware thermal slowdown, hardware power brake"),
    ],
)
def test_only_heat_and_power_brake_are_suspect(masks: list[int], words: str, tmp_path: Path) -> None:
    watch = Watch([device("0000:99:00.0")], Tree(tmp_path), 20)
    watch.seen[0].readings = [reading(reasons=mask) for mask in masks]
    assert watch.suspect == words


def test_throttling_is_a_histogram(tmp_path: Path) -> None:
    watch = Watch([device("0000:99:00.0")], Tree(tmp_path), 20)
    watch.seen[0].readings = [reading(reasons=4), reading(reasons=4 | 8), reading(reasons=1), reading(reasons=None)]
    evidence = watch.evidence()["gpu:0"]
    assert evidence["throttle"] == {"software power cap": 2, "hardware slowdown": 1}
    assert evidence["sm_hz"] == [1980, 1980, 1980]
    assert evidence["celsius"] == [40, 40, 40]


def named(pids: dict[int, str]) -> Any:
    return lambda pid: pids.get(pid)


def ours(*pids: int) -> Any:
    return lambda pid: pid in pids


def test_another_busy_process_is_named() -> None:
    listed = [Process(10, 90), Process(20, 35)]
    (other,) = others(listed, ours(10), named({10: "python", 20: "trainer"}))
    assert (str(other), other.busy) == ("20 (trainer)", True)


def test_an_idle_process_is_no_disturbance_and_an_unknown_one_is() -> None:
    listed = [Process(10, 90), Process(20, 0), Process(21, None), Process(22, None, graphics=True)]
    found = others(listed, ours(10), named({20: "notebook", 21: "server", 22: "Xorg"}))
    assert [(other.name, other.busy) for other in found] == [("notebook", False), ("server", True), ("Xorg", False)]


def test_a_number_of_another_namespace_is_taken_for_us() -> None:
    assert others([Process(4711, 90)], ours(10), named({})) == []
    found = others([Process(4711, 90), Process(4712, 90)], ours(10), named({}))
    assert [other.busy for other in found] == [True]
    assert str(others([Process(10, 1), Process(4711, 9)], ours(10), named({10: "us"}))[0]) == "4711 (unknown)"


@contextlib.contextmanager
def running(**options: Any) -> Iterator[int]:
    """Yield the number of a process that does nothing for as long as it is needed."""
    with subprocess.Popen(["sleep", "3600"], **options) as process:
        try:
            yield process.pid
        finally:
            process.kill()


def test_this_session_is_ours() -> None:
    with running(start_new_session=True) as foreign:
        found = others([Process(os.getpid(), 50), Process(os.getppid(), 50), Process(foreign, 50)])
    alike = os.getsid(os.getppid()) == os.getsid(0) and (os.getsid(0) != 0 or os.getppid() > 1)
    ours = {os.getpid(), *([os.getppid()] if alike else [])}
    assert foreign in [other.pid for other in found]
    assert not ours & {other.pid for other in found}


def test_session_0_makes_nobody_ours_but_kin(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container whose session is led from outside, process 1 and all that it started are in our session."""
    monkeypatch.setattr(os, "getsid", lambda _: 0)
    with running() as child:
        found = others([Process(pid, 50) for pid in (1, os.getpid(), child)])
    assert [other.pid for other in found] == [pid for pid in (1,) if pid != os.getpid()]


def test_a_busy_process_makes_the_samples_suspect(tmp_path: Path) -> None:
    watch = Watch([device("0000:99:00.0")], Tree(tmp_path), 20)
    watch.seen[0].processes = others([Process(10, 90), Process(20, 35)], ours(10), named({20: "trainer"}))
    assert watch.suspect == "gpu:0 was busy with another process: 20 (trainer)"
    assert watch.evidence()["gpu:0"]["processes"] == ["20 (trainer), busy"]


def test_use_by_process_comes_from_nvml() -> None:
    sample = SimpleNamespace(pid=20, smUtil=30, memUtil=55, timeStamp=1000)
    old = SimpleNamespace(pid=30, smUtil=99, memUtil=0, timeStamp=10)
    running = [SimpleNamespace(pid=pid) for pid in (20, 30, 40)]
    library = Library(ProcessUtilization={500: [sample, old]}, ComputeRunningProcesses=running)
    assert nvml.Gpu(library, None).processes(500) == [Process(20, 55), Process(30, 0), Process(40, 0)]
    silent = Library(ProcessUtilization=NVMLError("Not Found"), GraphicsRunningProcesses=running[:1])
    assert nvml.Gpu(silent, None).processes(500) == [Process(20, None, graphics=True)]
