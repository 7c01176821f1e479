"""Records: launches merged, a full disk while writing, aggregates, many lines at once."""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from iobench import batch
from iobench.errors import UserError
from iobench.record import FILE_NAME, Line, Record, merge, read
from iobench.writer import Writer

from records import HEADER, changed, line, refused, write

SECONDS = st.floats(1e-9, 1e3)


# --- merging -----------------------------------------------------------------------------------------


def merged(*items: Line) -> Record:
    records = merge(items)
    assert len(records) == 1
    return records[0]


def test_launches_merge_in_order_and_a_repeated_one_replaces() -> None:
    found = merged(line(launch=1, seconds=[[2.0]]), line(launch=0, seconds=[[1.0]]), line(launch=1, seconds=[[3.0]]))
    assert [one.seconds for one in found.lines] == [[[1.0]], [[3.0]]]


def test_points_keep_the_order_in_which_they_came() -> None:
    points = [{"n": n} for n in (3, 1, 2)]
    assert [item.point for item in merge([line(point=point) for point in points])] == points


def test_another_source_replaces_what_the_old_one_measured() -> None:
    found = merged(line(launch=0), line(launch=1), line(launch=1, source="sha256:2"))
    assert [(one.launch, one.source) for one in found.lines] == [(1, "sha256:2")]


def test_the_sample_is_the_maximum_over_ranks_per_operation() -> None:
    found = merged(line(seconds=[[1.0, 4.0], [2.0, 3.0]], ops=2, moved=100))
    assert found.groups[0].tolist() == [1.0, 2.0]
    assert found.time.median == 1.5
    assert found.bytes_per_s == pytest.approx(100 / 1.5)


@pytest.mark.parametrize(
    ("statuses", "expected", "launches"),
    [
        (("ok", "ok", "ok"), "ok", [0, 1, 2]),
        (("ok", "suspect", "ok"), "ok", [0, 2]),
        (("suspect", "suspect"), "suspect", [0, 1]),
        (("failed", "suspect"), "suspect", [1]),
        (("failed", "ok"), "ok", [1]),
        (("skipped", "skipped"), "skipped", []),
        (("skipped", "failed"), "failed", []),
        (("failed",), "failed", []),
    ],
)
def test_status_of_merged_launches(statuses: tuple[str, ...], expected: str, launches: list[int]) -> None:
    items = [
        line(launch=i, status=status, reason=f"r{i}", seconds=[[1.0]] if status in ("ok", "suspect") else [])
        for i, status in enumerate(statuses)
    ]
    found = merged(*items)
    assert found.status == expected
    assert [one.launch for one in found.used] == launches


def test_wrong_data_in_one_launch_fails_the_record() -> None:
    found = merged(line(launch=0), line(launch=1, verified=False, status="failed", reason="byte 7 differs"))
    assert found.wrong_data
    assert found.status == "failed"
    assert found.reason == "byte 7 differs"


def test_no_bytes_moved_is_a_rate_of_zero() -> None:
    assert merged(line(moved=0)).bytes_per_s == 0.0


def test_a_record_without_samples_has_no_time() -> None:
    with pytest.raises(ValueError, match="no samples"):
        _ = merged(line(status="skipped", seconds=[])).time


def test_to_frame(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    path = write(
        tmp_path,
        HEADER.to_json(),
        line().to_json(),
        line(point={"op": "x"}, status="skipped", seconds=[]).to_json(),
        "",
    )
    frame = read(path).to_frame()
    assert list(frame["status"]) == ["ok", "skipped"]
    assert frame["seconds"][0] == pytest.approx(2e-3)


# --- writing -----------------------------------------------------------------------------------------


def test_create_refuses_a_folder_in_use(tmp_path: Path) -> None:
    Writer.create(tmp_path, HEADER).close()
    with pytest.raises(UserError, match="--resume"):
        Writer.create(tmp_path, HEADER)


def test_create_below_a_file_is_a_user_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="--out"):
        Writer.create(tmp_path / "file" / "run", HEADER)


