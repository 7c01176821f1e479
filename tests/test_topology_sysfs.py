"""The reader: odd files are unknown, and none of them can block, crash or leak a descriptor."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from iobench.topology.sysfs import Tree, cpu_list, integer, natural, size


@pytest.mark.parametrize(("text", "value"), [("0", 0), ("17", 17), ("0x1f", 31), ("4294967295", 4294967295)])
def test_integer(text: str, value: int) -> None:
    assert integer(text) == value


@pytest.mark.parametrize(
    "text", [None, "", "-1", "-139586437121", "1.5", "Unknown", "0x", "1_0", "٣", "9" * 50, " 1", "1e3"]
)
def test_integer_unknown(text: str | None) -> None:
    assert integer(text) is None


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("0-3,8", (0, 1, 2, 3, 8)),
        ("0", (0,)),
        ("", ()),
        ("\n", ()),
        ("5,1-2\n", (1, 2, 5)),
        ("3-1", ()),
        ("0-x", None),
        ("-1", None),
        ("0-999999999", None),
        ("0-99999999999999999999", None),
        ("1,,2", None),
    ],
)
def test_cpu_list(text: str, ids: tuple[int, ...] | None) -> None:
    assert cpu_list(text) == ids


@given(st.sets(st.integers(0, 2000)))
def test_cpu_list_takes_what_the_kernel_writes(ids: set[int]) -> None:
    assert cpu_list(",".join(map(str, sorted(ids)))) == tuple(sorted(ids))


@given(st.text())
def test_readers_take_any_text(text: str) -> None:
    cpu_list(text)
    size(text)
    assert (integer(text) or 0) >= 0
    natural(text)


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("32K", 32768),
        ("32768K", 32 << 20),
        ("1M", 1 << 20),
        ("48", 48),
        ("0K", None),
        ("", None),
        (None, None),
        ("-1", None),
        ("32k", None),
    ],
)
def test_size(text: str | None, nbytes: int | None) -> None:
    assert size(text) == nbytes


def test_odd_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "out").symlink_to("/etc")
    (tmp_path / "device").symlink_to("/dev/zero")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "minus").write_text("-1\n")
    tree = Tree(tmp_path)
    assert [tree.text(name) for name in ("pipe", "folder", "loop", "absent", "empty", "device", "a\0b")] == [None] * 7
    assert tree.text("binary")
    assert tree.number("minus") is None
    assert tree.real("out") is None
    assert tree.real("loop") is None
    assert tree.real("folder") == "folder"
    assert tree.target("out") == "etc"
    assert tree.names("absent") == tree.names("empty") == tree.names("a\0b") == []
    assert not tree.exists("a\0b")


def test_natural_order(tmp_path: Path) -> None:
    for name in ("cpu10", "cpu2", "cpufreq", "cpu1"):
        (tmp_path / name).write_text("")
    assert Tree(tmp_path).names("") == ["cpu1", "cpu2", "cpu10", "cpufreq"]


def test_a_tree_does_not_reach_the_live_machine(tmp_path: Path) -> None:
    (tmp_path / "sys").symlink_to("/sys")
    assert Tree(tmp_path).real("sys") is None
    assert not Tree(tmp_path).live
    assert Tree("/").live
