"""Comparisons: what is joined, which way the ratio points, and when a difference is called one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from iobench.compare import VERDICTS, compare
from iobench.report import compare_text
from iobench.units import GB, KIB, MIB, NS, US

from make_run import chase, demo_run, hockney, lines, run_of

SIZES = [8 << step for step in range(0, 24, 2)]
POINT = {"nbytes": MIB, "op": "read"}


def run(all_lines, name="A", **more):
    made = run_of(all_lines, name=name, **more)
    made.header.run_id = name
    return made


def one(seconds_a, seconds_b, **fields):
    """Return the only row of two runs of one point."""
    a, b = (lines("p", POINT, s, seed=side, **fields) for side, s in (("a", seconds_a), ("b", seconds_b)))
    (row,) = compare(run(a), run(b, "B")).rows
    return row


def test_above_one_b_is_faster():
    row = one(1e-3, 0.5e-3)
    assert row.ratio == pytest.approx(2.0, rel=0.02)
    assert row.low < row.ratio < row.high
    assert row.low > 1.9
    assert row.verdict == "faster"
    assert (row.a.median, row.b.median) == pytest.approx((1e-3, 0.5e-3), rel=0.02)
    assert one(0.5e-3, 1e-3).verdict == "slower"
    lower_latency = one(100 * NS, 80 * NS, quantity="latency", moved=64)
    assert (lower_latency.verdict, lower_latency.quantity) == ("faster", "latency")


def test_same_needs_a_narrow_interval_and_unclear_is_not_same():
    assert one(1e-3, 1.001e-3, noise=0.002).verdict == "same"
    assert one(1e-3, 1.001e-3, noise=0.5, n=5).verdict == "unclear"
    assert one(1e-3, 1.02e-3, noise=0.001).verdict == "same", "a sure difference of 2 % is within 3 %"
    assert one(1e-3, 1.05e-3, noise=0.001).verdict == "slower"


def test_launches_that_differ_widen_the_interval():
    """Two sets of launches 5 % apart from each other show no difference of 4 %, whatever their samples say."""
    scattered = one([1.00e-3, 1.05e-3, 0.95e-3], [1.04e-3, 0.99e-3, 1.09e-3], noise=0.001)
    assert scattered.verdict == "unclear"
    assert one(1.00e-3, 1.06e-3, noise=0.001).verdict == "slower"


def test_a_true_ratio_lies_in_nearly_every_interval():
    hits = 0
    for seed in range(60):
        effects = np.exp(np.random.default_rng(seed).normal(0, 0.03, 6))
        a, b = (
            lines("p", POINT, list(m * e), seed=f"{seed}{m}") for m, e in ((1e-3, effects[:3]), (1.2e-3, effects[3:]))
        )
        (row,) = compare(run(a), run(b, "B")).rows
        hits += row.low <= 1 / 1.2 <= row.high
    assert hits >= 59  # two sides of three launches each: wider than 95 % needs, never narrower


@settings(max_examples=40, deadline=None)
@given(
    medians=st.lists(st.floats(1e-8, 10.0), min_size=1, max_size=5),
    launches=st.integers(1, 4), n=st.integers(1, 30), noise=st.floats(0, 1),
)  # fmt: skip
def test_a_run_is_the_same_as_itself(medians, launches, n, noise):
    made = [
        line
        for index, median in enumerate(medians)
        for line in lines("p", {"nbytes": index + 1}, median, launches=launches, n=n, noise=noise)
    ]
    found = compare(run(made), run(made))
    assert found.count("same") == len(found.rows) == len(medians)
    assert all((row.ratio, row.low, row.high) == pytest.approx((1, 1, 1)) for row in found.rows)
    assert any("the same run" in warning for warning in found.warnings)


@settings(max_examples=40, deadline=None)
@given(a=st.floats(1e-6, 1.0), b=st.floats(1e-6, 1.0), noise=st.floats(0, 0.3))
def test_turned_round_the_ratio_is_the_inverse(a, b, noise):
    runs = (
        run(lines("p", POINT, a, noise=noise, seed="a")),
        run(lines("p", POINT, b, noise=noise, seed="b"), "B"),
    )
    forward, back = compare(*runs).rows[0], compare(*runs[::-1]).rows[0]
    assert forward.ratio == pytest.approx(1 / back.ratio)
    assert forward.low <= forward.ratio <= forward.high
    assert {forward.verdict, back.verdict} != {"faster"}
    assert {forward.verdict, back.verdict} != {"slower"}
    assert forward.verdict in VERDICTS


def test_rows_come_in_the_order_of_a_and_are_the_same_each_time():
    a, b = run(hockney("p", SIZES, 5 * US, 1 * GB)), run(hockney("p", SIZES[::-1], 6 * US, 1 * GB), "B")
    found = compare(a, b)
    assert [row.point["nbytes"] for row in found.rows] == SIZES
    assert compare(a, b) == found


def test_two_machines_are_fine_and_said():
    made = hockney("p", SIZES, 5 * US, 1 * GB)
    found = compare(run(made), run(made, "B"))
    assert found.warnings == ["A ran on A, B on B: the ratios compare the machines"]
    assert len(found.rows) == len(SIZES)


def warnings(a, b):
    return compare(run(a, "box"), run(b, "box2")).warnings[1:]  # without that of two machines


def test_another_source_of_the_probe_is_said():
    changed = hockney("p", SIZES, 5 * US, 1 * GB)
    for line in changed:
        line.source = "sha256:ffff"
    (said,) = warnings(hockney("p", SIZES, 5 * US, 1 * GB), changed)
    assert said.startswith("probe p differs between A and B")


def test_modes_are_not_compared_with_each_other():
    a = hockney("p", SIZES, 20.6 * US, 1 * GB, mode="eager")
    b = hockney("p", SIZES[1:], 4.3 * US, 1 * GB, mode="graph") + hockney("p", SIZES[:1], 4 * US, 1 * GB)
    found = compare(run(a), run(b, "B"))
    assert [row.point["nbytes"] for row in found.rows] == SIZES[:1]
    told = "not compared, mode eager in A and graph in B: 11 points: p nbytes="
    assert any(sentence.startswith(told) for sentence in found.warnings)


def test_points_of_one_side_are_said():
    said = warnings(hockney("p", SIZES[:3], 5 * US, 1 * GB), hockney("p", SIZES[2:], 5 * US, 1 * GB))
    assert said == [
        "only in A: 2 points: p nbytes=8 B, p nbytes=32 B",
        "only in B: 9 points: p nbytes=512 B, p nbytes=2 KiB, p nbytes=8 KiB and 6 more",
    ]


def test_what_is_no_measurement_is_not_compared():
    good = lines("p", POINT, 1e-3)
    wrong = lines("p", POINT, 0.1e-3, verified=False, status="failed", reason="#wrong 3")
    found = compare(run(good), run(wrong, "B"))
    assert found.rows == []
    assert found.warnings[1:] == ["not compared, wrong in B: 1 point: p nbytes=1 MiB op=read"]
    demo = compare(demo_run(), demo_run())
    assert {row.key for row in demo.rows}.isdisjoint(
        record.key for record in demo_run() if record.wrong_data or not record.used
    )
    assert not [row for row in demo.rows if row.point.get("kernel") == "triad"], "impossible"


def test_suspect_records_are_compared_with_a_warning():
    found = compare(run(lines("p", POINT, 1e-3, status="suspect", reason="load")), run(lines("p", POINT, 2e-3), "B"))
    assert found.count("slower") == 1
    assert any(s.startswith("suspect in A") for s in found.warnings)


def test_other_bytes_moved_compare_rates():
    # the same copy, once counted with write-allocate and once without
    found = compare(run(lines("p", POINT, 1e-3, moved=3 * MIB)), run(lines("p", POINT, 1e-3, moved=2 * MIB), "B"))
    assert found.rows[0].ratio == pytest.approx(2 / 3, rel=0.02)
    assert any("bytes moved per operation differ" in s for s in found.warnings)


def test_empty_runs_have_no_rows():
    found = compare(run([]), run([], "B"))
    assert (found.rows, found.summary) == ([], [])


def test_the_summary_names_the_size_where_b_wins():
    a = hockney("p", SIZES, 200 * US, 1 * GB, point={"ranks": 2}, seed="a")
    b = hockney("p", SIZES, 300 * US, 2 * GB, point={"ranks": 2}, seed="b")
    (said,) = compare(run(a), run(b, "B")).summary
    assert said == "p ranks=2: B is slower up to 128 KiB, faster from 512 KiB on"


def test_the_summary_of_one_verdict_gives_the_range():
    a = hockney("p", SIZES, 200 * US, 1 * GB, seed="a")
    (said,) = compare(run(a), run(hockney("p", SIZES, 100 * US, 2 * GB, seed="b"), "B")).summary
    assert said.startswith("p: B is faster at every size (")
    noisy = hockney("p", SIZES, 200 * US, 1 * GB, seed="b", noise=0.8)
    (said,) = compare(run(a), run(noisy, "B")).summary
    assert "unclear" in said


def test_a_chase_is_summed_up_over_working_sets():
    sets = [4 * KIB << step for step in range(12)]
    (said,) = compare(run(chase(sets)), run(chase(sets, seed="b"), "B")).summary
    assert said.startswith("dram kernel=chase threads=1 pages=4k: B is the same")


def test_single_figures_have_no_interval_and_no_verdict():
    one = lines("p", POINT, 1e-3, launches=1, n=1)
    two = lines("p", POINT, 2e-3, launches=1, n=1)
    for line in (*one, *two):
        line.aggregate = "mean of 20 iterations"
    found = compare(run(one), run(two, "B"))
    (row,) = found.rows
    assert (row.low, row.high, row.verdict) == (None, None, "no interval")
    text = compare_text(found)
    assert "1 without an interval" in text
    assert "| - | no interval |" in text
