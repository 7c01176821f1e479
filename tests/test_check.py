"""Verdicts: what is impossible is called so with the limit's source, and nothing else is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from iobench import check
from iobench.check import judge, topology_of
from iobench.errors import UserError
from iobench.record import Leg
from iobench.topology.graph import Topology
from iobench.units import GB, MIB, NS

from make_run import DISK_LIMIT, MEMORY_LIMIT, demo_run, lines, make_testbox, run_of

MEM = [Leg("mem:0", "cpu:0")]
POINT = {"nbytes": 64 * MIB}


def verdict(rate, legs, topology=None, *, moved=64 * MIB, **fields):
    """Return the verdict on one noiseless record that moves 64 MiB at ``rate``."""
    made = lines("p", POINT, moved / rate, noise=0.0, moved=moved, legs=legs, **fields)
    return next(iter(judge(run_of(made, topology=topology)).values()))


def graph(*links):
    """Return a topology of the links (a, b, bytes_per_s, duplex)."""
    made = Topology("made")
    for a, b, rate, duplex in links:
        for end in (a, b):
            made.add(end, end.split(":")[0])
        made.link(a, b, "link", rate, duplex=duplex, source="data sheet")
    return made


def test_below_the_limit_is_ok_with_its_fraction():
    found = verdict(MEMORY_LIMIT / 4, MEM)
    assert found.status == "ok"
    assert found.usable
    assert found.fraction == pytest.approx(0.25)
    assert found.limit_bytes_per_s == pytest.approx(MEMORY_LIMIT)
    assert found.limit_source == "limits.toml: DDR4-3200, 2 channels"
    assert found.sentence.startswith("25 % of numa:0 - mem:0's limit 51.2 GB/s")


def test_above_the_limit_is_impossible():
    found = verdict(60 * GB, MEM)
    assert found.status == "impossible"
    assert not found.usable
    assert found.fraction > 1
    assert found.sentence == (
        "record is suspect, measured 60.0 GB/s above numa:0 - mem:0's limit 51.2 GB/s "
        "(limits.toml: DDR4-3200, 2 channels)"
    )


def test_a_leg_carries_the_limit_that_was_seen_under_load():
    """The graph says gen 5 x16, the port above the card ran at gen 4 x8."""
    pcie = graph(("mem:0", "gpu:0", 63 * GB, True))
    leg = [Leg("mem:0", "gpu:0", bytes_per_s=15.75 * GB)]
    found = verdict(15 * GB, leg, pcie)
    assert (found.status, found.limit_bytes_per_s) == ("ok", pytest.approx(15.75 * GB))
    assert "under load" in found.limit_source
    assert verdict(16 * GB, leg, pcie).status == "impossible"
    assert verdict(16 * GB, [Leg("mem:0", "gpu:0")], pcie).status == "ok"


def test_the_lower_of_the_two_limits_counts():
    pcie = graph(("mem:0", "gpu:0", 63 * GB, True))
    found = verdict(55 * GB, [Leg("mem:0", "gpu:0", bytes_per_s=126 * GB)], pcie)
    assert found.limit_bytes_per_s == pytest.approx(63 * GB)


def test_a_limit_seen_under_load_needs_no_graph_and_counts_each_way():
    found = verdict(20 * GB, [Leg("mem:0", "gpu:9", count=2, bytes_per_s=15 * GB)], graph())
    assert found.limit_bytes_per_s == pytest.approx(30 * GB)
    part = [Leg("mem:0", "gpu:9", moved=32 * MIB, bytes_per_s=15 * GB)]
    assert verdict(20 * GB, part, graph()).limit_bytes_per_s == pytest.approx(30 * GB)


def test_a_kernel_that_skips_its_tail_is_caught():
    # an H200: 5,137 GB/s "measured" where the memory's clock gives 4,814
    h200 = graph(("hbm:0", "gpu:0", 4814 * GB, False))
    assert verdict(5137 * GB, [Leg("hbm:0", "gpu:0")], h200).status == "impossible"
    assert verdict(4500 * GB, [Leg("hbm:0", "gpu:0")], h200).status == "ok"


def test_the_limit_itself_is_possible():
    assert verdict(MEMORY_LIMIT * 0.9999, MEM).status == "ok"
    assert verdict(MEMORY_LIMIT * 1.001, MEM).status == "impossible"


@given(st.floats(1e6, 1e13))
def test_impossible_means_above_the_limit_at_any_rate(rate):
    found = verdict(rate, MEM)
    assert (found.status == "impossible") == (found.fraction > 1)
    assert found.fraction == pytest.approx(rate / MEMORY_LIMIT)


def test_parallel_ways_have_that_many_limits():
    caches = [Leg("cache:L1d:0", "cpu:0", count=2)]
    assert verdict(390 * GB, caches).status == "ok"
    assert verdict(390 * GB, [Leg("cache:L1d:0", "cpu:0")]).status == "impossible"
    assert "(x2)" in verdict(390 * GB, caches).sentence


def test_the_narrowest_leg_decides():
    found = verdict(2 * GB, [Leg("block:vda", "mem:0"), *MEM])
    assert found.limit_bytes_per_s == pytest.approx(DISK_LIMIT)
    assert "PCIe gen3 x4" in found.limit_source


def test_a_leg_that_carries_a_part_is_judged_by_that_part():
    # the page cache gave all but 1 MiB: the disk could not have done it alone
    legs = [Leg("block:vda", "mem:0", moved=MIB)]
    found = verdict(20 * GB, legs)
    assert found.status == "ok"
    assert found.limit_bytes_per_s == pytest.approx(64 * DISK_LIMIT)
    assert verdict(20 * GB, [Leg("block:vda", "mem:0")]).status == "impossible"


def test_both_directions_share_a_limit_only_where_it_holds_for_both():
    # 55.36 GB/s each way at once: fine on PCIe gen 5 x16, where each direction has 63.0
    half = 32 * MIB
    both = [Leg("mem:0", "gpu:0", moved=half), Leg("gpu:0", "mem:0", moved=half)]
    duplex, shared = (graph(("mem:0", "gpu:0", 63.0 * GB, way)) for way in (True, False))
    assert verdict(110.72 * GB, both, duplex).status == "ok"
    assert verdict(110.72 * GB, both, duplex).fraction == pytest.approx(55.36 / 63.0)
    assert verdict(110.72 * GB, both, shared).status == "impossible"


def test_parts_of_one_direction_add_up_on_a_shared_link():
    parts = [Leg("mem:0", "cpu:0", moved=32 * MIB), Leg("mem:0", "cpu:1", moved=32 * MIB)]
    assert verdict(60 * GB, parts).status == "impossible"
    assert verdict(40 * GB, parts).fraction == pytest.approx(40 * GB / MEMORY_LIMIT)


def test_legs_in_series_are_not_added_up():
    # the disk fills memory, the CPU reads it: a cache may have stood between, so this proves nothing
    legs = [Leg("block:vda", "mem:0", moved=64 * MIB), Leg("mem:0", "cpu:0", moved=64 * MIB)]
    box = make_testbox()
    box.links = [link for link in box.links if link.kind != "pcie"]
    box.link("block:vda", "numa:0", "pcie", None)
    assert verdict(40 * GB, legs, box).status == "ok"


@pytest.mark.parametrize(
    ("ranks", "wire", "status"), [(8, 1 + 1 / 8, "ok"), (2, 1.0, "impossible"), (4, 1.5, "impossible")]
)
def test_an_algorithm_that_reduces_in_the_switch_may_pass_the_link_rate(ranks, wire, status):
    # nccl#2140: busbw 480 GB/s on links of 450: with NVLS each GPU moves S(1 + 1/n); a ring 2S(n-1)/n
    switch = graph(("gpu:0", "nvswitch", 450 * GB, True))
    nbytes = 1 << 30
    moved = round(nbytes * 2 * (ranks - 1) / ranks)
    found = verdict(480 * GB, [Leg("gpu:0", "nvswitch", moved=round(nbytes * wire))], switch, moved=moved)
    assert found.status == status
    if ranks == 8:
        assert found.limit_bytes_per_s == pytest.approx(700 * GB, rel=1e-3)
        assert found.fraction == pytest.approx(0.69, abs=0.01)


def test_a_latency_can_be_impossible():
    fast = lines("p", POINT, 0.2 * NS, noise=0.0, quantity="latency", moved=64, legs=MEM)
    slow = lines("p", POINT, 90 * NS, noise=0.0, quantity="latency", moved=64, legs=MEM)
    assert [next(iter(judge(run_of(made)).values())).status for made in (fast, slow)] == ["impossible", "ok"]


def test_only_the_median_counts():
    # one of three launches lies above the limit
    rates = [30 * GB, 30 * GB, 90 * GB]
    made = lines("p", POINT, [64 * MIB / rate for rate in rates], noise=0.0, legs=MEM)
    assert next(iter(judge(run_of(made)).values())).status == "ok"


def test_a_wide_interval_is_no_excuse():
    made = lines("p", POINT, 64 * MIB / (54 * GB), noise=0.3, n=5, legs=MEM)
    run = run_of(made)
    assert run.records[0].time.high > 64 * MIB / MEMORY_LIMIT > run.records[0].time.median, "the interval must straddle"
    assert next(iter(judge(run).values())).status == "impossible"


def test_one_unproven_launch_leaves_the_record_unproven():
    made = lines("p", POINT, 0.01, legs=MEM)
    made[2].proven = False
    assert next(iter(judge(run_of(made)).values())).status == "unproven"


def test_no_limit_is_said_not_guessed():
    unknown = verdict(1e15, [])
    assert (unknown.status, unknown.limit_bytes_per_s, unknown.fraction) == ("ok", None, None)
    assert unknown.sentence == "no limit of the path is known"
    missing = verdict(1e15, [Leg("gpu:7", "mem:0"), Leg("gpu:7", "gpu:8")])
    assert missing.sentence == "no limit of the path is known: the topology has no gpu:7, gpu:8"
    core = make_testbox()
    core.links = [link for link in core.links if link.bytes_per_s is None]
    assert verdict(1e15, MEM, core).sentence == "no limit of the path is known"
    assert verdict(1e15, MEM, {}).sentence == "no limit of the path is known"


def test_known_legs_count_where_others_are_unknown():
    assert verdict(60 * GB, [Leg("gpu:7", "mem:0"), *MEM]).status == "impossible"


def test_disturbed_and_unproven_are_usable_but_named():
    suspect = verdict(10 * GB, MEM, status="suspect", reason="others used 37 % of the CPUs")
    assert (suspect.status, suspect.usable) == ("suspect", True)
    assert suspect.sentence.startswith("others used 37 % of the CPUs; 20 % of")
    unproven = verdict(10 * GB, MEM, proven=False, path="mmap")
    assert (unproven.status, unproven.usable) == ("unproven", True)
    assert unproven.sentence.startswith("path unproven: mmap; 20 % of")
    assert verdict(60 * GB, MEM, status="suspect", proven=False).status == "impossible"


def test_wrong_data_outranks_any_rate():
    wrong = verdict(60 * GB, MEM, verified=False, status="failed", reason="checksum of shard 2 differs")
    assert (wrong.status, wrong.usable) == ("wrong", False)
    assert "checksum of shard 2 differs" in wrong.sentence
    one_bad_launch = lines("p", POINT, 0.01, legs=MEM)
    one_bad_launch[1].verified = False
    assert next(iter(judge(run_of(one_bad_launch)).values())).status == "wrong"


@pytest.mark.parametrize("status", ["skipped", "failed"])
def test_what_was_not_measured_keeps_its_reason(status):
    found = next(iter(judge(run_of(lines("p", POINT, None, status=status, reason="needs two GPUs"))).values()))
    assert (found.status, found.sentence, found.usable) == (status, "needs two GPUs", False)


def test_every_record_of_a_run_gets_a_verdict():
    run = demo_run()
    verdicts = judge(run)
    assert set(verdicts) == {record.key for record in run}
    found = {found.status for found in verdicts.values()}
    assert found == set(check.STATUSES) - {"emulated"}  # those are in test_check_emulation.py
    assert all(found.sentence and "\n" not in found.sentence for found in verdicts.values())


@pytest.mark.parametrize("damage", [
    {"schema": 99}, {"links": 3}, {"nodes": ["cpu:0"]}, {"nodes": [{"id": "cpu:0"}]}, {"links": [{"a": "cpu:0"}]},
    {"links": [{"a": "cpu:0", "b": "mem:0", "kind": "dram", "bytes_per_s": "fast"}]},
    {"links": [{"a": "cpu:0", "b": "mem:0", "kind": "dram", "bytes_per_s": 0}]},
    {"links": [{"a": "cpu:0", "b": "mem:0", "kind": "dram", "bytes_per_s": float("nan")}]},
    {"links": [{"a": ["cpu:0"], "b": "mem:0", "kind": "dram"}]},
    {"nodes": [{"id": "cpu:0", "kind": "cpu", "attrs": [1]}]}, {"nodes": [{"id": ["x"], "kind": "cpu"}]},
])  # fmt: skip
def test_a_damaged_topology_is_one_line(damage):
    run = run_of(lines("p", POINT, 0.01, legs=MEM), topology={**make_testbox().to_dict(), **damage})
    with pytest.raises(UserError, match="topology in its header is unusable") as caught:
        judge(run)
    assert "\n" not in str(caught.value)


def test_a_run_without_topology_has_none():
    assert topology_of(run_of([], topology={})) is None
    found = topology_of(run_of([]))
    assert found is not None
    assert found.node("mem:0") is not None
