"""The report's warnings: which points, which figure, what to do next."""

from __future__ import annotations

import pytest
from iobench import report
from iobench.check import judge
from iobench.plan import QUICK_TARGET
from iobench.report.names import percent
from iobench.report.notices import ORDER, counts, notices

from make_run import demo_run, lines, run_of


def test_warnings_name_the_points_the_figure_and_the_next_step() -> None:
    run = demo_run()
    found = notices(run, judge(run))
    kinds = [notice.kind for notice in found if notice.kind != "launches"]
    assert kinds == [*[kind for kind in ORDER if kind != "emulated"], "no limit"]
    by_kind = {notice.kind: notice.text for notice in found}
    assert "60.1 GB/s" in by_kind["impossible"]
    assert "51.2 GB/s" in by_kind["impossible"]
    assert "triad" in by_kind["impossible"]
    assert "checksum of shard 2 differs" in by_kind["wrong"]
    assert "12 points" in by_kind["suspect"]
    assert "37 %" in by_kind["suspect"]
    assert "no huge pages are free" in by_kind["skipped"]
    assert "24 points" in by_kind["no limit"]
    steps = (
        "run again",
        "run the point again",
        "run the probe again",
        "iobench topology",
        "what would prove it",
        "give",
    )
    for notice in found:
        assert any(step in notice.text for step in steps), notice
        assert notice.text.endswith(".")


def test_points_that_differ_only_in_a_figure_share_one_warning_with_the_worst() -> None:
    out = []
    for number, load in enumerate((0.4, 1.7, 0.9)):
        why = f"others used {load} CPUs (limit 0.1): run again on a quiet machine"
        out += lines("dram", {"n": number}, 1e-3, moved=4096, status="suspect", reason=why)
    run = run_of(out)
    (notice,) = [n for n in notices(run, judge(run)) if n.kind == "suspect"]
    assert "3 points" in notice.text
    assert "the worst: others used 1.7 CPUs" in notice.text
    assert notice.text.count("run again") == 1


def test_a_note_that_every_launch_carries_is_about_the_machine() -> None:
    note = "one node proves nothing: run it where there are more"
    out = lines("dram", {"n": 1}, 1e-3, notes=["batched", note]) + lines("dram", {"n": 2}, 1e-3, notes=[note])
    run = run_of(out + lines("null", {"n": 1}, 1e-3))
    said = [notice.text for notice in notices(run, judge(run)) if notice.kind == "note"]
    assert said == [f"dram: {note}."]


def test_an_interval_wider_than_asked_for_is_a_warning() -> None:
    run = run_of(lines("null", {"n": 1}, 1e-3, noise=0.3, stop="budget") + lines("null", {"n": 2}, 1e-3, noise=1e-4))
    (notice,) = [n for n in notices(run, judge(run)) if n.kind == "budget"]
    assert "1 point " in notice.text
    assert "n 1" in notice.text
    assert "--budget" in notice.text
    run.header.request["quick"] = True
    assert f"±{percent(QUICK_TARGET)}" in next(n.text for n in notices(run, judge(run)) if n.kind == "budget")
    run.header.request["target"] = 0.9
    assert not [n for n in notices(run, judge(run)) if n.kind == "budget"]


@pytest.mark.parametrize(("launches", "warned"), [(1, True), (2, False)])
def test_one_launch_is_said_to_be_one(launches: int, warned: bool) -> None:
    run = run_of([line for n in (1, 2) for line in lines("null", {"n": n}, 1e-3, launches=launches)])
    run.header.request["launches"] = None
    found = [notice.text for notice in notices(run, judge(run)) if "one launch only" in notice.text]
    assert [text.startswith("null: ") for text in found] == ([True] if warned else [])


def test_an_unfinished_run_says_how_to_go_on() -> None:
    run = demo_run()
    run.header.request["lines"] = 1000
    run.warnings.append("records.jsonl: the last line is incomplete")
    run.resumed.append({"type": "resume"})
    said = [notice.text for notice in notices(run, judge(run)) if notice.kind == "file"]
    assert len(said) == 3
    assert sum("iobench run --resume" in text for text in said) == 2
    assert f"of {1000} planned" in said[1]


def test_counts_add_up() -> None:
    run = demo_run()
    found = counts(judge(run))
    assert sum(found.values()) == len(run)
    assert list(found)[:2] == ["ok", "wrong"]
    assert report.verdict_line(run).startswith("34 ok, 1 wrong, 1 impossible")
