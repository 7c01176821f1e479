"""The file: round trip, damage, foreign files. Damage is one line, never a traceback."""

from __future__ import annotations

import contextlib
import json
import math
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from iobench import parse, record
from iobench.errors import UserError
from iobench.record import FILE_NAME, Leg, Line, dumps, merge, point_key, read
from iobench.writer import Writer

from records import HEADER, changed, line, refused, write

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
