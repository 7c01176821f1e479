"""Whole machines against the graphs that are committed: captured trees, and machines written in code.

Where a change is meant, run ``python tests/machines.py`` and read the difference.
"""

from __future__ import annotations

import gzip
import json
import re
import tarfile
from pathlib import Path

import pytest
from iobench.topology import Topology, describe, load
from iobench.topology.file import dumps
from iobench.units import GB
from tests.machines import BUILT, CAPTURED, CAPTURES, SHIPPED, SHIPPED_CAPTURES, built, captured

# addresses that are nobody's: zeros, RFC 4291's prefixes, RFC 5737's documentation networks
_NOBODYS = "(?:0000|ffff|fe80|00ff|fe00|0001|c000|020[0-9a-f]|c633|640[0-9a-f])"
# what tells one machine from its twin: none of it belongs into a fixture or a graph
IDENTIFYING = {
    "UUID": re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE),
    "hardware address": re.compile(r"\b(?:[0-9a-f]{2}[:-]){5}[0-9a-f]{2}\b", re.IGNORECASE),
    "GUID": re.compile(rf"\b(?!{_NOBODYS}(?::{_NOBODYS}){{3}}\b)[0-9a-f]{{4}}(?::[0-9a-f]{{4}}){{3}}\b", re.IGNORECASE),
    "IPv4 address": re.compile(r"\b(?:[0-9]{1,3}\.){3}[0-9]{1,3}\b"),
    "word": re.compile(r"serial|hostname|machine-id|sandbox", re.IGNORECASE),
}


def committed(name: str) -> dict[str, object]:
    place = CAPTURED if (CAPTURED / f"{name}.json").is_file() else SHIPPED
    data: dict[str, object] = json.loads((place / f"{name}.json").read_text(encoding="utf-8"))
    return data


@pytest.mark.parametrize("name", CAPTURES)
def test_captured_machine(name: str, tmp_path: Path) -> None:
    assert captured(name, tmp_path).to_dict() == committed(name)


@pytest.mark.parametrize("name", BUILT)
def test_machine_written_in_code(name: str, tmp_path: Path) -> None:
    assert built(name, tmp_path).to_dict() == committed(name)


def test_lab_machine(tmp_path: Path) -> None:
    """What the emulated lab was told to be is what is found."""
    graph = captured("lab-numa-cxl-nvme-softroce", tmp_path)
    nodes = {node.id: (node.get("cpus"), node.get("distance")) for node in graph.of("numa")}
    assert nodes == {
        "numa:0": ([0, 1], [10, 21, 17, 20]),
        "numa:1": ([2, 3], [21, 10, 28, 20]),
        "numa:2": ([], [17, 28, 10, 20]),
        "numa:3": ([], [20, 20, 20, 10]),
    }
    assert graph.nodes["numa:2"].get("initiators") == [0]
    assert graph.nodes["numa:2"].get("firmware_read_seconds") == 250e-9
    assert graph.nodes["dax:dax0.0"].get("mode") == "system-ram"
    assert graph.nodes["dax:dax0.0"].get("target_numa") == 3
    assert graph.nodes["dax:dax0.0"].get("region") == "cxl:region0"
    assert graph.nodes["cxl:mem0"].get("state") == "mapped"
    assert graph.nodes["block:nvme0n1"].get("numa") == 1
    assert graph.nodes["mount:/mnt/data"].get("block") == "block:nvme0n1"
    assert graph.nodes["port:rxe0/1"].get("software") is True
    path = graph.path("port:rxe0/1", "mem:0")
    assert path is not None, "soft-RoCE reaches memory over the interface below it"
    unknown = [link for link in graph.links if link.kind in {"pcie", "line", "cxl", "dram"} and link.bytes_per_s]
    assert unknown == [], "an emulator's rates are not physical"


def shipped(name: str) -> Topology:
    return load(SHIPPED / f"{name}.json")


