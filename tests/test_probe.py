"""The axes' grammar with every malformed form, and files that are no probes."""

from __future__ import annotations

import itertools
import textwrap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from iobench import probe
from iobench.errors import UserError
from iobench.probe import Axis, Probe, narrow

AXES = {
    "nbytes": Axis((8, 1024), "message size", unit="bytes", minimum=4),
    "threads": Axis((1, 2), "how many threads", minimum=1),
    "op": Axis(("read", "write"), "the operation", choices=("read", "write", "copy", "triad")),
    "depth": Axis((1, 4), "queue depth", choices=(1, 4, 16)),
    "path": Axis(("",), "the user's own file", free=True),
    "huge": Axis((True, False), "huge pages"),
    "offset": Axis((0,), "may be negative", minimum=-100),
}


def _nothing(*_: Any) -> Any:
    raise AssertionError("not called here")


PROBE = Probe("dram", Path("dram.py"), "sha256:0", "A title", AXES, 3, 0.3, (), (), _nothing, _nothing)


def values(assignment: str) -> tuple[Any, ...]:
    return narrow(PROBE, [assignment])[assignment.partition("=")[0]]


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("nbytes=8", (8,)),
        ("nbytes=8,4KiB", (8, 4096)),
        ("nbytes=8:64", (8, 16, 32, 64)),
        ("nbytes=8:100", (8, 16, 32, 64)),
        ("nbytes=8:8", (8,)),
        ("nbytes=1K:1M:32", (1024, 32768, 1048576)),
        ("nbytes=1K:1G:1024", (1024, 1048576, 1073741824)),
        ("nbytes=100:200:1.414", (100, 141, 200)),
        ("nbytes=4,4:8,8", (4, 8)),
        ("nbytes=9007199254740993:9007199254740993", (9007199254740993,)),
        ("threads=1:8", (1, 2, 4, 8)),
        ("threads=3,1", (3, 1)),
        ("op=copy", ("copy",)),
        ("op=copy,read,copy", ("copy", "read")),
        ("depth=16", (16,)),
        ("depth=1:16:4", (1, 4, 16)),
        ("path=/a b,/c=d", ("/a b", "/c=d")),
        ("huge=True", (True,)),
        ("offset=-5", (-5,)),
    ],
)
def test_what_the_grammar_takes(assignment: str, expected: tuple[Any, ...]) -> None:
    found = values(assignment)
    assert found == expected
    assert [type(value) for value in found] == [type(value) for value in expected]


@pytest.mark.parametrize(
    ("assignment", "part"),
    [
        ("", "malformed"),
        ("nbytes", "malformed"),
        ("nbytes=", "malformed"),
        ("=8", "malformed"),
        ("=", "malformed"),
        ("nbyte=8", "did you mean nbytes"),
        ("zzz=8", "it has nbytes, threads"),
        ("nbytes=,", "not a size"),
        ("nbytes=8,,16", "not a size"),
        ("nbytes=8:", "not a size"),
        ("nbytes=:8", "not a size"),
        ("nbytes=8:16:2:2", "low:high:factor"),
        ("nbytes=16:8", "positive number up to a larger"),
        ("nbytes=0:8", "positive number up to a larger"),
        ("nbytes=8:16:1", "no factor"),
        ("nbytes=8:16:0", "no factor"),
        ("nbytes=8:16:-2", "no factor"),
        ("nbytes=8:16:inf", "no factor"),
        ("nbytes=8:16:nan", "no factor"),
        ("nbytes=8:16:x", "no factor"),
        ("nbytes=8:16:", "no factor"),
        ("nbytes=1G:1T:1.00001", "larger factor"),
        ("nbytes=-8", "not a size"),
        ("nbytes=8.5", "whole number of bytes"),
        ("nbytes=four", "not a size"),
        ("nbytes=" + "9" * 400, "larger than any"),
        ("nbytes=8:" + "9" * 400, "larger than any"),
        ("nbytes=2", "below 4"),
        ("threads=0", "below 1"),
        ("threads=1.5", "no whole number"),
        ("threads=1K", "no whole number"),
        ("threads=1_0", "no whole number"),
        ("threads=٣", "no whole number"),
        ("threads=" + "9" * 5000, "no whole number"),
        ("op=reed", "did you mean read"),
        ("op=read,", "no value ''"),
        ("op=READ", "no value 'READ'"),
        ("op=read:write", "no value 'read:write'"),
        ("depth=2", "it takes 1, 4, 16"),
        ("depth=1:16", "no value '2'"),
        ("path=a,,b", "empty"),
        ("huge=yes", "it takes True, False"),
    ],
)
def test_what_the_grammar_refuses(assignment: str, part: str) -> None:
    with pytest.raises(UserError) as caught:
        narrow(PROBE, [assignment])
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.sampled_from(sorted(AXES)), st.text(st.sampled_from("0123456789:,.KMGkib-+ex_ "), max_size=16))
def test_any_text_gives_sound_values_or_a_user_error(name: str, text: str) -> None:
    try:
        found = narrow(PROBE, [f"{name}={text}"])[name]
    except UserError:
        return
    axis = AXES[name]
    assert found
    assert len(set(found)) == len(found)
    if axis.number:
        assert all(type(value) is int and axis.minimum <= value < 2**63 for value in found)
    if axis.choices:
        assert set(found) <= set(axis.choices)


