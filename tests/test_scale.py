"""Models in ranks and nodes: known machines come back, unknown counts are foretold, what cannot be is refused."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from iobench import busbytes, sources
from iobench.errors import UserError
from iobench.fit import curvetable
from iobench.fit.model import Measured
from iobench.fit.scale import Curve, ScaleModel, bench, formulas, gather, nvls
from iobench.units import GB, GIB, KIB, MIB, US

SIZES = [512 << step for step in range(21)]


def ring(
    op: str, ranks: int, nbytes: float, *, base: float = 4 * US, hop: float = 1 * US, rate: float = 300 * GB
) -> float:
    steps, wire = formulas.ring_steps(op, ranks), busbytes.factor(op, ranks)
    return base + steps * hop + wire * nbytes / rate


def curve(ranks: int, time, nodes: int = 1, sizes=SIZES, noise: float = 0.0) -> Curve:  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(ranks)
    points = []
    for nbytes in sizes:
        seconds = time(nbytes) * math.exp(rng.normal(0, noise))
        points.append(Measured(nbytes, seconds, seconds, seconds))
    return Curve.of(ranks, nodes, points)


def model(op: str, counts, switch: str = nvls.NO, noise: float = 0.0, **machine: float) -> ScaleModel:  # type: ignore[no-untyped-def]
    curves = tuple(curve(n, lambda size, n=n: ring(op, n, size, **machine), noise=noise) for n in counts)
    return ScaleModel({"op": op}, "graph", curves, switch)


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
@pytest.mark.parametrize("counts", [(2, 4), (2, 3, 4), (2, 4, 6)])
def test_a_ring_is_carried_to_eight_ranks(op: str, counts: tuple[int, ...]) -> None:
    machine = model(op, counts)
    for nbytes in SIZES:
        got = machine.predict(8, 1, nbytes)
        assert got.seconds == pytest.approx(ring(op, 8, nbytes), rel=0.03)
        assert got.low <= ring(op, 8, nbytes) <= got.high


def test_the_parameters_of_a_ring_come_back() -> None:
    found = model("all_reduce", (2, 4), hop=2.5 * US, base=6 * US, rate=150 * GB).parameters
    assert found["hop_within"].value == pytest.approx(2.5 * US, rel=0.02)
    assert found["base_within"].value == pytest.approx(6 * US, rel=0.02)
    assert found["bytes_per_s_within"].value == pytest.approx(150 * GB, rel=0.02)
    assert found["hop_within"].unit == "s"
    assert found["bytes_per_s_within"].unit == "bytes/s"


def test_noise_of_the_measurements_stays_in_the_interval() -> None:
    held = [
        got.low <= ring(op, 8, nbytes) <= got.high
        for op in ("all_reduce", "all_gather")
        for nbytes in SIZES
        for got in [model(op, (2, 4), noise=0.03).predict(8, 1, nbytes)]
    ]
    assert np.mean(held) >= 0.9


def test_between_measured_counts_and_below_them() -> None:
    machine = model("all_gather", (4, 8))
    for ranks in (2, 6, 16):
        assert machine.predict(ranks, 1, 64 * MIB).seconds == pytest.approx(
            ring("all_gather", ranks, 64 * MIB), rel=0.1
        )


def test_without_large_sizes_growth_is_latency_and_it_is_said() -> None:
    small = SIZES[:8]
    curves = tuple(curve(n, lambda size, n=n: ring("all_reduce", n, size), sizes=small) for n in (2, 4))
    got = ScaleModel({"op": "all_reduce"}, "", curves, nvls.NO).predict(8, 1, 8 * KIB)
    assert got.seconds == pytest.approx(ring("all_reduce", 8, 8 * KIB), rel=0.03)
    assert any("latency per hop" in sentence for sentence in got.warnings)


def test_a_switch_of_protocol_widens_the_interval() -> None:
    """A protocol of six times the hop from 128 KiB per rank on: the rules disagree near it, and nowhere else."""

    def time(ranks: int, nbytes: float) -> float:
        hop = 1 * US if nbytes / ranks < 128 * KIB else 6 * US
        return ring("all_gather", ranks, nbytes, hop=hop)

    curves = tuple(curve(n, lambda size, n=n: time(n, size)) for n in (2, 4))
    machine = ScaleModel({"op": "all_gather"}, "", curves, nvls.NO)
    calm, near = machine.predict(8, 1, 16 * KIB), machine.predict(8, 1, 512 * KIB)
    assert near.high / near.low > 1.5 * calm.high / calm.low
    assert near.low <= time(8, 512 * KIB) <= near.high
    assert any("switches protocols" in sentence for sentence in near.warnings)


def test_an_outlier_is_left_out_and_named() -> None:
    machine = model("all_gather", (2, 4))
    spoilt = [
        Measured(p.nbytes, p.seconds * (3 if p.nbytes == 16 * KIB else 1), 1, 1) for p in machine.curves[1].measured
    ]
    got = ScaleModel({"op": "all_gather"}, "", (machine.curves[0], Curve.of(4, 1, spoilt)), nvls.NO).predict(
        8, 1, 16 * KIB
    )
    assert got.seconds == pytest.approx(ring("all_gather", 8, 16 * KIB), rel=0.1)
    assert any("16 KiB" in sentence and "outliers" in sentence for sentence in got.warnings)


def test_repeated_sizes_count_once() -> None:
    points = [Measured(1024, seconds, seconds, seconds) for seconds in (3e-6, 1e-6, 2e-6)]
    assert Curve.of(2, 1, points).measured == (Measured(1024, 2e-6, 1e-6, 3e-6),)


# NVLS --------------------------------------------------------------------------------------------


def test_the_switch_takes_over_at_large_sizes_only() -> None:
    plain, fast = (model("all_reduce", (2, 4), switch) for switch in (nvls.NO, nvls.YES))
    assert fast.predict(8, 1, MIB) == plain.predict(8, 1, MIB)
    large = fast.predict(8, 1, 256 * MIB)
    assert large.seconds < 0.85 * plain.predict(8, 1, 256 * MIB).seconds
    assert any("NVLS" in sentence for sentence in large.basis)
    assert any("NCCL_NVLS_ENABLE" in sentence for sentence in large.warnings)
    assert fast.predict(4, 1, 256 * MIB).seconds == pytest.approx(ring("all_reduce", 4, 256 * MIB), rel=0.01)


def test_where_the_switch_is_unknown_the_interval_covers_both() -> None:
    ways = {
        switch: model("all_reduce", (2, 4), switch).predict(8, 1, 256 * MIB)
        for switch in (nvls.YES, nvls.NO, nvls.UNKNOWN)
    }
    assert ways[nvls.UNKNOWN].low <= ways[nvls.YES].seconds
    assert ways[nvls.UNKNOWN].high >= ways[nvls.NO].seconds
    assert any("unknown" in sentence for sentence in ways[nvls.UNKNOWN].warnings)


def test_bandwidth_by_nvls_follows_from_the_curve_of_more_ranks() -> None:
    """8 H200: bus bandwidth 435.6 GB/s with 6 ranks and 473.1 with 8 at 8 GiB (stas00/ml-engineering)."""
    eight = curve(8, lambda size: 1.75 * size / (473.1 * GB))
    assert nvls.carried(eight, 6, GIB) == pytest.approx(10 / 6 * GIB / (435.6 * GB), rel=0.01)


@pytest.mark.parametrize(
    ("machine", "axes", "expected"),
    [
        ("h100_sxm", {}, nvls.YES),
        ("8x-nvidia-h200", {"dtype": "float16"}, nvls.YES),
        ("b200_sxm", {}, nvls.YES),
        ("h100_sxm", {"dtype": "int8"}, nvls.NO),  # multimem.ld_reduce adds no 8-bit integers
        ("h100_sxm", {"algo": "RING"}, nvls.NO),
        ("h100_sxm", {"transport": "shm"}, nvls.NO),
        ("a100_sxm", {}, nvls.NO),
        ("H100 in one node, pairwise NVLink", {}, nvls.NO),
        ("some machine", {}, nvls.UNKNOWN),
        ("h100_sxm", {"op": "all_gather"}, nvls.NO),
    ],
)
def test_who_has_nvls(machine: str, axes: dict[str, str], expected: str) -> None:
    assert nvls.supported(machine, {"op": "all_reduce"} | axes) == expected


# refusals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ranks", "nodes", "nbytes", "words"),
    [
        (16, 1, 8 * MIB, "cannot predict 16 ranks"),
        (8, 1, 4 * GIB, "cannot predict 4 GiB"),
        (8, 1, 64, "cannot predict 64 B"),
        (16, 2, 8 * MIB, "two counts of nodes are needed"),
    ],
)
def test_refusals_say_what_to_do(ranks: int, nodes: int, nbytes: int, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        model("all_reduce", (2, 4)).predict(ranks, nodes, nbytes)
    assert "measure" in str(caught.value)


def test_one_count_is_not_enough() -> None:
    with pytest.raises(UserError, match="two counts of ranks are needed, measured: 4"):
        model("all_reduce", (4,)).predict(8, 1, MIB)


def test_one_common_size_is_not_enough() -> None:
    curves = tuple(curve(n, lambda size, n=n: ring("all_reduce", n, size), sizes=[MIB]) for n in (2, 4))
    with pytest.raises(UserError, match="share one size only"):
        ScaleModel({"op": "all_reduce"}, "", curves, nvls.NO).predict(8, 1, MIB)


# real curves -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a100-nvlink", "h100-nvlink", "h200-nvlink", "b200-nvlink"])
def test_eight_gpus_of_published_machines_lie_in_the_interval(name: str) -> None:
    run = sources.open(f"published:{name}")
    groups = gather.collectives(run)
    found = next(one for one in gather.scale_models(run, groups) if {(2, 1), (4, 1), (8, 1)} <= set(_counts(one)))
    truth = next(one for one in found.curves if one.ranks == 8)
    fewer = ScaleModel(found.axes, found.mode, tuple(one for one in found.curves if one.ranks < 8), found.switch)
    got = [(point, fewer.predict(8, 1, point.nbytes)) for point in truth.measured]
    assert np.median([abs(p.seconds / point.seconds - 1) for point, p in got]) <= 0.15
    assert np.mean([p.low <= point.seconds <= p.high for point, p in got]) >= 0.8  # of six sizes
    assert np.median([p.high / p.low for _, p in got]) < 1.7


def test_eight_nodes_from_two_and_four() -> None:
    """InfiniBand between H100 nodes: nccl-tests issue 309, in place."""
    names = ("16gpu-2nodes", "32gpu-4nodes", "64gpu-8nodes")
    curves = []
    for name in names:
        run = sources.open(f"published:h100-{name}-ndr-b")
        groups = [group for group in gather.collectives(run) if group.axes.get("inplace") is True]
        curves += gather.scale_models(run, groups)[0].curves
    machine = ScaleModel({"op": "all_reduce"}, "", tuple(curves[:2]), nvls.UNKNOWN)
    errors, held = [], []
    for point in curves[2].measured:
        got = machine.predict(64, 8, point.nbytes)
        errors.append(abs(got.seconds / point.seconds - 1))
        held.append(got.low <= point.seconds <= got.high)
    assert np.median(errors) <= 0.15
    assert np.mean(held) >= 0.8
    assert {"hop_between_8", "base_between_8"} <= set(machine.parameters)


def _counts(one: ScaleModel) -> list[tuple[int, int]]:
    return [(curve.ranks, curve.nodes) for curve in one.curves]


# the bench ---------------------------------------------------------------------------------------


def write_curves(path: Path, op: str = "allgather") -> Path:
    rows = ["# made up", ",".join(curvetable.COLUMNS)]
    for ranks in (2, 4, 8):
        for nbytes in SIZES:
            rows.append(f"some,1,1,{op},half,{ranks},{nbytes},{ring('all_gather', ranks, nbytes) / US:.4f}")
    path.write_text("\n".join(rows) + "\n")
    return path


def test_the_bench_predicts_a_made_up_machine(tmp_path: Path) -> None:
    text, met = bench.bench(write_curves(tmp_path / "curves.csv", "all_gather"))
    assert met
    assert "8 ranks predicted from 2 and 4: 21 points" in text
    assert text.endswith("met")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "lacks system"),
        ("# x\nsystem,op\na,b\n", "lacks dir_version"),
        (",".join(curvetable.COLUMNS) + "\na,1,1,all_reduce,half,2,512,-3\n", "line 2: latency_us is -3"),
        (",".join(curvetable.COLUMNS) + "\na,1,1,all_reduce,half,2\n", "line 2: no size_bytes"),
        (",".join(curvetable.COLUMNS) + "\na,1,1,all_reduce,half,2,512,3\n", "holds no curves of 2, 4 and 8"),
    ],
)
def test_bad_curves_are_one_line(tmp_path: Path, content: str, words: str) -> None:
    file = tmp_path / "curves.csv"
    file.write_text(content)
    with pytest.raises(UserError, match=words):
        bench.bench(file)


def test_what_cannot_be_predicted_is_left_out_and_named(tmp_path: Path) -> None:
    file = write_curves(tmp_path / "curves.csv", "all_gather")
    alone = "".join(f"lone,1,1,all_gather,half,{ranks},512,9\n" for ranks in (2, 4, 8))
    file.write_text(
        file.read_text() + alone + "some,1,1,all_gather,half,8,512,nan\nsome,1,1,all_gather,half,two,512,3\n"
    )
    text, met = bench.bench(file)
    assert met
    assert "8 ranks predicted from 2 and 4: 21 points" in text
    assert "left out: lone 1 1 all_gather half: the curves share one size only" in text
    assert "left out: line 69: latency_us is nan, no number" in text
    assert "left out: line 70: num_gpus is 'two', no number" in text
