"""Where the pages of this process lie: move_pages, numa_maps, and what is said where neither tells."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from iobench import pageplaces
from iobench.units import MIB

NUMA_MAPS = """\
7f0000000000 default anon=1024 dirty=1024 active=0 N0=1000 N1=24 kernelpagesize_kB=4
7f0000400000 default file=/usr/lib/libN7=x.so mapped=2 N1=2 kernelpagesize_kB=4
7f0000600000 default
"""


def test_numa_maps() -> None:
    assert pageplaces.mapping(NUMA_MAPS, 0x7F0000001000) == Counter({0: 1000, 1: 24})
    assert pageplaces.mapping(NUMA_MAPS, 0x7F0000400000) == Counter({1: 2})
    assert pageplaces.mapping(NUMA_MAPS, 0x7F0000700000) is None
    assert pageplaces.mapping("", 1) is None


def test_nodes_of_touched_memory() -> None:
    data = np.ones(MIB, np.uint8)
    found = pageplaces.nodes(data)
    if found is None:
        pytest.skip("neither move_pages nor numa_maps tells where pages lie here")
    assert sum(found.values()) >= MIB // 65536
    assert all(node >= 0 for node in found)


def test_nodes_fall_back_to_numa_maps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = np.ones(4096, np.uint8)
    monkeypatch.setattr(pageplaces.platform, "machine", lambda: "unheard-of")
    assert pageplaces.nodes(data, tmp_path) is None
    text = tmp_path / "proc/self/numa_maps"
    text.parent.mkdir(parents=True)
    text.write_text(f"{data.ctypes.data // 4096 * 4096:x} default anon=2 N3=2\n")
    assert pageplaces.nodes(data, tmp_path) == Counter({3: 2})


def test_a_sample_of_the_pages_or_all_of_them() -> None:
    data = np.ones(MIB, np.uint8)
    pages = len(pageplaces.addresses(data))
    asked = [pageplaces.states(data, most) for most in (0, 5, 1 << 20)]
    if any(states is None for states in asked):
        pytest.skip("move_pages is not allowed here")
    every, few, again = (len(states) for states in asked if states is not None)
    assert every == again == pages
    assert 2 < few <= 5


def test_the_pages_of_an_array_that_starts_within_one() -> None:
    data = np.ones(8 * MIB, np.uint8)
    page = pageplaces.addresses(data).step
    skip = -data.ctypes.data % page + page // 2
    assert len(pageplaces.addresses(data[skip : skip + page])) == 2
    assert len(pageplaces.addresses(data[:0])) <= 1
