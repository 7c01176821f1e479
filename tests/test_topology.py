"""The package's face: cheap to import, quick, leaks nothing, and files that are no topology end in one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from iobench import topology
from iobench.errors import UserError
from iobench.topology import Topology, describe, discover, load, save
from iobench.topology.describe import ranges
from tests.conftest import cli_environment
from tests.machines import SHIPPED


def test_import_is_cheap() -> None:
    code = (
        "import sys; before = set(sys.modules); import iobench.topology as t; "  # a start-up file may have its own
        "early = 'iobench.topology.discover' in sys.modules; t.discover; t.load; t.describe; "
        "print(early, sorted({'numpy', 'torch', 'numba', 'scipy', 'matplotlib'} & (set(sys.modules) - before)))"
    )
    assert said(code) == "False []\n"


def said(code: str) -> str:
    """Return what a Python process of its own prints."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=cli_environment()).stdout


def test_names_of_the_package() -> None:
    assert all(getattr(topology, name) is not None for name in topology.__all__)
    with pytest.raises(AttributeError, match="no attribute 'discovery'"):
        topology.discovery  # noqa: B018


def test_discovery_of_this_machine_leaks_no_descriptor() -> None:
    """In a process of its own: in the tests' one, others open and close files, the garbage collector among them."""
    code = (
        "import os; from iobench.topology import discover; discover(); before = os.listdir('/proc/self/fd'); "
        "discover(); print(os.listdir('/proc/self/fd') == before)"
    )
    assert said(code) == "True\n"


def test_this_machine_is_found() -> None:
    graph = discover()
    allowed = {int(cpu.id[4:]) for cpu in graph.of("cpu") if cpu.get("allowed")}
    assert allowed == os.sched_getaffinity(0)
    memory = next(node for node in graph.of("mem"))
    for cpu in allowed:
        assert graph.path(memory.id, f"cpu:{cpu}") is not None
    assert graph.facts["nvml"]


def test_name_does_not_depend_on_the_memory(tmp_path: Path) -> None:
    names = set()
    for kb in (8_000_000, 16_000_000):
        node = tmp_path / "sys/devices/system/node/node0"
        node.mkdir(parents=True, exist_ok=True)
        (node / "meminfo").write_text(f"Node 0 MemTotal: {kb} kB")
        names.add(discover(tmp_path).name)
    assert len(names) == 1


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("cloud-vm", "amd-epyc-fam25-2cpu"),
        ("2x-h200", "2x-nvidia-h200-32cpu"),
        ("1x-h200", "1x-nvidia-h200-16cpu"),
        ("laptop", "amd-ryzen-7-pro-5850u-fam25-16cpu"),
        ("hgx-8x-h100", "8x-nvidia-h100-80gb-hbm3-64cpu-2s"),
        ("cxl-host", "amd-epyc-9354-fam25-64cpu-2s"),
    ],
)
def test_name(file: str, name: str) -> None:
    assert load(SHIPPED / f"{file}.json").name == name


def test_save_and_load(tmp_path: Path) -> None:
    graph = load(SHIPPED / "hgx-8x-h100.json")
    save(graph, tmp_path / "a.json")
    save(load(tmp_path / "a.json"), tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert load(tmp_path / "b.json").to_dict() == graph.to_dict()
    assert json.loads((tmp_path / "a.json").read_text()) == graph.to_dict()


def test_save_of_an_empty_graph(tmp_path: Path) -> None:
    save(Topology("empty"), tmp_path / "a.json")
    assert load(tmp_path / "a.json").to_dict() == Topology("empty").to_dict()


BAD = [
    "",
    "{",
    "[]",
    "1",
    "null",
    "<html>",
    "[" * 100_000,
    '{"schema": 1}',
    '{"schema": 99, "nodes": [], "links": []}',
    '{"schema": 1, "nodes": [1], "links": []}',
    '{"schema": 1, "nodes": [], "links": [{"a": 1}]}',
    '{"schema": 1, "nodes": {"id": 1}, "links": []}',
]


@pytest.mark.parametrize("text", BAD, ids=range(len(BAD)))
def test_bad_file(text: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.json"
    file.write_text(text)
    with pytest.raises(UserError, match="iobench topology --save") as caught:
        load(file)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_file_that_is_not_text_or_not_there(tmp_path: Path) -> None:
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00\x80")
    for file in (tmp_path / "binary.json", tmp_path / "absent.json", tmp_path):
        with pytest.raises(UserError, match="iobench topology --save"):
            load(file)


def test_place_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="choose another place"):
        save(Topology("x"), tmp_path / "absent" / "a.json")


def test_describe_shows_each_hop_with_now_maximum_and_limit() -> None:
    text = describe(load(SHIPPED / "laptop.json"))
    assert "pci:0000:02:00.0 [block:nvme0n1]  now gen 1 x4, maximum gen 3 x4, limit 3.94 GB/s" in text
    assert "dram limit unknown" in text
    assert "nic:enp1s0  down, limit unknown" in text
    assert "block:dm-0  device mapper, 475 GiB, mounted on /, on block:nvme0n1p2" in text


def test_describe_shows_nvlinks_ports_and_cxl() -> None:
    text = describe(load(SHIPPED / "hgx-8x-h100.json"))
    assert text.count("18 NVLinks to nvswitch:0, limit 450 GB/s per direction") == 8
    assert text.count("active, limit 50.0 GB/s") == 8
    text = describe(load(SHIPPED / "cxl-host.json"))
    assert "mem:2  256 GiB, cxl limit 63.0 GB/s" in text
    assert "dax:dax0.0  system-ram, partly online, memory of NUMA node 2" in text
    assert "cxl:mem2  memory device, present, not mapped" in text


def test_describe_of_an_empty_graph() -> None:
    assert describe(Topology()) == "machine, virtual or not: unknown\n"


@pytest.mark.parametrize(("numbers", "text"), [([], "none"), ([3], "3"), ([0, 1, 2, 8], "0-2,8"), ([5, 4, 1], "1,4-5")])
def test_ranges(numbers: list[int], text: str) -> None:
    assert ranges(numbers) == text
