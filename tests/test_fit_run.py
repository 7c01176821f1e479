"""Fits of a whole run: which records make a series, which are left out, and what is said about it."""

import pytest
from iobench.errors import UserError
from iobench.fit import fit_run, load, save
from iobench.fit.fitted import cache_edges
from iobench.record import Leg, read
from iobench.topology.graph import Topology
from iobench.units import GB, KIB, MIB, NS, US

from make_run import CACHE_NS, CACHES, chase, demo_run, hockney, lines, make_testbox, run_of
from make_run import save as save_run

SIZES = [8 << step for step in range(0, 24, 2)]
HOCKNEY = {"p": [{"kind": "hockney"}]}


def fitted(all_lines, models=HOCKNEY, **more):
    return fit_run(run_of(all_lines, models=models, **more))


def a_of(one):
    assert one.model is not None, one.reason
    return one.model.parameters["a"].value


def test_the_demo_run_gives_a_model_for_every_series():
    found = {(one.probe, one.series): one for one in fit_run(demo_run())}
    assert set(found) == {
        ("dram", "kernel=chase threads=1 pages=4k"), ("allreduce", "ranks=2"), ("allreduce", "ranks=4")
    }  # fmt: skip
    levels = found["dram", "kernel=chase threads=1 pages=4k"].model
    assert levels is not None
    for name, truth in CACHE_NS.items():
        assert levels.parameters[name].value == pytest.approx(truth * NS, rel=0.05)
    assert a_of(found["allreduce", "ranks=2"]) == pytest.approx(200 * US, rel=0.02)
    assert (
        found["allreduce", "ranks=4"]
        .notes[0]
        .startswith("12 of 12 sizes are suspect (others used 37 % of the CPUs), used")
    )


def test_what_is_written_and_read_again_gives_the_same_models(tmp_path):
    run = demo_run()
    assert fit_run(read(save_run(run, tmp_path / "run"))) == fit_run(run)


def test_a_series_is_one_value_of_every_other_axis():
    both = hockney("p", SIZES, 5 * US, 1 * GB, point={"op": "read"})
    both += hockney("p", SIZES, 9 * US, 1 * GB, point={"op": "write"})
    found = fitted(both)
    assert [one.series for one in found] == ["op=read", "op=write"]
    assert [a_of(one) for one in found] == pytest.approx([5 * US, 9 * US], rel=0.02)
    assert [one.axes for one in found] == [{"op": "read"}, {"op": "write"}]


def test_modes_are_never_mixed():
    # H100, 256 B: 4.3 us replayed from a graph, 20.6 us launched one by one
    mixed = hockney("p", SIZES[:6], 4.3 * US, 1 * GB, mode="graph")
    mixed += hockney("p", SIZES[6:], 20.6 * US, 1 * GB, mode="eager")
    found = {one.mode: a_of(one) for one in fitted(mixed)}
    assert found["graph"] == pytest.approx(4.3 * US, rel=0.02)
    assert set(found) == {"graph", "eager"}


def test_only_declared_points_are_fitted():
    made = hockney("p", SIZES, 5 * US, 1 * GB, point={"op": "read"})
    made += hockney("p", SIZES, 9 * US, 1 * GB, point={"op": "write"})
    made += hockney("p", SIZES, 9 * US, 1 * GB, point={"op": "copy"})
    assert fitted(made, {"p": []}) == []
    assert [one.series for one in fitted(made, {"p": [{"kind": "hockney", "where": {"op": "read"}}]})] == ["op=read"]
    some = fitted(made, {"p": [{"kind": "hockney", "where": {"op": ["read", "copy"]}}]})
    assert [one.series for one in some] == ["op=read", "op=copy"]


def test_the_size_axis_may_have_another_name():
    made = [line for n in SIZES for line in lines("p", {"block": n, "op": "read"}, 5 * US + n / GB, nbytes=GB)]
    found = fitted(made, {"p": [{"kind": "hockney", "size": "block"}]})
    assert a_of(found[0]) == pytest.approx(5 * US, rel=0.02)
    assert found[0].series == "op=read"
    assert fitted(made) == [], "points without the size axis belong to no series"


def test_impossible_wrong_failed_and_skipped_records_are_left_out():
    memory = [Leg("mem:0", "cpu:0")]
    made = hockney("p", SIZES, 200 * US, 1 * GB, legs=memory)
    clean = fitted(made)
    spoilt = [
        lines("p", {"nbytes": 512 * MIB}, 1e-4, legs=memory),  # 5 TB/s
        # nccl#2001: rows with wrong data among good ones
        lines("p", {"nbytes": 64 * MIB}, 1e-6, legs=memory, verified=False, status="failed", reason="#wrong 12"),
        lines("p", {"nbytes": 128 * MIB}, None, status="failed", reason="syndrome 0x3b"),
        lines("p", {"nbytes": 256 * MIB}, None, status="skipped", reason="no memory"),
    ]
    found = fitted([*made, *(line for group in spoilt for line in group)])
    assert found[0].model == clean[0].model
    left_out = ["impossible", "wrong", "failed"]
    assert found[0].notes == [f"1 of {len(SIZES) + 4} sizes left out: {status}" for status in left_out]


def test_suspect_records_are_used_only_where_nothing_else_is_there():
    good = hockney("p", SIZES[:8], 5 * US, 1 * GB)
    bad = hockney("p", SIZES[8:], 5 * US, 1 * GB, status="suspect", reason="steal time 12 %")
    enough = fitted([*good, *bad])[0]
    assert enough.model is not None
    assert enough.model.valid == (SIZES[0], SIZES[7])
    assert enough.notes == ["4 of 12 sizes left out: suspect"]
    few = fitted([*good[:9], *bad])[0]  # three sizes
    assert few.model is not None
    assert few.model.valid == (SIZES[0], SIZES[-1])
    assert "steal time 12 %" in few.notes[0]


