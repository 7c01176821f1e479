"""Many lines at once: the same lines, and the same complaints, as one by one."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from iobench import batch
from iobench.errors import UserError
from iobench.record import Line, point_key, read

from make_run import demo_run, save

ODD: list[Any] = [
    None, True, 0, 1, -1, 2**63, 2**40 + 1, 1e-16, 1e10, 1.5, "", "x", "ok", "skipped", [], [[]], [[1.0]], [[1]],
    [["x"]], [[1.0], [1.0, 2.0]], [[1e-20]], [1.0], {}, {"a": 1}, {"a": []}, {"a": 2**64}, {"a": True}, ["note"], [1],
    [{"src": "cpu:0", "dst": "memory:0"}], [{"src": "cpu:0", "dst": "memory:0", "count": 0}], [{"src": "cpu:0"}],
    [{"src": "a", "dst": "b", "count": 1}, {"src": "a", "dst": "b", "count": True}],
]  # fmt: skip


def outcome(file: Path) -> Any:
    try:
        run = read(file)
    except UserError as error:
        return str(error)
    return [record.lines for record in run], [record.key for record in run], run.warnings, run.resumed


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    file = save(demo_run(), tmp_path_factory.mktemp("demo") / "r")
    return file.read_text(encoding="utf-8").splitlines()


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(changes=st.lists(st.tuples(st.integers(1, 20), st.sampled_from(sorted(Line.__dataclass_fields__)),
                                  st.sampled_from(ODD)), max_size=3))  # fmt: skip
def test_any_change_of_any_field_is_read_as_line_by_line(
    changes: list[tuple[int, str, Any]], texts: list[str], tmp_path: Path
) -> None:
    some = [json.loads(text) for text in texts[:21]]
    for place, name, value in changes:
        some[place][name] = value
    file = tmp_path / "records.jsonl"
    file.write_text("".join(json.dumps(value) + "\n" for value in some), encoding="utf-8")
    together = outcome(file)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch, "decode", lambda texts: None)
        assert outcome(file) == together


def test_a_line_without_fields_that_came_later_is_read_with_their_defaults(texts: list[str], tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    values = [json.loads(text) for text in texts]
    for value in values[1:]:
        del value["aggregate"], value["legs"]
    file.write_text("".join(json.dumps(value) + "\n" for value in values), encoding="utf-8")
    first, second, *_ = [line for record in read(file) for line in record.lines]
    assert (first.aggregate, first.legs) == ("", [])
    assert first.legs is not second.legs


@pytest.mark.parametrize(
    "point",
    [{}, {"b": 1, "a": "x"}, {"a": 'quo"te\n'}, {"ä": "µ"}, {"a": True}, {"a": 1.5}, {"a": None}, {"a": -(2**70)}],
)
def test_a_points_key_is_its_sorted_json(point: dict[str, Any]) -> None:
    assert point_key("p", point) == "p " + json.dumps(point, sort_keys=True, separators=(",", ":"))
