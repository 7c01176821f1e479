"""What RUN may be on the command line."""

from __future__ import annotations

import gzip
import importlib.util

import pytest
from iobench import record, sources
from iobench.errors import UserError
from tests.make_run import demo_run, save


def test_a_folder_and_its_file_are_the_same_run(tmp_path):
    folder = save(demo_run(), tmp_path / "run").parent
    by_folder, by_file = sources.open(folder), sources.open(str(folder / record.FILE_NAME))
    assert len(by_folder) == len(by_file) > 0
    assert sources.home(by_folder) == sources.home(by_file) == folder


def test_a_copied_records_file_keeps_its_sense_under_another_name(tmp_path):
    folder = save(demo_run(), tmp_path / "run").parent
    other = tmp_path / "mine.jsonl"
    other.write_bytes((folder / record.FILE_NAME).read_bytes())
    run = sources.open(other)
    assert len(run) == len(sources.open(folder))
    assert sources.home(run) is None


def test_a_packed_run_says_how_to_unpack_it(tmp_path):
    packed = tmp_path / "records.jsonl.gz"
    packed.write_bytes(gzip.compress((save(demo_run(), tmp_path / "run")).read_bytes()))
    with pytest.raises(UserError, match=r"gunzip it, then name .*/records\.jsonl$"):
        sources.open(packed)
    packed.write_bytes(b"\x1f\x8b torn")
    with pytest.raises(UserError) as error:
        sources.open(packed)
    assert "gunzip" not in str(error.value)


def test_a_published_curve_has_no_folder():
    run = sources.open("published:h100-nvlink")
    assert {record.point["ranks"] for record in run} == {2, 4, 8}
    assert sources.home(run) is None
    assert sources.label("published:h100-nvlink", run) == "h100-nvlink"


def test_what_is_not_there_says_what_to_give(tmp_path):
    with pytest.raises(UserError, match="give a run's folder"):
        sources.open(tmp_path / "nothing")
    with pytest.raises(UserError, match="give a run's folder"):
        sources.open(tmp_path)


def test_a_foreign_file_without_importers_says_so(tmp_path, monkeypatch):
    file = tmp_path / "odd.log"
    file.write_text("hello\n")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError):
        sources.open(file)