@given(st.integers(4, 2**40), st.integers(0, 2**40), st.integers(2, 9))
def test_a_range_of_a_whole_factor_is_exact(low: int, more: int, factor: int) -> None:
    found = values(f"nbytes={low}:{low + more}:{factor}")
    assert found[0] == low
    assert all(b == a * factor for a, b in itertools.pairwise(found))
    assert found[-1] <= low + more < found[-1] * factor


def test_axes_not_named_keep_their_values() -> None:
    axes = narrow(PROBE, ["op=copy", "threads=4"])
    assert axes == {**{name: axis.values for name, axis in AXES.items()}, "op": ("copy",), "threads": (4,)}


# --- files -------------------------------------------------------------------------------------------

SOURCE = '''\
"""What iobench list shows.

More.
"""
from iobench.probe import Axis
AXES = {"n": Axis((1,), "a number")}
def points(topology, axes):
    yield from ({"n": n} for n in axes["n"])
def measure(point, sampler):
    raise NotImplementedError
'''


def put(folder: Path, name: str, source: str | bytes) -> Path:
    file = folder / name
    file.write_bytes(source if isinstance(source, bytes) else textwrap.dedent(source).encode())
    return file


def test_a_users_own_probe_is_found_and_loaded(tmp_path: Path) -> None:
    file = put(tmp_path, "mine.py", SOURCE)
    put(tmp_path, "_helper.py", "x = 1")
    loaded = probe.load("mine", [tmp_path])
    assert (loaded.name, loaded.title, loaded.file) == ("mine", "What iobench list shows.", file)
    assert (loaded.launches, loaded.point_seconds) == (probe.LAUNCHES, probe.POINT_SECONDS)
    assert list(loaded.points(None, {"n": (1, 2)})) == [{"n": 1}, {"n": 2}]
    assert probe.title(file) == "What iobench list shows."
    assert "_helper" not in probe.files([tmp_path])


def test_a_users_probe_replaces_the_one_that_ships(tmp_path: Path) -> None:
    file = put(tmp_path, "null.py", SOURCE)
    assert probe.find("null", [tmp_path]) == file
    assert probe.find("null") != file


def test_the_source_hash_follows_the_source(tmp_path: Path) -> None:
    file = put(tmp_path, "mine.py", SOURCE)
    before = probe.source_hash(file)
    assert before == probe.source_hash(put(tmp_path, "other.py", SOURCE))
    assert before != probe.source_hash(put(tmp_path, "mine.py", SOURCE + "\n"))


def test_an_unknown_probe_names_the_nearest(tmp_path: Path) -> None:
    put(tmp_path, "bandwidth.py", SOURCE)
    with pytest.raises(UserError, match="did you mean bandwidth"):
        probe.find("bandwith", [tmp_path])
    with pytest.raises(UserError, match="iobench list"):
        probe.find("zzzzzzz", [tmp_path])


@pytest.mark.parametrize("name", ["", "..", "../null", "null.py", "/etc/passwd", "null\n"])
def test_names_that_are_paths_are_no_probes(name: str) -> None:
    with pytest.raises(UserError):
        probe.find(name)


def test_a_folder_that_is_not_there() -> None:
    with pytest.raises(UserError, match="--probes"):
        probe.files(["/nonexistent/probes"])


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ("", "lacks AXES, points, measure"),
        (SOURCE.replace("def measure", "def other"), "lacks measure"),
        (SOURCE.replace("AXES", "axes_"), "lacks AXES"),
        (SOURCE[SOURCE.index("from") :], "a docstring"),
        ('"""   """\n' + SOURCE[SOURCE.index("from") :], "a docstring"),
        (SOURCE.replace('Axis((1,), "a number")', "(1, 2)"), "AXES"),
        (SOURCE.replace("AXES =", "AXES = 3 #"), "AXES"),
        ('"""x"""\ndef (', ":2:"),
        (b'"""x"""\n\xff\xfe\n', "broken.py"),
        (b"\x00\x01", "broken.py"),
    ],
)
def test_files_that_are_no_probes(tmp_path: Path, source: str | bytes, part: str) -> None:
    put(tmp_path, "broken.py", source)
    with pytest.raises(UserError) as caught:
        probe.load("broken", [tmp_path])
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("source", [b"def (", b"\x00", b"\xff\xfe", b'"""\xff"""'])
def test_the_title_of_a_broken_file_is_a_user_error(tmp_path: Path, source: bytes) -> None:
    with pytest.raises(UserError, match=r"broken\.py"):
        probe.title(put(tmp_path, "broken.py", source))


def test_the_title_of_a_file_without_docstring_is_empty(tmp_path: Path) -> None:
    assert probe.title(put(tmp_path, "mine.py", "x = 1")) == ""