def test_reopen_cuts_a_torn_line_and_goes_on(tmp_path: Path) -> None:
    path = write(tmp_path, HEADER.to_json(), line().to_json(), '{"type":"poi')
    writer = Writer.reopen(tmp_path)
    writer.append(line(launch=1).to_json())
    writer.close()
    run = read(path)
    assert run.warnings == []
    assert [one.launch for one in run.records[0].lines] == [0, 1]


def test_reopen_without_a_file_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot write"):
        Writer.reopen(tmp_path)


def test_two_runs_do_not_write_one_file(tmp_path: Path) -> None:
    writer = Writer.create(tmp_path, HEADER)
    with pytest.raises(UserError, match="another run"):
        Writer.reopen(tmp_path)
    writer.close()
    Writer.reopen(tmp_path).close()


def full_disk(room: int) -> Callable[[int, bytes], int]:
    """An os.write with ``room`` bytes left: the last write is short, the next one fails."""
    left, really = [room], os.write

    def write_(fd: int, data: bytes) -> int:
        if left[0] <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done = really(fd, data[: left[0]])
        left[0] -= done
        return done

    return write_


@pytest.mark.parametrize("room", [0, 1, 100])
def test_a_full_disk_leaves_whole_lines_and_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    writer = Writer.create(tmp_path, HEADER)
    writer.append(line().to_json())
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full_disk(room))
        with pytest.raises(UserError, match="--resume") as caught:
            writer.append(line(launch=1).to_json())
    assert "No space left" in str(caught.value)
    assert read(tmp_path).warnings == []
    assert len(read(tmp_path).records[0].lines) == 1
    writer.append(line(launch=2).to_json())  # room was made
    writer.close()
    assert [one.launch for one in read(tmp_path).records[0].lines] == [0, 2]


def test_a_disk_too_full_for_the_header_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full_disk(10))
        with pytest.raises(UserError, match=r"No space left.*--out"):
            Writer.create(tmp_path, HEADER)
    Writer.create(tmp_path, HEADER).close()


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    really = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: really(fd, data[:7]))
    writer = Writer.create(tmp_path, HEADER)
    writer.append(line().to_json())
    writer.close()
    assert read(tmp_path).records[0].lines == [line()]


@pytest.mark.parametrize(
    ("statuses", "used", "status"),
    [
        (("ok", "ok", "suspect"), [0, 1], "ok"),
        (("ok", "suspect", "suspect"), [0, 1, 2], "suspect"),
        (("suspect", "suspect"), [0, 1], "suspect"),
        (("ok",), [0], "ok"),
        (("ok", "failed"), [0], "ok"),
    ],
)
def test_undisturbed_launches_count_alone_where_there_are_two(
    statuses: tuple[str, ...], used: list[int], status: str
) -> None:
    lines = [line(launch=n, status=text) for n, text in enumerate(statuses)]
    for entry in lines:
        if entry.status == "failed":
            entry.seconds = []
    (merged,) = merge(lines)
    assert [entry.launch for entry in merged.used] == used
    assert merged.status == status


# --- aggregates: a peer's means, not samples ----------------------------------------------------------

MEAN = "mean of 20 iterations, mean over ranks"


def test_one_aggregate_has_no_interval_and_no_tails() -> None:
    only = Record("dram", {}, [line(seconds=[[2e-3]], aggregate=MEAN)])
    assert only.aggregate == MEAN
    assert (only.time.median, only.time.known, only.time.fraction) == (2e-3, False, math.inf)
    assert (only.tails.p5, only.tails.p95, only.tails.n) == (None, None, 1)


def test_many_aggregates_have_an_interval_but_never_tails() -> None:
    launches = [line(launch=k, seconds=[[1e-3 + k * 1e-5] * 200], aggregate=MEAN) for k in range(3)]
    several = Record("dram", {}, launches)
    assert several.time.known
    assert several.time.low < several.time.median < several.time.high
    assert several.tails.p99 is None
    raw = Record("dram", {}, [line(seconds=[[2e-3]])])
    assert raw.aggregate == ""
    assert raw.time.known


