"""The safetensors layout: what is damage, what is a note, and what people pass by mistake."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from iobench.errors import UserError
from iobench.storage import layout
from iobench.storage.checkpoint import open_checkpoint
from iobench.storage.layout import read_layout

TWO_BY_TWO = '{"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}}'


def written(folder: Path, header: str | bytes, data: int = 0, length: int | None = None) -> Path:
    """Write a file with this header, ``data`` bytes behind it, and N as it is or ``length``."""
    raw = header.encode() if isinstance(header, str) else header
    file = folder / "model.safetensors"
    file.write_bytes((len(raw) if length is None else length).to_bytes(8, "little") + raw + bytes(data))
    return file


def entry(dtype: str, shape: Any, begin: Any, end: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def refusal(file: Path) -> str:
    with pytest.raises(UserError) as caught:
        read_layout(file)
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith(str(file)) or str(file) in text
    return text


def test_a_whole_file_is_taken(tmp_path: Path) -> None:
    found = read_layout(written(tmp_path, TWO_BY_TWO, 16))
    assert (found.nbytes, found.data_start, found.tensors, found.notes) == (8 + 57 + 16, 65, 1, ())


@pytest.mark.parametrize(
    ("missing", "words"), [(1, "truncated: 1 of 16 B"), (16, "truncated: 16 of 16 B"), (-17 + 16, "1 bytes after")]
)
def test_truncated_and_trailing_bytes_are_named(tmp_path: Path, missing: int, words: str) -> None:
    assert words in refusal(written(tmp_path, TWO_BY_TWO, 16 - missing))


def test_a_file_cut_inside_its_header_is_truncated(tmp_path: Path) -> None:
    file = written(tmp_path, TWO_BY_TWO, 16)
    os.truncate(file, 30)
    assert "truncated inside its header" in refusal(file)


@pytest.mark.parametrize("content", [b"", b"1234567"])
def test_too_short_for_a_header(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "short.safetensors"
    file.write_bytes(content)
    assert "too short for a header" in refusal(file)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 7000000000\n", "git lfs pull"),
        (b"<!DOCTYPE html><html><head><title>Sign in</title></head></html>", "HTML"),
        (b"\n\n  <html lang=en>404</html>", "HTML"),
        (b"PK\x03\x04" + bytes(60), "convert it to safetensors"),
        (b"\x80\x02}q\x00" + bytes(60), "convert it to safetensors"),
        (b"GGUF\x03\x00\x00\x00" + bytes(60), "GGUF"),
        (b"\x1f\x8b\x08" + bytes(60), "unpack"),
        (b"0123456789 this is some text, no safetensors at all", "not safetensors"),
        (bytes(64), "not safetensors"),
        (b"\xff" * 64, "not safetensors"),
    ],
)
def test_strangers_are_called_by_their_name(tmp_path: Path, content: bytes, words: str) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(content)
    assert words in refusal(file)


@pytest.mark.parametrize("length", [60, 640, 0x8B1F, 0x3C20, 0x0A3C])
def test_a_length_that_looks_like_a_stranger_is_none(tmp_path: Path, length: int) -> None:
    header = TWO_BY_TWO.ljust(length)
    assert read_layout(written(tmp_path, header, 16)).data_start == 8 + length


@pytest.mark.parametrize(
    ("tensors", "data", "words"),
    [
        ({"a": entry("F32", [2], 0, 8), "b": entry("F32", [1], 12, 16)}, 16, "hole of 4 bytes"),
        ({"a": entry("F32", [2], 0, 8), "b": entry("F32", [2], 4, 12)}, 12, "overlaps"),
        ({"a": entry("F32", [2], 8, 16)}, 16, "hole of 8 bytes"),
        ({"a": entry("F32", [3], 0, 8)}, 8, "takes 12 bytes, its offsets say 8"),
        ({"a": entry("F4", [3], 0, 2)}, 2, "takes 1.5 bytes"),
        ({"a": entry("U8", [1 << 32, 1 << 32], 0, 8)}, 8, "its offsets say 8"),
        ({"a": entry("U8", [1 << 32, 1 << 32, 0], 0, 8)}, 8, "takes 0 bytes, its offsets say 8"),
        ({"a": entry("U8", [-1], 0, 8)}, 8, "no sizes"),
        ({"a": entry("U8", [2.0], 0, 2)}, 2, "no sizes"),
        ({"a": entry("U8", [True], 0, 1)}, 1, "no sizes"),
        ({"a": entry("U8", 2, 0, 2)}, 2, "no sizes"),
        ({"a": entry("U8", [2], 2, 0)}, 2, "no sizes"),
        ({"a": entry("U8", [2], 0, 1 << 64)}, 2, "no sizes"),
        ({"a": {"dtype": "U8", "shape": [2]}}, 2, "lacks dtype"),
        ({"a": 5}, 2, "lacks dtype"),
        ({"a": {"dtype": "U8", "shape": [2], "data_offsets": [0]}}, 2, "lacks dtype"),
        ({"__metadata__": {"epoch": 3}, "a": entry("U8", [2], 0, 2)}, 2, "__metadata__"),
    ],
)
def test_damage_is_named(tmp_path: Path, tensors: dict[str, Any], data: int, words: str) -> None:
    assert words in refusal(written(tmp_path, json.dumps(tensors), data))


def test_a_shape_of_many_extents_is_refused_at_once(tmp_path: Path) -> None:
    text = refusal(written(tmp_path, json.dumps({"a": entry("U8", [2**63] * 200_000, 0, 8)}), 8))
    assert "takes more than 2^64 bytes" in text
    assert len(text) < 400


@pytest.mark.parametrize("header", ["{]", "[1, 2]", '"text"', "{" + '"a":{' * 100_000, b'{"a\xff":1}'])
def test_a_header_that_is_no_object_is_refused(tmp_path: Path, header: str | bytes) -> None:
    text = refusal(written(tmp_path, header))
    assert "JSON" in text


@pytest.mark.parametrize(
    ("header", "data", "note"),
    [
        ("{}", 0, "no tensors"),
        (" " + TWO_BY_TWO, 16, "white space"),
        ('{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', 1,
         "a name twice"),
        ('{"a":{"dtype":"F2_NEW","shape":[4],"data_offsets":[0,1]}}', 1, "unknown type 'F2_NEW'"),
    ],
)  # fmt: skip
def test_what_loaders_take_is_a_note(tmp_path: Path, header: str, data: int, note: str) -> None:
    found = read_layout(written(tmp_path, header, data))
    assert any(note in text for text in found.notes)


@pytest.mark.parametrize(
    "header",
    [
        '{"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}',
        '{"z":{"dtype":"F32","shape":[0,5],"data_offsets":[0,0]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
        '{"a":{"dtype":"F4","shape":[8],"data_offsets":[0,4]}}    ',
        '{"__metadata__":{"format":"pt"},"a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}}',
    ],
)
def test_scalars_empty_tensors_and_padding_are_ordinary(tmp_path: Path, header: str) -> None:
    assert read_layout(written(tmp_path, header, 4)).notes == ()


def test_a_header_over_the_loaders_cap_is_valid_but_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # the real one: N = 40 9D DF 07 00 00 00 00, 132,095,296 bytes of header
    assert int.from_bytes(bytes.fromhex("409DDF0700000000"), "little") == 132_095_296 > layout.LOADER_HEADER_CAP
    monkeypatch.setattr(layout, "LOADER_HEADER_CAP", 50)
    found = read_layout(written(tmp_path, TWO_BY_TWO, 16))
    assert found.notes == ("valid but over loader cap: header of 57 bytes, safetensors takes 50",)


@settings(max_examples=150, deadline=None)
@given(content=st.binary(max_size=200), length=st.integers(0, 300) | st.integers(0, 2**64 - 1))
def test_no_bytes_break_the_reader(tmp_path_factory: pytest.TempPathFactory, content: bytes, length: int) -> None:
    file = tmp_path_factory.getbasetemp() / "fuzz.safetensors"
    file.write_bytes(length.to_bytes(8, "little") + content)
    try:
        found = read_layout(file)
    except UserError:
        return  # anything but this error fails the test
    assert found.nbytes == 8 + len(content)
    assert found.data_start <= found.nbytes


@settings(max_examples=100, deadline=None)
@given(cut=st.integers(0, 80))
def test_every_cut_of_a_whole_file_is_refused(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    file = written(tmp_path_factory.getbasetemp(), TWO_BY_TWO, 16)
    os.truncate(file, cut)
    assert refusal(file)


def test_a_missing_path_a_folder_without_weights_and_a_device_are_refused(tmp_path: Path) -> None:
    for path, words in ((tmp_path / "no", "no such file"), (tmp_path, "no .safetensors"), ("/dev/null", "no regular")):
        with pytest.raises(UserError, match=words):
            open_checkpoint(path)


def test_a_folder_of_shards_is_read_in_order(tmp_path: Path) -> None:
    for name in ("model-00002-of-00002", "model-00001-of-00002"):
        written(tmp_path, TWO_BY_TWO, 16).rename(tmp_path / f"{name}.safetensors")
    found = open_checkpoint(tmp_path)
    assert [shard.path.name for shard in found.shards] == [
        "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
    ]  # fmt: skip
    assert found.nbytes == 2 * 81


def test_missing_shards_are_counted(tmp_path: Path) -> None:
    written(tmp_path, TWO_BY_TWO, 16).rename(tmp_path / "model-00001-of-00003.safetensors")
    with pytest.raises(UserError, match="1 of 3 shards of model"):
        open_checkpoint(tmp_path)


def test_the_index_decides_and_names_what_is_missing(tmp_path: Path) -> None:
    written(tmp_path, TWO_BY_TWO, 16).rename(tmp_path / "one.safetensors")
    written(tmp_path, TWO_BY_TWO, 16).rename(tmp_path / "consolidated.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "one.safetensors"}}))
    for path in (tmp_path, index):
        assert [shard.path.name for shard in open_checkpoint(path).shards] == ["one.safetensors"]
    index.write_text(json.dumps({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}))
    with pytest.raises(UserError, match=r"lists 2 files, 1 missing \(two"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("text", ["", "{}", '{"weight_map": 5}', '{"weight_map": {"a": 5}}', '{"weight_map": {}}', "["])
def test_a_damaged_index_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(UserError, match="download it again"):
        open_checkpoint(tmp_path)


def test_a_dangling_link_is_a_missing_file(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "blobs" / "gone")
    with pytest.raises(UserError, match="cannot read"):
        open_checkpoint(tmp_path)


def test_no_right_to_read_is_said(tmp_path: Path) -> None:
    file = written(tmp_path, TWO_BY_TWO, 16)
    file.chmod(0)
    if os.access(file, os.R_OK):
        pytest.skip("root reads everything")
    assert "Permission denied" in refusal(file)


@pytest.mark.parametrize(("number", "words"), [(errno.EACCES, "Permission denied"), (errno.EIO, "Input/output error")])
def test_what_the_system_refuses_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    file = written(tmp_path, TWO_BY_TWO, 16)

    def refused(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "open", refused)
    assert words in refusal(file)
