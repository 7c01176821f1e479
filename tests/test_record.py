"""The file: round trip, damage, foreign files, merging, a full disk. Damage is one line, never a traceback."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from iobench import batch, parse, record
from iobench.errors import UserError
from iobench.record import FILE_NAME, Header, Leg, Line, Record, dumps, merge, point_key, read
from iobench.writer import Writer

HEADER = Header("run-1", "2026-01-01T00:00:00Z", "0.1", {"name": "box"}, {"schema": 1}, {"probes": ["null"]})


def line(**changes: Any) -> Line:
    base = Line(
        probe="dram",
        source="sha256:1",
        point={"op": "copy", "threads": 2},
        nbytes=1 << 20,
        moved=2 << 20,
        seconds=[[1e-3, 2e-3, 3e-3]],
        warmup=[[5e-3]],
        legs=[Leg("mem:0", "cpu:0", 2, 1 << 20, 63e9), Leg("cpu:0", "mem:0")],
        evidence={"nodes": [0]},
        state={"during": {"steal_fraction": 0.0}},
        notes=["a note"],
        verified=True,
        proven=True,
    )
    return replace(base, **changes)


def write(folder: Path, *texts: str | bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    data = b"\n".join(text.encode() if isinstance(text, str) else text for text in texts)
    (folder / FILE_NAME).write_bytes(data)
    return folder / FILE_NAME


def changed(**values: Any) -> str:
    """A point's line with some raw JSON values put in."""
    return json.dumps({"type": "point", **asdict(line()), **values})


def refused(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        read(path)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 400 + len(str(path))
    return message


# --- round trip --------------------------------------------------------------------------------------

TEXT = st.text(max_size=10)
JSON_VALUE = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
SECONDS = st.floats(1e-9, 1e3)
RATE = st.none() | st.floats(1.0, 1e15)


@st.composite
def lines(draw: st.DrawFn) -> Line:
    ranks, n = draw(st.integers(1, 3)), draw(st.integers(1, 6))
    rows = st.lists(st.lists(SECONDS, min_size=n, max_size=n), min_size=ranks, max_size=ranks)
    scalar = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | TEXT
    return Line(
        probe=draw(st.text(min_size=1, max_size=8)),
        source=draw(TEXT),
        point=draw(st.dictionaries(TEXT, scalar, max_size=3)),
        launch=draw(st.integers(0, 9)),
        status=draw(st.sampled_from(["ok", "suspect"])),
        reason=draw(TEXT),
        nbytes=draw(st.integers(0, 2**62)),
        moved=draw(st.integers(0, 2**62)),
        ops=draw(st.integers(1, 2**20)),
        seconds=draw(rows),
        verified=draw(st.none() | st.booleans()),
        evidence=draw(st.dictionaries(TEXT, JSON_VALUE, max_size=3)),
        legs=[
            Leg(draw(TEXT), draw(TEXT), draw(st.integers(1, 8)), draw(st.none() | st.integers(0, 2**40)), draw(RATE))
        ],
        notes=draw(st.lists(TEXT, max_size=2)),
        elapsed=draw(st.floats(0, 1e6)),
    )


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None, max_examples=40
)
@given(written=st.lists(lines(), max_size=4))
def test_what_is_written_is_read(tmp_path: Path, written: list[Line]) -> None:
    path = write(tmp_path, HEADER.to_json(), *(item.to_json() for item in written), "")
    run = read(path)
    assert run.header == HEADER
    assert run.warnings == []
    expected = merge(written)
    assert [item.lines for item in run] == [item.lines for item in expected]
    for item in run:
        assert item.time.low <= item.time.median <= item.time.high
        assert math.isfinite(item.bytes_per_s)


def test_the_writer_and_the_folder(tmp_path: Path) -> None:
    writer = Writer.create(tmp_path / "a" / "b", HEADER)
    writer.append(line().to_json())
    writer.close()
    run = read(tmp_path / "a" / "b")
    assert run.machine == "box"
    assert run.of("dram")[0].lines == [line()]
    assert run.of("other") == []
    assert len(run) == 1


def test_numbers_that_json_has_not_become_null() -> None:
    text = dumps(
        {"a": math.nan, "b": [math.inf, -math.inf], "c": np.float64("nan"), "d": np.arange(2), "e": Path("/x")}
    )
    assert json.loads(text) == {"a": None, "b": [None, None], "c": None, "d": [0, 1], "e": "/x"}