def test_a_level_whose_working_sets_are_all_suspect_is_not_lost():
    # a neighbour disturbed the last and longest points of the sweep, and one in the middle
    sets = [4 * KIB << step for step in range(17)]
    made = chase(sets)
    for line in made:
        if line.nbytes >= 32 * MIB or line.nbytes == 4 * MIB:
            line.status, line.reason = "suspect", "others used 1.5 CPUs: stop them; others used 1.6 CPUs: stop them"
    for line in made:
        if line.nbytes == 4 * MIB:
            line.seconds = [[4 * second for second in row] for row in line.seconds]
    (found,) = fitted(made, {"dram": [{"kind": "levels"}]})
    assert found.model is not None
    assert found.model.parameters["memory"].value == pytest.approx(95 * NS, rel=0.05)
    assert found.model.parameters["L3"].value == pytest.approx(20 * NS, rel=0.05)
    assert 4 * MIB not in [point.nbytes for point in found.model.measured]
    assert found.notes[0] == "2 of 17 sizes left out: suspect"  # 32 MiB lies between two levels
    assert found.notes[1].startswith("3 of 15 sizes are suspect (others used 1.5 CPUs), used because")


def test_too_few_sound_sizes_take_the_suspect_ones_in():
    made = chase([4 * KIB << step for step in range(17)], status="suspect", reason="steal time 12 %")
    for line in made:
        line.status = "ok" if line.nbytes < 32 * KIB else "suspect"
    (found,) = fitted(made, {"dram": [{"kind": "levels"}]}, topology={})
    assert found.model is not None
    assert len(found.model.measured) == 17


def test_unproven_paths_are_said():
    found = fitted(hockney("p", SIZES, 5 * US, 1 * GB, proven=False))[0]
    assert found.notes == ["the path of 12 of 12 sizes is unproven"]


def test_a_series_without_a_model_says_why():
    few = fitted(hockney("p", SIZES[:3], 5 * US, 1 * GB))[0]
    assert few.model is None
    assert few.reason.startswith("3 sizes: a hockney model needs 4")
    none = fitted(lines("p", {"nbytes": 8}, None, status="skipped", reason="needs two GPUs"))[0]
    assert none.reason.startswith("0 sizes")


def test_cache_sizes_are_those_of_the_cpu_that_ran():
    box = make_testbox()
    box.add("cache:L2:1", "cache", nbytes=4 * MIB)  # the second core is of another kind
    box.add("cache:L1i:0", "cache", level=1, type="Instruction", nbytes=64 * KIB, cpus=[0])
    assert dict(cache_edges(box, [0])) == CACHES
    assert dict(cache_edges(box, [1])) == {**CACHES, "L2": 4 * MIB}
    assert dict(cache_edges(box)) == CACHES, "unknown CPU: the smaller of two"
    assert cache_edges(None) == []


def test_caches_of_unknown_size_are_no_edges():
    box = Topology("odd")
    box.add("cache:L1d:0", "cache", level=1, type="Data", cpus=[0])
    box.add("cache:L2:0", "cache", level=2, type="Unified", nbytes=MIB, cpus="0-3")
    assert cache_edges(box, [0]) == [("L2", MIB)]
    run = run_of(chase([4 * KIB << step for step in range(17)], legs=[]), topology={})
    found = fit_run(run)[0]
    assert found.model is not None
    assert any("cache sizes are unknown" in sentence for sentence in found.model.findings)


@pytest.mark.parametrize("probes", [
    {"p": "sha256:1"}, {"p": {"models": 3}}, {"p": {"models": ["hockney"]}}, {"p": {"models": [{"where": {}}]}},
    {"p": {"models": [{"kind": "hockney", "where": ["op"]}]}}, {"p": {"models": [{"kind": "hokney"}]}},
])  # fmt: skip
def test_a_damaged_header_is_one_line(probes):
    with pytest.raises(UserError):
        fitted(hockney("p", SIZES, 5 * US, 1 * GB), probes=probes)


def test_odd_values_of_axes_are_only_labels():
    made = hockney("p", SIZES, 5 * US, 1 * GB, point={"a": [1, 2], "b": {"c": None}, "d": None})
    assert fitted(made)[0].series == 'a=[1,2] b={"c":null} d=None'


def test_models_survive_their_file(tmp_path):
    made = [*fit_run(demo_run()), *fitted(hockney("p", SIZES[:3], 5 * US, 1 * GB))]
    assert load(save(made, tmp_path / "models.json")) == made


@pytest.mark.parametrize("text", [
    "", "{", "[]", '{"type": "models", "schema": 7, "models": []}', '{"type": "models", "schema": 1}',
    '{"type": "models", "schema": 1, "models": [3]}', '{"type": "models", "schema": 1, "models": [{"model": {}}]}',
    "\xff", "[" * 100_000,
])  # fmt: skip
def test_a_damaged_models_file_is_one_line(tmp_path, text):
    file = tmp_path / "models.json"
    file.write_text(text, encoding="latin-1")
    with pytest.raises(UserError, match="iobench fit") as caught:
        load(file)
    assert "\n" not in str(caught.value)


def test_a_models_file_that_is_missing_or_cannot_be_written(tmp_path):
    with pytest.raises(UserError, match="cannot read"):
        load(tmp_path / "none.json")
    with pytest.raises(UserError, match="cannot write"):
        save([], tmp_path / "no such folder" / "models.json")