def test_the_aggregate_survives_the_file_and_old_files_have_none(tmp_path: Path) -> None:
    old = asdict(line(point={"op": "old"}))
    del old["aggregate"]
    texts = [HEADER.to_json(), line(seconds=[[2e-3]], aggregate=MEAN).to_json(), json.dumps({"type": "point", **old})]
    run = read(write(tmp_path, *texts, ""))
    assert [record.aggregate for record in run] == [MEAN, ""]
    with_number = changed(aggregate=3)
    assert "aggregate is int" in refused(write(tmp_path, HEADER.to_json(), with_number, ""))


def test_a_table_does_not_pretend_an_interval_for_an_aggregate() -> None:
    from iobench.record import Run
    from iobench.report.table import _time_cells

    one = Record("dram", {}, [line(seconds=[[2e-3]], aggregate=MEAN)])
    cells = _time_cells(one)
    assert (cells["95 % interval"], cells["P95"], cells["P99"]) == ("unknown", "-", "-")
    frame = Run(Path("x"), HEADER, [one]).to_frame()
    assert math.isnan(float(frame.loc[0, "seconds_low"] if frame.loc[0, "seconds_low"] is not None else "nan"))
    assert frame.loc[0, "aggregate"] == MEAN


# --- many lines at once ------------------------------------------------------------------------------


@pytest.mark.parametrize("texts", [
    ['{"a":[{}', "{}]}", "{},{}"],  # joined by commas these would be three objects
    ['{"a":[1', "2]}"], ["{}", "[]"], ["{}", "1"], ["{}", '{"a":NaN}'], ["{}", ""], ["{}", "\\xff"],
    ["{}", '{"a":' + "[" * 100 + "]" * 100 + "}"],
])  # fmt: skip
def test_odd_lines_are_not_decoded_together(texts: list[str]) -> None:
    assert batch.decode([text.encode("latin-1") for text in texts]) is None


def test_brackets_in_words_are_no_nesting() -> None:
    assert batch.decode([b'{"a":"' + b"[]" * 100 + b'"}', b"{}"]) == [{"a": "[]" * 100}, {}]


def test_a_later_line_of_the_same_shape_is_checked_too(tmp_path: Path) -> None:
    good = changed()
    for name, value in (("ops", 0), ("seconds", [[1e-3, -1.0]]), ("status", "fine"), ("notes", [1]), ("type", "other")):
        path = write(tmp_path, HEADER.to_json(), good, changed(launch=1, **{name: value}), "")
        assert f"{FILE_NAME}:3" in refused(path)
    legs = [{"src": "a", "dst": "b", "count": True, "moved": None, "bytes_per_s": None}]
    ones = [{**legs[0], "count": 1}]
    path = write(tmp_path, HEADER.to_json(), changed(legs=ones), changed(legs=legs), "")
    assert "count is bool" in refused(path)


def test_damage_far_into_a_file_names_its_line(tmp_path: Path) -> None:
    many = [changed(point={"i": number}) for number in range(1200)]
    path = write(tmp_path, HEADER.to_json(), *many, "{", *many, "")
    assert f"{FILE_NAME}:1202: not JSON" in refused(path)
    path = write(tmp_path, HEADER.to_json(), *many, '{"type":"resume","at":1}', many[0][:40])
    run = read(path)
    assert (len(run), run.resumed, len(run.warnings)) == (1200, [{"type": "resume", "at": 1}], 1)


@given(rows=st.lists(st.lists(SECONDS, min_size=1, max_size=9), min_size=1, max_size=4), ops=st.integers(1, 9))
def test_the_quick_median_is_that_of_the_interval(rows: list[list[float]], ops: int) -> None:
    made = Record("dram", {}, [line(launch=number, seconds=[row, row], ops=ops) for number, row in enumerate(rows)])
    assert made.median == made.time.median