def test_a_file_name_that_is_no_utf8_survives(tmp_path: Path) -> None:
    name = os.fsdecode(b"/data/\xff\xfe.safetensors")
    path = write(tmp_path, HEADER.to_json(), line(evidence={"file": name}).to_json(), "")
    assert read(path).records[0].lines[0].evidence == {"file": name}


def test_unknown_keys_of_a_newer_minor_version_are_passed_over(tmp_path: Path) -> None:
    path = write(tmp_path, HEADER.to_json(), changed(later="x"), "")
    assert read(path).records[0].lines == [line()]


def test_point_key_does_not_depend_on_the_order_of_axes() -> None:
    assert point_key("p", {"a": 1, "b": "x"}) == point_key("p", {"b": "x", "a": 1})
    assert point_key("p", {"a": 1}) != point_key("p", {"a": "1"})


# --- damage ------------------------------------------------------------------------------------------


def test_a_torn_last_line_is_left_out_with_a_warning(tmp_path: Path) -> None:
    whole = line().to_json()
    for cut in (1, len(whole) // 2, len(whole)):
        run = read(write(tmp_path, HEADER.to_json(), whole, whole[:cut]))
        assert len(run.records[0].lines) == 1
        assert "incomplete" in run.warnings[0]


@pytest.mark.parametrize(
    "bad", ["{", "", "[]", "null", "1", '{"type":"run"}', '{"type":"x"}', "{}", '"a"', "\x00", "NaN"]
)
def test_a_damaged_line_in_the_middle_names_its_number(tmp_path: Path, bad: str) -> None:
    path = write(tmp_path, HEADER.to_json(), line().to_json(), bad, line(launch=1).to_json(), "")
    assert f"{FILE_NAME}:3: " in refused(path)


HUGE = 10**400
DAMAGE: dict[str, Any] = {
    "status": ["", "great", None, 1, "x" * 10_000],
    "quantity": ["speed", None],
    "probe": ["", None, 3],
    "point": [None, [], {"a": []}, {"a": {}}, {"a": HUGE}],
    "launch": [-1, 1.5, "0", True, HUGE],
    "ops": [0, -1, 1.0, True, HUGE],
    "nbytes": [-1, HUGE, "8", None],
    "moved": [-1, HUGE],
    "seconds": [None, [1.0], [[]], [], [[0.0]], [[-1.0]], [["1"]], [[None]], [[True]], [[1.0], [1.0, 2.0]], [[HUGE]],
                [[[1.0]]], {}, [[1e300]], [[5e-324]], "abc", ["ab"]],
    "warmup": [None, [1.0], [["x"]], [[0.0]]],
    "verified": ["yes", 1],
    "proven": [None, 1],
    "legs": [None, {}, [None], [{}], [{"src": "a"}], [{"src": 1, "dst": "b"}], [{"src": "a", "dst": "b", "count": 0}],
             [{"src": "a", "dst": "b", "bytes_per_s": 0}], [{"src": "a", "dst": "b", "bytes_per_s": True}],
             [{"src": "a", "dst": "b", "moved": -1}], [{"src": "a", "dst": "b", "count": HUGE}]],
    "notes": [[1], "note", None],
    "evidence": [[], None, "x"],
    "state": [[], None],
    "elapsed": [-1.0, HUGE, "1", 1e300],
    "reason": [None, 5],
}  # fmt: skip


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in DAMAGE.items() for value in values])
def test_a_wrong_value_names_its_line(tmp_path: Path, name: str, value: Any) -> None:
    assert f"{FILE_NAME}:2: " in refused(write(tmp_path, HEADER.to_json(), changed(**{name: value}), ""))


@pytest.mark.parametrize("text", ['{"type":"point","probe":"p"}', '{"type":"point"}'])
def test_missing_fields_name_the_line(tmp_path: Path, text: str) -> None:
    message = refused(write(tmp_path, HEADER.to_json(), text, ""))
    assert "missing" in message
    assert "__init__" not in message


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "9" * 5000, "1e999"])
def test_odd_numbers_of_json_are_refused(tmp_path: Path, number: str) -> None:
    text = line(elapsed=0.125).to_json().replace("0.125", number)
    assert number in text
    assert f"{FILE_NAME}:2: " in refused(write(tmp_path, HEADER.to_json(), text, ""))


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity"])
def test_constants_that_are_no_json_are_refused_anywhere(tmp_path: Path, constant: str) -> None:
    text = line(evidence={"x": 0.125}).to_json().replace("0.125", constant)
    assert f"{FILE_NAME}:2: not JSON" in refused(write(tmp_path, HEADER.to_json(), text, ""))


