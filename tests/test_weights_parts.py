"""The weights probe by parts, states, engines and models, and files that are valid but odd."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from iobench.errors import IobenchError, Unavailable, UserError
from iobench.storage import cache, workspace
from iobench.storage.filesystem import filesystem_of
from iobench.timing.sampler import Sampler
from iobench.units import MIB

from weighing import WEIGHTS, measured, point, points, sampling

pytestmark = pytest.mark.usefixtures("roomy")


@pytest.fixture
def sampler(tmp_path: Path) -> Iterator[Sampler]:
    with sampling(tmp_path) as found:
        yield found


@pytest.mark.parametrize("method", ["direct", "buffered-warm", "mmap-warm"])
@pytest.mark.parametrize("part", [{"part": "tensors"}, {"part": "slices", "tp": 2, "rank": 1}])
def test_parts_are_loaded_and_verified(method: str, part: dict[str, Any], sampler: Sampler) -> None:
    found = measured(point(method, **part), sampler)
    assert found.verified
    assert found.mode == part["part"]
    assert found.nbytes < (2 * MIB if part["part"] == "tensors" else 1.5 * MIB)
    if method != "mmap-warm":
        assert {"open", "register", "read", "copy", "verify", "cpu"} <= set(found.evidence["stages"])
        assert found.evidence["ring_nbytes"] == 2 * 2 * (256 << 10)
        assert any("it takes" in note for note in found.notes)


def test_alignment_costs_bytes_and_not_truth(sampler: Sampler) -> None:
    """Tensors that begin anywhere: aligned further, their reads ask for more, and still bring what was wanted."""
    asked = []
    for align in (0, 65536):
        found = measured(point("direct", part="tensors", align=align), sampler)
        assert found.evidence["alignment"] == align or align == 0
        asked.append(found.evidence["bytes_requested"])
    assert asked[1] > asked[0] >= 0.9 * 2 * MIB
    with pytest.raises(Unavailable, match="needs an alignment of"):
        WEIGHTS.measure(point("direct", align=100), sampler)


def test_a_ring_registered_in_each_load_and_deep_ones(sampler: Sampler) -> None:
    found = measured(point("buffered-warm", part="tensors", register="each", depth=3), sampler)
    assert found.evidence["ring_nbytes"] == 2 * 3 * (256 << 10)
    assert found.evidence["stages"]["register"] > 0
    assert "read" not in found.evidence["stages"]


def test_the_second_load_comes_from_the_page_cache_and_direct_does_not(sampler: Sampler) -> None:
    if not filesystem_of(sampler.scratch).is_storage:
        pytest.skip("nothing is cold in the temporary folder")
    found = measured(point("buffered-cold", load=2), sampler)
    if found.evidence["resident_before"][0] < cache.WARM_FRACTION:
        assert found.path != "page cache"
        pytest.skip("this filesystem drops a file's pages when it is opened (FUSE), or memory is short")
    assert found.path == "page cache"
    assert found.legs == []
    direct = measured(point("direct", load=2), sampler)
    assert direct.path.startswith(("o_direct", "O_DIRECT"))


def test_metadata_cold_needs_the_right_to_it(sampler: Sampler, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls = []
    monkeypatch.setattr(cache, "forget_metadata", lambda: calls.append(1) or (5000, 10))
    found = measured(point("buffered-cold", cold="metadata"), sampler)
    assert len(calls) == found.evidence["loads"]
    assert found.evidence["dentries"] == [10, 10]


def test_dropping_metadata_is_verified(tmp_path: Path) -> None:
    (tmp_path / "proc/sys/fs").mkdir(parents=True)
    state = tmp_path / "proc/sys/fs/dentry-state"
    state.write_text("90000\t80000\t45\t0\t100\t0\n")
    with pytest.raises(Unavailable, match=r"run it as root, or leave -a cold=metadata out"):
        cache.forget_metadata(tmp_path)
    (tmp_path / "proc/sys/vm").mkdir()
    with pytest.raises(IobenchError, match="not metadata-cold: 80000"):
        cache.forget_metadata(tmp_path)
    assert (tmp_path / "proc/sys/vm/drop_caches").read_text() == "2\n"


@pytest.mark.parametrize("engine", ["io_uring", "aio"])
@pytest.mark.parametrize("part", [{}, {"part": "slices", "tp": 2, "rank": 1}])
def test_reads_in_flight_are_verified_and_labelled_as_others(
    engine: str, part: dict[str, Any], sampler: Sampler
) -> None:
    found = measured(point("direct", engine=engine, depth=4, **part), sampler)
    assert found.verified
    assert found.path.startswith(("o_direct", "O_DIRECT"))
    if part:
        assert {"read", "copy"} <= set(found.evidence["stages"])


def test_shapes_of_another_model(sampler: Sampler) -> None:
    found = measured(point("buffered-warm", model="llama-3-70b"), sampler)
    assert found.verified
    stage = sampler.shared("weights", workspace.workspace)._target._value
    shapes = {span.name.rsplit(".", 2)[-2]: span.shape for span in stage.files.checkpoint.shards[0].spans}
    hidden = shapes["q_proj"][1]
    assert shapes["k_proj"] == (hidden // 8, hidden)
    assert shapes["up_proj"][1] == hidden


def test_holes_are_no_reads_of_a_device(tmp_path: Path, sampler: Sampler) -> None:
    """A file whose blocks were never written is read from nowhere: it is never labelled as read from the device."""
    header = json.dumps({"a": {"dtype": "U8", "shape": [4 * MIB], "data_offsets": [0, 4 * MIB]}}).encode()
    file = tmp_path / "sparse.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header)
    os.truncate(file, 8 + len(header) + 4 * MIB)
    if file.stat().st_blocks * 512 > MIB:
        pytest.skip("this filesystem keeps no holes")
    for method in ("direct", "buffered-cold"):
        found = measured(point(method, path=str(file)), sampler)
        assert not found.proven
        assert found.path != "o_direct"
        assert any("holes" in note for note in found.notes), found.notes


ODD = {
    "scalar": ('{"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}', 4),
    "empty tensor": (
        '{"z":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', 4
    ),
    "sub-byte type": ('{"a":{"dtype":"F4","shape":[8],"data_offsets":[0,4]}}   ', 4),
    "leading space": (' {"a":{"dtype":"U8","shape":[7],"data_offsets":[0,7]}}', 7),
    "unknown type": ('{"q_proj.weight":{"dtype":"NEW","shape":[8],"data_offsets":[0,5]}}', 5),
    "no tensors": ("{}", 0),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(ODD))
def test_valid_but_odd_files_load(name: str, tmp_path: Path, sampler: Sampler) -> None:
    header, nbytes = ODD[name]
    file = tmp_path / "odd.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header.encode() + os.urandom(nbytes))
    parts: list[dict[str, Any]] = [{}, {"part": "tensors"}, {"part": "slices", "tp": 2, "rank": 1}]
    for part in parts if nbytes else parts[:1]:
        for method in ("buffered-warm", "mmap-warm", "direct"):
            assert measured(point(method, path=str(file), **part), sampler).verified
    if not nbytes:
        with pytest.raises(UserError, match="holds no tensor"):
            points(f"path={file}", "part=tensors")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 7\n", "git lfs pull"),
        (b"<!DOCTYPE html><html></html>", "HTML"),
        (b"\x39" + bytes(7) + b'{"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}}' + bytes(15), "truncated"),
    ],
)
def test_a_bad_file_is_one_line_and_exit_2(tmp_path: Path, cli: Any, content: bytes, words: str) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    ended = cli("run", "weights", "--path", tmp_path / "model.safetensors")
    assert ended.returncode == 2
    assert words in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1