@pytest.mark.parametrize(
    ("name", "src", "dst", "gigabytes", "kind"),
    [
        ("cloud-vm", "mem:0", "cpu:1", 204.8, "dram"),
        ("cloud-vm", "cache:L3:0", "cpu:1", 432.0, "core"),
        ("cloud-vm", "net:lo", "mem:0", 204.8, "dram"),
        ("cloud-vm", "mount:/", "mem:0", 204.8, "dram"),
        ("laptop", "mount:/", "mem:0", 3.938, "pcie"),
        ("laptop", "mem:0", "cpu:3", None, None),
        ("2x-h200", "gpu:0", "mem:0", 63.015, "pcie"),
        ("2x-h200", "mem:0", "gpu:1", 63.015, "pcie"),
        ("2x-h200", "gpu:0", "gpu:1", 450.0, "nvlink"),
        ("2x-h200", "vram:0", "gpu:0", 4814.3, "hbm"),
        ("1x-h200", "gpu:0", "mem:0", 63.015, "pcie"),
        ("hgx-8x-h100", "gpu:0", "gpu:7", 450.0, "nvlink"),
        ("hgx-8x-h100", "gpu:0", "port:mlx5_0/1", 50.0, "line"),
        ("hgx-8x-h100", "port:mlx5_7/1", "mem:0", 50.0, "line"),
        ("hgx-8x-h100", "block:nvme5n1", "mem:0", 7.877, "pcie"),
        ("hgx-8x-h100", "mem:0", "cpu:0", 307.2, "dram"),
        ("hgx-8x-h100", "mem:1", "cpu:0", 192.0, "interconnect"),
        ("cxl-host", "mem:2", "cpu:0", 63.015, "cxl"),
        ("cxl-host", "mem:1", "cpu:0", 256.0, "interconnect"),
        ("cxl-host", "cxl:mem2", "mem:0", 31.508, "pcie"),
    ],
)
def test_bottleneck(name: str, src: str, dst: str, gigabytes: float | None, kind: str | None) -> None:
    path = shipped(name).path(src, dst)
    assert path is not None
    if gigabytes is None:
        assert path.bottleneck is None
        return
    assert path.bottleneck is not None
    assert path.bottleneck.kind == kind
    assert path.bytes_per_s == pytest.approx(gigabytes * GB, rel=1e-3)


def test_a_switch_is_crossed_without_the_way_up(tmp_path: Path) -> None:
    """A GPU reaches the port beside it through the switch, not through the root complex."""
    path = shipped("hgx-8x-h100").path("gpu:0", "port:mlx5_0/1")
    assert path is not None
    assert [link.kind for link in path.links] == ["function", "pcie", "internal", "internal", "pcie", "line"]


NAMES = [*BUILT, *SHIPPED_CAPTURES]


def test_every_topology_file_is_made_here() -> None:
    assert {file.stem for file in SHIPPED.glob("*.json")} >= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_shipped_file_is_whole(name: str) -> None:
    graph = shipped(name)
    assert (SHIPPED / f"{name}.json").read_text(encoding="utf-8") == dumps(graph)
    assert graph.facts["source"]
    assert graph.facts.get("constructed", False) is (name in BUILT)
    assert all(cpu.get("allowed") is True for cpu in graph.of("cpu"))
    assert all(link.source for link in graph.links if link.bytes_per_s is not None)
    assert {link.a for link in graph.links} | {link.b for link in graph.links} <= set(graph.nodes)
    for cpu in graph.of("cpu"):
        assert graph.path("mem:0", cpu.id) is not None
        assert graph.path("cache:L3:0", cpu.id) is not None
    for device in [*graph.of("gpu"), *graph.of("nic"), *graph.of("port"), *graph.of("block"), *graph.of("net")]:
        assert graph.path(device.id, "mem:0") is not None, device.id
    assert describe(graph).count("\n") >= 10


def fixture_texts() -> dict[str, str]:
    """Every committed text: each file in each captured tree, the odd trees, the graphs."""
    texts = {}
    for pack in CAPTURED.glob("*.tar.gz"):
        with tarfile.open(pack) as tar:
            for member in tar.getmembers():
                file = tar.extractfile(member) if member.isfile() else None
                text = file.read().decode("utf-8", "replace") if file else member.linkname
                texts[f"{pack.name}:{member.name}"] = f"{member.name} {text}"
    for file in [*CAPTURED.rglob("*.json"), *SHIPPED.glob("*.json")]:
        texts[str(file)] = file.read_text(encoding="utf-8")
    return texts


def test_fixtures_hold_nothing_that_identifies_a_machine() -> None:
    texts = fixture_texts()
    assert len(texts) > 500
    found = [
        f"{name}: {what}" for name, text in texts.items() for what, kind in IDENTIFYING.items() if kind.search(text)
    ]
    assert found == []


def test_the_search_finds_what_it_should() -> None:
    samples = [
        "GPU-1b4e28ba-2fa1-11d2-883f-0016d3cca427",
        "52:54:00:12:34:56",
        "5054:00ff:fe12:3456",
        "10.0.2.15",
        "Serial",
    ]
    assert all(any(kind.search(sample) for kind in IDENTIFYING.values()) for sample in samples)


def test_fixtures_are_small() -> None:
    assert sum(file.stat().st_size for file in CAPTURED.rglob("*") if file.is_file()) < 1 << 20


def test_packs_hold_no_device_and_no_absolute_link() -> None:
    for pack in CAPTURED.glob("*.tar.gz"):
        with gzip.open(pack) as stream, tarfile.open(fileobj=stream) as tar:
            for member in tar.getmembers():
                assert member.isfile() or member.isdir() or member.issym(), member.name
                assert not member.linkname.startswith("/"), member.name