@pytest.mark.parametrize("depth", [70, 900, 200_000])
def test_deep_nesting_is_refused(tmp_path: Path, depth: int) -> None:
    text = line(evidence={"x": 1}).to_json().replace('{"x":1}', '{"x":' + "[" * depth + "]" * depth + "}")
    assert f"{FILE_NAME}:2: " in refused(write(tmp_path, HEADER.to_json(), text, ""))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"\n\n\n",
        bytes(range(256)) * 40,
        b"\x89PNG\r\n\x1a\n" + b"\x00" * 100,
        b"# nThread 1 nGpus 2 minBytes 8\n#  size count type\n 8 2 float sum\n",
        b'{"fio version" : "fio-3.33"}\n',
        b"<!DOCTYPE html>\n<html></html>\n",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n",
        b'{"type":"run","schema":1}\n',
        '{"type":"run"}\n'.encode("utf-16"),
        HEADER.to_json().encode(),  # torn in the header
    ],
)
def test_foreign_files(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / FILE_NAME
    path.write_bytes(data)
    refused(path)


@pytest.mark.parametrize("schema", [0, 2, 99, "1", None, True, [1], 1.5, "x" * 10_000])
def test_another_schema_says_so(tmp_path: Path, schema: Any) -> None:
    text = json.dumps({**json.loads(HEADER.to_json()), "schema": schema})
    assert "schema" in refused(write(tmp_path, text, ""))


@pytest.mark.parametrize(
    ("name", "value"),
    [("environment", {"A": 1}), ("probes", {"null": 1}), ("machine", []), ("run_id", 1), ("request", None)],
)
def test_a_damaged_header(tmp_path: Path, name: str, value: Any) -> None:
    text = json.dumps({**json.loads(HEADER.to_json()), name: value})
    assert f"{FILE_NAME}:1" in refused(write(tmp_path, text, ""))


def test_a_path_that_is_no_run(tmp_path: Path) -> None:
    assert "cannot read" in refused(tmp_path)
    assert "cannot read" in refused(tmp_path / "gone")


SAMPLE = "\n".join(
    [HEADER.to_json(), line().to_json(), line(launch=1, status="suspect", reason="x").to_json(), ""]
).encode()


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None, max_examples=250
)
@given(
    edits=st.lists(
        st.tuples(st.integers(0, len(SAMPLE) - 1), st.integers(0, 3), st.binary(min_size=1, max_size=4)),
        min_size=1,
        max_size=4,
    )
)
def test_any_mutation_is_read_or_refused(tmp_path: Path, edits: list[tuple[int, int, bytes]]) -> None:
    data = SAMPLE
    for at, removed, added in edits:
        data = data[:at] + added + data[at + removed :]
    path = tmp_path / FILE_NAME
    path.write_bytes(data)
    with contextlib.suppress(UserError):
        use(read(path))


@settings(
    deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(name=st.sampled_from(sorted(asdict(line()))), value=JSON_VALUE)
def test_any_json_value_in_any_field_is_read_or_refused(tmp_path: Path, name: str, value: Any) -> None:
    path = write(tmp_path, HEADER.to_json(), changed(**{name: value}), "")
    with contextlib.suppress(UserError):
        use(read(path))


def use(run: record.Run) -> None:
    """Compute all that a record computes: whatever was read must bear it."""
    for item in run:
        assert item.status in record.STATUSES
        assert isinstance(item.reason, str)
        if item.used:
            assert 0 < item.time.low <= item.time.high
            assert item.bytes_per_s_interval[0] <= item.bytes_per_s <= item.bytes_per_s_interval[1]
            assert item.tails.n == item.time.n
        for one in item.lines:
            json.loads(one.to_json())


# --- the definition of a sound line ------------------------------------------------------------------


def test_problem_tells_before_writing_what_reading_would_refuse() -> None:
    assert parse.problem(line()) == ""
    assert "no positive number" in parse.problem(line(seconds=[[0.0]]))
    assert "no positive number" in parse.problem(line(seconds=[[math.nan]]))
    assert "without samples" in parse.problem(line(seconds=[]))
    assert parse.problem(line(status="skipped", seconds=[], legs=[], nbytes=0, moved=0)) == ""


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
