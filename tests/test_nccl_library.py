"""What is asked of libnccl through ctypes: which file it is, its memory, its log begun anew."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from iobench.collectives.nccl import joined
from iobench.nccl import library


class Nccl:
    """A libnccl that has one piece of memory."""

    def __init__(self, status: int = 0) -> None:
        self.status, self.freed, self.begun = status, 0, 0
        self.ncclGetErrorString = self._words

    def ncclMemAlloc(self, at: Any, nbytes: Any) -> int:  # noqa: N802
        at._obj.value = 0x1000 if not self.status else None
        self.nbytes = nbytes.value
        return self.status

    def ncclMemFree(self, at: Any) -> int:  # noqa: N802
        self.freed += at.value == 0x1000
        return 0

    def ncclResetDebugInit(self) -> None:  # noqa: N802
        self.begun += 1

    @staticmethod
    def _words(status: int) -> bytes:
        return b"unhandled cuda error"


@pytest.mark.parametrize(
    ("maps", "file"),
    [
        ("7f00-7f01 r-xp 0 fd:00 5  /opt/my libs/lib/libnccl.so.2\n", "/opt/my libs/lib/libnccl.so.2"),
        ("7f00-7f01 r-xp 0 fd:00 5  /tmp/libnccl.so.2.28.9 (deleted)\n", "/tmp/libnccl.so.2.28.9"),
        ("7f00-7f01 r-xp 0 fd:00 5  /usr/lib/libc.so.6\n7f00-7f01 rw-p 0 00:00 0\n", ""),
    ],
)
def test_which_library_is_loaded(tmp_path: Path, maps: str, file: str) -> None:
    shown = tmp_path / "maps"
    shown.write_text(maps)
    assert library.path(shown) == file


def test_no_library_is_none() -> None:
    assert library.path(Path("/nowhere/maps")) == ""
    assert library.load("/nowhere/libnccl.so.2") is None


def test_its_memory_is_freed_and_an_error_is_in_words() -> None:
    sound = Nccl()
    with library.memory(sound, 4096) as address:
        assert (address, sound.nbytes, sound.freed) == (0x1000, 4096, 0)
    assert sound.freed == 1
    words = r"ncclMemAlloc\(4096\) failed: unhandled cuda error"
    with pytest.raises(library.NcclFailed, match=words), library.memory(Nccl(status=1), 4096):
        pass
    assert not library.allocates(object())


def test_the_log_is_read_on_and_goes_on_in_a_further_file(tmp_path: Path) -> None:
    environment = {"NCCL_DEBUG_SUBSYS": "INIT,TUNING", "NCCL_DEBUG_FILE": str(tmp_path / "log.%p")}
    log, nccl, first = library.Log(environment), Nccl(), tmp_path / f"log.{os.getpid()}"
    assert log.new(100) == ""
    first.write_text("one\ntw")
    assert log.new(100) == "one\n"
    first.write_text("one\ntwo\n")
    assert log.new(100) == "two\n"
    assert log.log_operations(True, nccl) is True
    assert nccl.begun == 0
    assert log.log_operations(False, nccl) is False
    assert environment["NCCL_DEBUG_SUBSYS"] == "INIT"
    Path(environment["NCCL_DEBUG_FILE"]).write_text("three\n")
    assert log.new(100) == "three\n"
    assert log.log_operations(True, nccl) is True
    assert environment["NCCL_DEBUG_SUBSYS"] == "INIT,TUNING"
    assert nccl.begun == 2
    log.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_library_that_cannot_begin_anew_goes_on_as_it_does() -> None:
    log = library.Log({"NCCL_DEBUG_SUBSYS": "INIT,TUNING", "NCCL_DEBUG_FILE": "/nowhere/log"})
    assert log.log_operations(False, object()) is True
    assert library.Log({}).log_operations(False, Nccl()) is False


def test_an_id_goes_to_cupy_as_its_version_takes_it() -> None:
    unique = bytes([0, 1, 127, 128, 255])

    class Old:
        @staticmethod
        def NcclCommunicator(ranks: int, unique: Any, rank: int) -> Any:  # noqa: N802
            if not isinstance(unique, tuple):
                raise TypeError("Argument 'commId' has incorrect type (expected tuple, got bytes)")
            return ranks, unique, rank

    class New:
        @staticmethod
        def NcclCommunicator(ranks: int, unique: Any, rank: int) -> Any:  # noqa: N802
            if not isinstance(unique, bytes):
                raise TypeError("Argument 'commId' has incorrect type (expected bytes, got tuple)")
            return ranks, unique, rank

    assert joined(Old, 2, unique, 1) == (2, (0, 1, 127, -128, -1), 1)
    assert joined(New, 2, unique, 1) == (2, unique, 1)
