"""The crosscheck of memory: a small checkpoint in a process of its own, and what it judges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from iobench import crosscheck
from iobench.crosscheck import memory
from iobench.errors import IobenchError, UserError, WrongData
from iobench.storage import files
from iobench.storage.filesystem import filesystem_of
from iobench.storage.load import Stage
from iobench.storage.plan import files as whole
from iobench.storage.target import Nowhere
from iobench.units import GIB, MIB


@pytest.mark.parametrize(("growth", "met", "words"), [(511 * MIB, True, "PASS"), (512 * MIB, False, "FAIL")])
def test_the_bar_is_half_a_gibibyte(growth: int, met: bool, words: str) -> None:
    said: list[str] = []
    found = {"growth": growth, "peak": GIB, "ring": 128 * MIB, "seconds": 4.0, "target": "nowhere"}
    assert memory.judge(found, 8 * GIB, said.append) is met
    assert said[1].startswith(words)
    assert "verified" in said[0]
    assert not memory.judge({**found, "growth": None}, 8 * GIB, said.append)


def test_a_small_checkpoint_takes_the_ring_and_a_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not filesystem_of(tmp_path).is_storage:
        pytest.skip("the temporary folder is no storage")
    monkeypatch.setattr(memory, "NBYTES", 8 * MIB)
    said: list[str] = []
    try:
        met = memory.run(said.append, scratch=tmp_path)
    except IobenchError as reason:
        if "O_DIRECT" in str(reason):
            pytest.skip(str(reason))
        raise
    assert met or "does not tell" in said[0]
    assert list(tmp_path.iterdir()) == []


def test_a_child_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(IobenchError, match=r"no such file|cannot read"):
        memory.elsewhere([tmp_path / "missing.safetensors"])
    with pytest.raises(UserError, match="not a storage measurement"):
        memory.run(print, scratch=Path("/proc"))
    assert crosscheck.find("memory") is memory.run


def test_bytes_that_did_not_arrive_are_found(tmp_path: Path) -> None:
    with files.own(tmp_path, 2 * MIB + 5, 2) as found:
        wanted: Any = whole(found.checkpoint)
        with pytest.raises(WrongData, match="model-00001-of-00002"):
            memory._check(Stage(found, wanted, Nowhere(wanted.room, summing=True), ()))
