"""Files are written whole or not at all, and what is no plain file stays what it is."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from iobench import files


def broken() -> Iterator[str]:
    yield "half"
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("content", ["one\ntwo\n", b"one\ntwo\n", iter(["one\n", "two\n"])])
def test_text_bytes_and_pieces(tmp_path: Path, content: str | bytes | Iterator[str]) -> None:
    files.replace(tmp_path / "file", content)
    assert (tmp_path / "file").read_bytes() == b"one\ntwo\n"
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_a_failed_write_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    for name in ("file", "new"):
        with pytest.raises(OSError, match="No space left"):
            files.replace(tmp_path / name, broken())
    assert [file.name for file in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "old"


def test_links_and_devices_are_written_through(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    files.replace(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "text"
    files.replace(Path(os.devnull), "text")
    assert Path(os.devnull).is_char_device()


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        files.replace(tmp_path / "no" / "file", "text")
