"""GPUs with a stand-in for NVML: NVLink counts, remote ends, peers, and every way in which it can fail."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from iobench.topology import Topology, describe, discover, nvml
from iobench.topology.nvml import Gpu, NvLink
from tests.machines import GEN4, GPU, Machine

A, B, C = "0000:00:06.0", "0000:00:07.0", "0000:00:08.0"


class NVMLError(Exception):
    pass


class Library:
    """Works like pynvml for two GPUs with 12 links each: 4 to the other GPU, 8 to switches, link 11 inactive."""

    NVMLError = NVMLError
    NVML_CLOCK_MEM = 2
    NVML_AFFINITY_SCOPE_NODE = 0

    def __init__(self) -> None:
        self.open = 0

    def nvmlInit(self) -> None:  # noqa: N802
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, place: int) -> int:  # noqa: N802
        return place

    def nvmlDeviceGetPciInfo(self, handle: int) -> Any:  # noqa: N802
        return SimpleNamespace(busId=(b"00000000:00:06.0", "00000000:00:07.0")[handle])

    def nvmlDeviceGetName(self, handle: int) -> bytes | str:  # noqa: N802
        return (b"NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB")[handle]

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:  # noqa: N802
        raise NVMLError("Not Supported")

    def nvmlDeviceGetMaxClockInfo(self, handle: int, kind: int) -> int:  # noqa: N802
        return 1215

    def nvmlDeviceGetMemoryBusWidth(self, handle: int) -> int:  # noqa: N802
        return 5120

    def nvmlDeviceGetMemoryAffinity(self, handle: int, words: int, scope: int) -> list[int]:  # noqa: N802
        return [0b10 if handle else 0b11, 0]

    def nvmlDeviceGetNvLinkState(self, handle: int, number: int) -> int:  # noqa: N802
        if number >= 12:
            raise NVMLError("Invalid Argument")
        return 0 if number == 11 else 1

    def nvmlDeviceGetNvLinkVersion(self, handle: int, number: int) -> int:  # noqa: N802
        return 5

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: int, number: int) -> int:  # noqa: N802
        return 0 if number < 4 else 2

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: int, number: int) -> Any:  # noqa: N802
        return SimpleNamespace(busId=(b"00000000:00:07.0", b"00000000:00:06.0")[handle])

    def nvmlDeviceGetP2PStatus(self, a: int, b: int, index: int) -> int:  # noqa: N802
        return 0 if a < b else 5


def machine(root: Path, *addresses: str, nodes: int = 1) -> Path:
    box = Machine(root)
    for number in range(nodes):
        box.node(number, str(number), 8, "10 20")
    for address in addresses:
        box.pci(f"pci0000:00/{address}", GPU, "10de:20b0", f"{GEN4},16")
    return root


def test_read_tells_what_the_library_knows() -> None:
    library = Library()
    gpus, phrase = nvml.read_with(library)
    assert phrase == "used"
    assert library.open == 0
    assert [gpu.pci for gpu in gpus] == [A, B]
    first = gpus[0]
    assert (first.name, first.memory_bytes, first.memory_hz, first.bus_bits) == (
        "NVIDIA A100-SXM4-40GB",
        None,
        1_215_000_000,
        5120,
    )
    assert [gpu.numa for gpu in gpus] == [None, 1], "near two nodes: unknown, not the first of them"
    assert [link.remote for link in first.links] == [B] * 4 + ["switch"] * 7
    assert {link.version for link in first.links} == {3}
    assert first.links_inactive == 1
    assert (gpus[0].peers, gpus[1].peers) == ({B: True}, {A: False})


@pytest.mark.parametrize(
    "error", [NVMLError("Driver Not Loaded"), OSError("libnvidia-ml.so.1"), AttributeError("nvmlInit")]
)
def test_a_library_that_does_not_start(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Library) -> None:
        raise error

    monkeypatch.setattr(Library, "nvmlInit", fail)
    assert nvml.read_with(Library()) == ([], f"not used: {error}")


@pytest.mark.parametrize(
    "error", [NVMLError("Not Found"), TypeError("no"), ctypes.ArgumentError("argument 3"), ValueError("")]
)
@pytest.mark.parametrize("name", [name for name in vars(Library) if name.startswith("nvmlDevice")])
def test_any_call_may_fail(name: str, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> None:
        raise error

    library = Library()
    monkeypatch.setattr(Library, name, fail)
    gpus, phrase = nvml.read_with(library)
    assert library.open == 0
    lost_all = name in {"nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetPciInfo"}
    assert bool(gpus) is not lost_all
    assert phrase == "used" or name == "nvmlDeviceGetCount"


def test_another_module_of_that_name() -> None:
    gpus, phrase = nvml.read_with(SimpleNamespace())
    assert gpus == []
    assert phrase.startswith("not used: ")


def test_missing_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert nvml.read() == ([], "not used: this Python has no nvidia-ml-py")


def test_a_captured_tree_does_not_ask_nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "read", lambda: pytest.fail("asked"))
    graph = discover(machine(tmp_path, A))
    assert graph.facts["nvml"] == "not used: a captured tree"
    assert graph.nodes["gpu:0"].get("model_name") == "NVIDIA A100-SXM4-40GB", "by its PCI id"


def graph_of(root: Path, *gpus: Gpu) -> Topology:
    return discover(machine(root, *(gpu.pci for gpu in gpus)), told=gpus)


def links(count: int, remote: str | None, version: int | None = 3, first: int = 0) -> list[NvLink]:
    return [NvLink(first + number, version, remote) for number in range(count)]


def test_direct_links_count_once(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, Gpu(A, links=links(4, B)), Gpu(B, links=links(4, A)))
    found = [link for link in graph.links if link.kind == "nvlink"]
    assert [(link.a, link.b, link.bytes_per_s) for link in found] == [("gpu:0", "gpu:1", 100e9)]
    assert "findings" not in graph.facts
    assert "4 NVLinks to gpu:1, limit 100 GB/s per direction" in describe(graph)


def test_path_through_switches_is_the_lower_of_both(tmp_path: Path) -> None:
    graph = graph_of(
        tmp_path,
        Gpu(A, links=links(12, "switch")),
        Gpu(B, links=links(10, "switch")),
        Gpu(C, links=links(12, "switch")),
    )
    path = graph.path("gpu:0", "gpu:1")
    assert path is not None
    assert path.bytes_per_s == 250e9
    assert graph.nodes["nvswitch:0"].attrs == {}
    assert graph.facts["findings"] == ["gpu:1 has 10 active NVLinks, others have 12"]


def test_unequal_counts_are_a_finding(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, Gpu(A, links=links(2, B)), Gpu(B, links=links(1, A)))
    assert graph.facts["findings"] == ["gpu:0 shows 2 NVLinks to gpu:1, which shows 1 back"]
    assert "note: gpu:0 shows 2" in describe(graph)


def test_remote_end_unknown_is_an_assumed_switch(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, Gpu(A, links=links(18, None, 4)), Gpu(B, links=links(18, None, 4)))
    assert graph.nodes["nvswitch:0"].get("assumed") is True


def test_unknown_version_is_an_unknown_limit(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, Gpu(A, links=links(4, B, None)), Gpu(B, links=links(4, A, None)))
    link = next(link for link in graph.links if link.kind == "nvlink")
    assert link.bytes_per_s is None
    assert link.source.startswith("unknown")


def test_without_nvlink_the_way_goes_over_pci(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, Gpu(A), Gpu(B))
    path = graph.path("gpu:0", "gpu:1")
    assert path is not None
    assert [link.kind for link in path.links] == ["function", "pcie", "pcie", "function"]
    assert path.bytes_per_s == pytest.approx(31.508e9, rel=1e-4)


def test_numa_node_from_nvml_where_sysfs_says_minus_one(tmp_path: Path) -> None:
    gpus = [Gpu(A, numa=1), Gpu(B, numa=7), Gpu(C)]
    graph = discover(machine(tmp_path, A, B, C, nodes=2), told=gpus)
    assert [gpu.get("numa") for gpu in graph.of("gpu")] == [1, None, None]


def test_gpu_that_only_nvml_knows(tmp_path: Path) -> None:
    graph = discover(machine(tmp_path, A), told=[Gpu(A, "NVIDIA H200"), Gpu("0009:01:00.0", "NVIDIA H200")])
    assert [gpu.get("address") for gpu in graph.of("gpu")] == [A, "0009:01:00.0"]
    assert graph.path("gpu:1", "mem:0") is None
    assert graph.name == "2x-nvidia-h200-0cpu"


def test_peers(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, Gpu(A, peers={B: True}), Gpu(B, peers={A: False, "0009:01:00.0": True}))
    assert [gpu.get("peers") for gpu in graph.of("gpu")] == [{f"pci:{B}": True}, {f"pci:{A}": False}]


def test_memory_limit_from_clock_and_width_or_from_the_table(tmp_path: Path) -> None:
    told = [Gpu(A, "NVIDIA H200", None, 3_201_000_000, 6016), Gpu(B, "NVIDIA H200"), Gpu(C, "Unheard-of")]
    graph = graph_of(tmp_path, *told)
    rates = [link.bytes_per_s for link in graph.links if link.kind == "hbm"]
    assert rates == [pytest.approx(4814.3e9, rel=1e-5), 4917e9, None]


@pytest.mark.parametrize(
    ("kind", "ids"),
    [("0x030000", "1234:1111"), ("0x030000", "1a03:2000"), ("0x030000", "1002:1638"), ("0x068000", "10de:22a3")],
)
def test_what_is_no_gpu(tmp_path: Path, kind: str, ids: str) -> None:
    box = Machine(tmp_path)
    box.pci("pci0000:00/0000:00:02.0", kind, ids)
    assert discover(tmp_path).of("gpu") == []
