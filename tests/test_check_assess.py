"""What check says beyond physics: the band of a class, a baseline, and the exit status."""

from __future__ import annotations

import pytest
from iobench.check import assess
from iobench.check.classes import table
from iobench.check.expected import bands
from iobench.record import Leg, Line
from iobench.topology.graph import Topology
from iobench.units import GB, GIB, MIB, US

from make_run import demo_run, lines, run_of

H100 = "8 x NVIDIA H100 80GB HBM3"
POINT = {"nbytes": 64 * MIB}


def finding(busbw: float, *, nbytes: int = 8 * GIB, name: str = H100, **fields):
    point = {"op": "all_reduce", "ranks": 8, "nodes": 1, "engine": "nccl", "nbytes": nbytes}
    moved = nbytes * 7 // 4
    made = Line("allreduce", "s", point, nbytes=nbytes, moved=moved, seconds=[[moved / busbw]], proven=True, **fields)
    (found,) = assess(run_of([made], topology={}, name=name))
    return found


@pytest.mark.parametrize(("busbw", "word", "standing"), [
    (476, "ok", "within"), (300, "slow", "below"), (520, "ok", "above"), (710, "impossible", None),
])  # fmt: skip
def test_the_band_of_the_class(busbw, word, standing):
    found = finding(busbw * GB)
    assert found.word == word
    assert (found.expected.word if found.expected else None) == standing
    if standing:
        assert "issue 290" in found.sentence


def test_a_machine_with_nvls_off_has_a_band_of_its_own():
    off = ["NVLS off"]
    assert finding(367 * GB, name="H200", notes=off).word == "ok"
    assert finding(300 * GB, name="H200", notes=off).word == "slow"
    assert finding(367 * GB, name="H200").word == "slow"
    assert finding(367 * GB, notes=off).expected is None  # no row for H100


def test_small_messages_have_a_band_of_time():
    def at(us):
        return finding(8 * 7 / 4 / (us * US), nbytes=8, mode="pipelined")

    assert [at(us).word for us in (15, 60)] == ["ok", "slow"]
    assert at(3).expected.word == "above"
    assert finding(8 * 7 / 4 / (60 * US), nbytes=8, mode="graph").expected is None


def test_every_row_is_about_a_known_class_and_names_its_source():
    ids = {row["id"] for row in table()["class"]} | {""}
    rows = [row for group in bands().values() for row in group]
    assert len(rows) > 20
    for row in rows:
        assert row["class"] in ids
        assert row["source"]
        low, high = row["gigabytes_per_s"] if "gigabytes_per_s" in row else row["microseconds"]
        assert 0 < low < high


@pytest.mark.parametrize(("factor", "word"), [(1.2, "below"), (0.8, "above"), (1.0, "within"), (1.02, "within")])
def test_against_a_baseline(factor, word):
    now = run_of(lines("p", POINT, 1e-3 * factor, noise=0.003, seed="now"))
    before = run_of(lines("p", POINT, 1e-3, noise=0.003, seed="before"))
    (found,) = assess(now, before)
    assert found.baseline.word == word
    assert found.word == ("slow" if word == "below" else "ok")
    assert assess(now, before).exit_status == (1 if word == "below" else 0)


def test_a_wide_interval_hides_a_slow_down_and_the_other_bytes_count():
    before = run_of(lines("p", POINT, [0.7e-3, 1e-3, 1.5e-3], noise=0.003))
    assert next(iter(assess(run_of(lines("p", POINT, 1.2e-3)), before))).baseline.word == "within"
    twice = run_of(lines("p", POINT, 2e-3, moved=128 * MIB, noise=0.003))
    base = run_of(lines("p", POINT, 1e-3, moved=64 * MIB, noise=0.003))
    assert next(iter(assess(twice, base))).baseline.word == "within"


def test_a_mean_without_samples_gets_no_interval():
    def mean(seconds):
        return run_of(lines("p", POINT, seconds, launches=1, n=1, noise=0.0, aggregate="mean of 20 iterations"))

    found = {s: next(iter(assess(mean(s), mean(1e-3)))).baseline for s in (1.08e-3, 1.15e-3)}
    assert [standing.word for standing in found.values()] == ["within", "below"]
    assert all("no interval is known" in standing.sentence for standing in found.values())


def test_modes_and_strangers_do_not_join():
    now = run_of(lines("p", POINT, 1e-3, mode="graph"))
    found = assess(now, run_of(lines("p", POINT, 1e-4, mode="eager")))
    assert found.joined == 0
    assert found.exit_status == 0
    assert "no point is in both runs" in "\n".join(found.summary)


def test_a_rate_above_what_headers_leave_is_doubtful():
    graph = Topology("made")
    graph.add("mem:0", "mem")
    graph.add("gpu:0", "gpu")
    graph.link("mem:0", "gpu:0", "pcie", 63 * GB, source="PCIe 5.0", attrs={"warn_bytes_per_s": 58.4 * GB})
    legs = [Leg("mem:0", "gpu:0")]
    runs = [run_of(lines("pcie", POINT, 64 * MIB / (rate * GB), noise=0.0, legs=legs), topology=graph)
            for rate in (55, 60, 64)]  # fmt: skip
    found = [next(iter(assess(run))) for run in runs]
    assert [one.word for one in found] == ["ok", "ok", "impossible"]
    assert [bool(one.verdict.doubt) for one in found] == [False, True, False]
    assert "doubtful: above 58.4 GB/s" in found[1].sentence
    assert any("doubtful: 1" in line for line in assess(runs[1]).summary)


def test_the_exit_status_is_that_of_the_worst():
    assert assess(demo_run()).exit_status == 3  # it holds wrong data and an impossible rate
    assert assess(run_of(lines("p", POINT, None, status="failed", reason="EPERM"))).exit_status == 1
    assert assess(run_of(lines("p", POINT, None, status="skipped", reason="no GPU"))).exit_status == 0


def test_a_finding_names_its_point_as_the_command_line_takes_it():
    found = finding(400 * GB, nbytes=64 * MIB)
    assert found.point == "allreduce op=all_reduce ranks=8 nodes=1 engine=nccl nbytes=64 MiB"
