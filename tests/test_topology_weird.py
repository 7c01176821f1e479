"""Discovery of trees in which any file, folder or link may be anything: it must not crash."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from iobench.topology import describe, discover, sysfs
from tests.machines import unpack

TEXTS = ["", "-1", "0", "255", "Unknown", "x" * 999, "9" * 20, "0-3,", "0 1 x", "\0", "٣", "1.5", "0x", "0-40", "::::"]
TEXTS += [
    "4: ACTIVE",
    "1e400 GT/s",
    "9" * 25 + " Gb/sec (4X NDR)",
    "16.0 GT/s PCIe",
    "32",
    "2",
    "3",
    "\n\n- - - -\n",
    "eth0",
]
TEXTS += ["eth0", "Node 0 MemTotal: 5 kB", "decoder2.0", "proc /proc", "0xffffffffffffffff", "../.."]
NAMES = [
    "node99",
    "node0",
    "cpu7",
    "dax9.9",
    "mem3",
    "region4",
    "nvme9n1",
    "0000:0d:00.0",
    "x\ny",
    "..",
    " ",
    "1",
    "\udcff",
]
PLACES = [None, "", "sys", "a/b/c", "sys/devices/pci0000:00/0000:00:99.9", "0000:00:01.0"]


class Weird:
    """Answers as the real functions do, but a share of the questions at random, the same question always alike."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.share = self.random.choice([0.01, 0.05, 0.2, 0.6])
        self.answers: dict[Any, Any] = {}

    def twist(self, real: Callable[..., Any], other: Callable[[Any], Any]) -> Callable[..., Any]:
        def answer(*arguments: Any) -> Any:
            key = (real, *map(str, arguments[-3:]))
            if key not in self.answers:
                truth = real(*arguments)
                self.answers[key] = other(truth) if self.random.random() < self.share else truth
            return self.answers[key]

        return answer

    def text(self, truth: bytes | None) -> bytes | None:
        return self.random.choice([None, *(text.encode() for text in TEXTS)])

    def names(self, truth: list[str]) -> list[str]:
        kept = self.random.sample(truth, len(truth) // 2)
        return sorted({*kept, self.random.choice(NAMES)}, key=sysfs.natural)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack("lab-numa-cxl-nvme-softroce", tmp_path_factory.mktemp("lab"))


@pytest.mark.parametrize("seed", range(60))
def test_weird_tree(seed: int, lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weird = Weird(seed)
    monkeypatch.setattr(sysfs, "_read", weird.twist(sysfs._read, weird.text))
    monkeypatch.setattr(sysfs.Tree, "names", weird.twist(sysfs.Tree.names, weird.names))
    monkeypatch.setattr(sysfs.Tree, "exists", weird.twist(sysfs.Tree.exists, lambda truth: not truth))
    places = weird.twist(sysfs.Tree.real, lambda truth: weird.random.choice(PLACES))
    monkeypatch.setattr(sysfs.Tree, "real", places)
    graph = discover(lab)
    assert describe(graph)
    assert json.loads(json.dumps(graph.to_dict(), allow_nan=False)) == graph.to_dict()
    assert all(link.bytes_per_s is None or 0 < link.bytes_per_s < 1e15 for link in graph.links)
    for node in list(graph.nodes)[::9]:
        graph.path(node, "mem:0")
