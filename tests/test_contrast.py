"""Topologies against each other: matching, ratios, crossings, refusals, on series with known truth."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from iobench import sources
from iobench.compare import contrast
from iobench.compare.contrasts import split
from iobench.compare.curves import curves_of
from iobench.compare.match import match
from iobench.errors import UserError
from iobench.record import Line
from iobench.units import GB, KIB, MIB, US
from tests.make_run import hockney, run_of

SIZES = [1 << power for power in range(8, 27)]


def run(made, name="A"):
    made = run_of(made, name=name)
    made.header.run_id = name
    return made


def collective(start, rate, *, seed, sizes=SIZES, probe="allreduce", noise=0.01, **axes):
    point = {"op": "all_reduce", "engine": "nccl", "ranks": 8, "transport": "nvlink", **axes}
    return hockney(probe, sizes, start, rate, point=point, seed=seed, noise=noise)


def single(nbytes, seconds, mode="pipelined", quantity="bandwidth", probe="allreduce", rule="nbytes", **axes):
    return Line(
        probe=probe, source="s", point={"op": "all_reduce", **axes, "nbytes": nbytes}, quantity=quantity, mode=mode,
        nbytes=nbytes, moved=nbytes, moved_rule=rule, seconds=[[seconds]], aggregate="mean of 20 iterations",
    )  # fmt: skip


def only(found):
    (one,) = found.matches
    (fight,) = one.duels
    return one, fight


# --- crossings


def test_a_crossing_lies_where_the_models_cross_and_inside_its_interval():
    # 10 us + n / 10 GB/s against 40 us + n / 40 GB/s: equal at 30 us / (1/10 - 1/40 per GB) = 400 000 B
    a, b = collective(10 * US, 10 * GB, seed="a"), collective(40 * US, 40 * GB, seed="b", transport="ib")
    _, fight = only(contrast([run(a), run(b, "B")]))
    (met,) = fight.crossings
    assert met.nbytes == pytest.approx(400_000, rel=0.15)
    assert met.low < 400_000 < met.high
    assert met.high / met.low < 1.5
    assert fight.sentence.startswith("A is faster up to 3")
    assert "(95 %: " in fight.sentence
    assert fight.sentence.endswith(", B from there")


def test_crossing_intervals_hold_the_truth():
    held = 0
    for trial in range(30):
        a = collective(10 * US, 10 * GB, seed=f"a{trial}", noise=0.05)
        b = collective(40 * US, 40 * GB, seed=f"b{trial}", noise=0.05, transport="ib")
        _, fight = only(contrast([run(a), run(b, "B")]))
        held += any(met.low <= 400_000 <= met.high for met in fight.crossings)
    assert held >= 26  # 95 % and interpolation between powers of two


def test_swapping_the_sides_turns_ratios_round():
    a, b = collective(10 * US, 10 * GB, seed="a"), collective(40 * US, 40 * GB, seed="b", transport="ib")
    _, there = only(contrast([run(a), run(b, "B")]))
    _, back = only(contrast([run(b, "B"), run(a)]))
    for first, second in zip(there.ratios, back.ratios, strict=True):
        assert first.value == pytest.approx(1 / second.value)
    assert there.crossings[0].nbytes == pytest.approx(back.crossings[0].nbytes)


def test_single_figures_have_no_interval_and_say_so():
    a = [single(n, 10e-6 + n / 10e9, transport="nvlink") for n in SIZES]
    b = [single(n, 40e-6 + n / 40e9, transport="ib") for n in SIZES]
    found = contrast([run(a), run(b, "B")])
    _, fight = only(found)
    assert all(ratio.low is None and ratio.high is None for ratio in fight.ratios)
    (met,) = fight.crossings
    assert (met.low, met.high) == (None, None)
    assert met.between == (256 * KIB, 512 * KIB)
    assert "single figures, no interval" in fight.sentence
    assert sum("no interval can be known" in note for note in found.notes) == 2


def test_samples_against_a_single_figure_have_no_interval_either():
    a = collective(10 * US, 10 * GB, seed="a")
    b = [single(n, 40e-6 + n / 40e9, transport="ib", ranks=8, engine="nccl", mode="") for n in SIZES]
    _, fight = only(contrast([run(a), run(b, "B")], mixed=True))
    assert all(ratio.low is None for ratio in fight.ratios)


def test_one_winner_everywhere_and_a_tie():
    a, b = collective(10 * US, 10 * GB, seed="a"), collective(20 * US, 5 * GB, seed="b", transport="ib")
    _, fight = only(contrast([run(a), run(b, "B")]))
    assert fight.sentence.startswith("A is faster at every size compared (256 B to 64 MiB): ")
    assert fight.crossings == ()
    same = [single(n, 1e-5) for n in SIZES]
    _, fight = only(contrast([run(same), run(same, "B")]))
    assert fight.sentence == "A and B are the same (256 B to 64 MiB)"


def test_a_run_against_itself_is_the_same_everywhere():
    made = collective(10 * US, 10 * GB, seed="a")
    _, fight = only(contrast([run(made), run(made)]))
    assert {ratio.verdict for ratio in fight.ratios} == {"same"}
    assert {(ratio.low, ratio.high) for ratio in fight.ratios} == {(1.0, 1.0)}


# --- between sizes


def test_other_grids_are_compared_at_the_sizes_of_both_and_marked():
    a = [single(n, n * 1e-9, transport="nvlink") for n in (1024, 4096, 16384)]
    b = [single(n, n * 2e-9, transport="ib") for n in (2048, 8192, 32768)]
    _, fight = only(contrast([run(a), run(b, "B")]))
    assert [ratio.nbytes for ratio in fight.ratios] == [2048, 4096, 8192, 16384]
    assert not any(ratio.measured for ratio in fight.ratios)
    assert [ratio.value for ratio in fight.ratios] == pytest.approx([0.5] * 4, rel=0.01)


def test_nothing_is_said_outside_of_what_both_measured():
    a = [single(n, n * 1e-9, transport="nvlink") for n in (8, 64)]
    b = [single(n, n * 2e-9, transport="ib") for n in (1024, 4096)]
    found = contrast([run(a), run(b, "B")], at=[32, 2048])
    (one,) = found.matches
    assert one.duels == ()
    assert set(one.times(32)) == {"A"}
    assert set(one.times(2048)) == {"B"}


# --- matching


def test_the_nearest_number_of_ranks_is_matched_and_the_difference_said():
    a = [single(n, n * 1e-9, ranks=ranks, nodes=1) for ranks in (2, 4, 8) for n in SIZES]
    b = [single(n, n * 2e-9, ranks=16, nodes=2) for n in SIZES]
    found = contrast([run(a), run(b, "B")])
    (one,) = found.matches
    assert [curve.axes["ranks"] for curve in one.curves] == [8, 16]
    assert "ranks per node differs: A: 8 ranks in 1 node; B: 16 ranks in 2 nodes" in one.cautions
    assert any(note.startswith("only in A: ") and "ranks 2" in note for note in found.notes)


def test_in_place_goes_with_in_place_and_types_with_types():
    a = [single(64, 1e-6, inplace=place, dtype=dtype) for place in (False, True) for dtype in ("float16", "float32")]
    pairs, alone = match([curves_of(run(made), letter, letter)[0] for letter, made in (("A", a), ("B", a[::-1]))])
    assert alone == []
    assert all(first.axes == second.axes for first, second in pairs)
    assert len(pairs) == 4


def test_what_was_measured_must_be_equal():
    a = [single(64, 1e-6)]
    b = [replace(single(64, 1e-6), point={"op": "all_gather", "nbytes": 64})]
    found = contrast([run(a), run(b, "B")])
    assert found.matches == ()
    assert [note.partition(":")[0] for note in found.notes if note.startswith("only")] == ["only in A", "only in B"]


def test_other_type_place_and_library_are_warned_of():
    a = [single(n, n * 1e-9, dtype="float32", inplace=False) for n in SIZES]
    b = [single(n, n * 2e-9, dtype="float16", inplace=True) for n in SIZES]
    (one,) = contrast([run(a), run(b, "B")]).matches
    assert "dtype differs: A: float32; B: float16" in one.cautions
    assert "inplace differs: A: false; B: true" in one.cautions
    published = [sources.open(f"published:{name}") for name in ("h100-nvlink", "a100-nvlink")]
    said = contrast(published).matches[0].cautions
    assert "library version differs: A: nccl 2.29.2; B: nccl 2.27.3" in said


# --- refusals


def test_other_modes_are_refused_unless_mixed():
    a = [single(n, n * 1e-9, mode="graph") for n in SIZES]
    b = [single(n, n * 2e-9, mode="eager") for n in SIZES]
    found = contrast([run(a), run(b, "B")])
    assert found.matches == ()
    assert found.refused == (
        "allreduce: all_reduce: mode differs: A: graph; B: eager; --mixed compares them all the same",
    )
    (one,) = contrast([run(a), run(b, "B")], mixed=True).matches
    assert "mode differs: A: graph; B: eager" in one.cautions


def test_half_and_full_round_trips_are_refused():
    a, b = (
        [single(n, 2e-6, quantity="latency", probe="rdma", rule=f"{what} round trip", verb="write") for n in SIZES]
        for what in ("half", "full")
    )
    found = contrast([run(a), run(b, "B")])
    assert found.matches == ()
    assert "half round trip; B: full round trip" in found.refused[0]


def test_a_definition_that_only_one_states_is_warned_of():
    a, b = (
        [single(n, 2e-6, quantity="latency", probe="rdma", rule=rule, verb="write") for n in SIZES]
        for rule in ("half round trip", "")
    )
    (one,) = contrast([run(a), run(b, "B")]).matches
    assert "definition of the latency is not known of all: A: half; B: not stated" in one.cautions


def test_wrong_data_is_not_compared():
    good = collective(10 * US, 10 * GB, seed="a")
    bad = [replace(line, verified=False, status="failed") for line in good]
    found = contrast([run(good), run(bad, "B")])
    assert found.matches == ()
    assert any(note.startswith("B: not compared: 19 wrong") for note in found.notes)


def test_one_run_or_too_many_are_refused():
    one = run([single(8, 1e-6)])
    with pytest.raises(UserError, match="give two to 26"):
        contrast([one])
    with pytest.raises(UserError, match="give two to 26"):
        contrast([one] * 27)


# --- three and more, parts of one run, narrowing


def test_three_runs_are_ranked_by_size():
    made = [[single(n, start + n / rate, transport=t) for n in SIZES] for start, rate, t in (
        (1e-6, 1e9, "shm"), (5e-6, 20e9, "nvlink"), (30e-6, 10e9, "ib"),
    )]  # fmt: skip
    (one,) = contrast([run(lines, name) for lines, name in zip(made, "ABC", strict=True)]).matches
    assert len(one.duels) == 3
    fastest = [min(one.times(n), key=lambda letter: one.times(n)[letter].seconds) for n in one.sizes]
    assert fastest == sorted(fastest)
    assert set(fastest) == {"A", "B"}


def test_a_run_is_split_by_an_axis():
    made = [single(n, n * rate, transport=t) for t, rate in (("shm", 2e-9), ("nvlink", 1e-9)) for n in SIZES]
    parts = split(run(made), "transport")
    assert [name for name, _ in parts] == ["shm", "nvlink"]
    _, fight = only(contrast([part for _, part in parts], [name for name, _ in parts]))
    assert fight.ratios[0].value == pytest.approx(2)
    with pytest.raises(UserError, match="nothing to split by 'nodes'"):
        split(run(made), "nodes")


def test_where_keeps_the_wanted_points():
    made = [single(n, n * 1e-9, inplace=place) for place in (False, True) for n in SIZES]
    found = contrast([run(made), run(made, "B")], where={"inplace": ["true"]})
    (one,) = found.matches
    assert one.curves[0].axes["inplace"] is True


def test_nvlink_against_infiniband_on_published_numbers():
    names = ("h100-8gpu-nvlink-aws", "h100-16gpu-2nodes-ndr")
    runs = [sources.open(f"published:{name}") for name in names]
    found = contrast(runs, names, at=[MIB], where={"inplace": ["true"]})
    one, fight = only(found)
    times = one.times(MIB)
    assert times["B"].seconds == pytest.approx(71.47e-6)
    assert all(ratio.verdict in ("A", "same") for ratio in fight.ratios)
    assert "issue 309" in found.sides[1].whose
    assert all(side.single for side in found.sides)
    assert math.isclose(fight.ratios[0].value, 12.87 / 24.70, rel_tol=1e-9)


def test_the_same_input_gives_the_same_comparison():
    a, b = collective(10 * US, 10 * GB, seed="a"), collective(40 * US, 40 * GB, seed="b", transport="ib")
    once, again = (only(contrast([run(a), run(b, "B")]))[1] for _ in range(2))
    assert once.ratios == again.ratios
    assert once.crossings == again.crossings


def test_what_nobody_can_tell_is_said_once():
    noisy = [collective(20 * US, 100 * GB, seed=seed, noise=0.5) for seed in (1, 2)]
    found = contrast([run(noisy[0]), run(noisy[1], "B")])
    (fight,) = found.matches[0].duels
    assert fight.sentence == "which is faster is unclear at every size (256 B to 64 MiB)"
